"""``ConsumerSessions``: incremental fetch responses, limits and eviction."""

from __future__ import annotations

import asyncio
from _collections_abc import dict_values
from collections.abc import Awaitable
from itertools import count

from kraftjbod.broker.partitions.consumer_sessions import (
    ConsumerSession,
    ConsumerSessionLimits,
    ConsumerSessions,
)
from kraftjbod.broker.partitions.fetch_sessions import FetchSessions
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.core.telemetry import Metrics
from kraftjbod.protocol.messages import FetchRequest, FetchResponse
from tests.faults.rig import ManualClock


class Rig:
    """Sessions for partitions with high watermarks ``ends``, and records in ``full``."""

    def __init__(self, **limits: int) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        ids = count(1)
        self.followers = FetchSessions(
            clock=self.clock, random_bytes=lambda size: next(ids).to_bytes(size)
        )
        self.sessions = ConsumerSessions(
            clock=self.clock,
            random_bytes=lambda size: next(ids).to_bytes(size),
            followers=self.followers,
            metrics=self.metrics,
            limits=ConsumerSessionLimits(**limits),
        )
        self.ends: dict[int, int] = {}
        self.full: set[int] = set()
        self.errors: dict[int, ErrorCode] = {}
        #: The partitions of the last fetch.
        self.served: list[int] = []
        self.gate: asyncio.Event | None = None

    def ask(
        self, *named: int, session: int = 0, epoch: int = 0, forgets: tuple[int, ...] = ()
    ) -> Awaitable[FetchResponse]:
        parts = [FetchRequest.FetchPartition(partition=index) for index in named]
        request = FetchRequest(session_id=session, session_epoch=epoch)
        request.topics = [FetchRequest.FetchTopic(topic="t", partitions=parts)] if parts else []
        if forgets:
            request.forgotten_topics_data = [
                FetchRequest.ForgottenTopic(topic="t", partitions=list(forgets))
            ]
        return self.sessions.fetch(request, lambda: self._serve(request), is_by_id=False)

    def asked(self, *named: int, session: int = 0, epoch: int = 0) -> FetchResponse:
        answer = self.ask(*named, session=session, epoch=epoch)
        assert isinstance(answer, Completion)
        return answer.result()

    def _serve(self, request: FetchRequest) -> Awaitable[FetchResponse]:
        self.served = [part.partition for topic in request.topics for part in topic.partitions]
        parts = [
            FetchResponse.PartitionData(
                partition_index=index,
                high_watermark=self.ends.get(index, 0),
                error_code=self.errors.get(index, 0),
                records=b"x" if index in self.full else b"",
            )
            for index in self.served
        ]
        topic = FetchResponse.FetchableTopicResponse(topic="t", partitions=parts)
        response = FetchResponse(responses=[topic])
        return Completion.of(response) if self.gate is None else self._later(response)

    async def _later(self, response: FetchResponse) -> FetchResponse:
        assert self.gate is not None
        await self.gate.wait()
        return response


def returned(response: FetchResponse) -> list[int]:
    assert response.error_code == 0
    return [part.partition_index for topic in response.responses for part in topic.partitions]


def test_consumer_session_returns_changed_partitions_and_serves_read_ones_last() -> None:
    rig = Rig()
    opened = rig.asked(0, 1, 2)
    session = opened.session_id
    assert returned(opened) == [0, 1, 2]
    rig.full = {0}
    assert returned(rig.asked(session=session, epoch=1)) == [0]
    rig.full, rig.ends = set(), {2: 5}
    assert returned(rig.asked(session=session, epoch=2)) == [2]
    assert rig.served == [1, 2, 0]
    assert returned(rig.asked(session=session, epoch=3)) == []
    # An error is returned in every response until it ends, and so is its end.
    rig.errors = {1: ErrorCode.NOT_LEADER_OR_FOLLOWER}
    for epoch in (4, 5):
        answer = rig.asked(session=session, epoch=epoch)
        assert [part.partition_index for part in answer.responses[0].partitions] == [1]
    rig.errors = {}
    assert returned(rig.asked(session=session, epoch=6)) == [1]
    assert returned(rig.asked(session=session, epoch=7)) == []
    # An added partition is returned immediately.
    assert returned(rig.asked(3, session=session, epoch=8)) == [3]


async def test_consumer_session_returns_the_partition_of_an_abandoned_fetch_again() -> None:
    rig = Rig()
    session = rig.asked(0).session_id
    rig.gate, rig.ends = asyncio.Event(), {0: 7}
    abandoned = asyncio.ensure_future(rig.ask(session=session, epoch=1))
    await asyncio.sleep(0)
    again = asyncio.ensure_future(rig.ask(session=session, epoch=2))
    await asyncio.sleep(0)
    rig.gate.set()
    assert (await abandoned).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert returned(await again) == [0]


def test_consumer_sessions_above_the_limit_evict_idle_or_old_smaller_sessions() -> None:
    rig = Rig(max_sessions=3, eviction_ms=1_000)
    rig.followers.open(None)
    first, second = rig.asked(0, 1).session_id, rig.asked(0, 1, 2).session_id
    # No session is idle yet; sessions of followers are never evicted.
    refused = rig.asked(*range(9))
    assert (refused.session_id, len(returned(refused))) == (0, 9)
    rig.clock.ms += 1_001
    returned(rig.asked(session=first, epoch=1))
    returned(rig.asked(session=second, epoch=1))
    # Both sessions are old: the smaller one is evicted for a larger one only.
    assert rig.asked(0, 1).session_id == 0
    third = rig.asked(0, 1, 2).session_id
    lost = rig.asked(session=first, epoch=2)
    assert (third > 0, lost.error_code) == (True, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
    # A session that was idle for long is evicted for any other.
    rig.clock.ms += 1_001
    assert rig.asked(0).session_id > 0
    figures = rig.metrics.snapshot()
    assert figures["NumIncrementalFetchSessions"] == 3
    assert figures["NumIncrementalFetchPartitionsCached"] == 4
    assert figures["IncrementalFetchSessionEvictionsPerSec"] == 2


class _OrderOnly(dict[int, ConsumerSession]):
    """Sessions of which only the first one may be visited."""

    def values(self) -> dict_values[int, ConsumerSession]:
        return dict(list(self.items())[:1]).values()


def test_eviction_of_many_sessions_visits_only_their_oldest() -> None:
    """Without an index, each evicted session costs a visit of all of them: minutes at the limit."""
    rig = Rig(max_partitions=40, eviction_ms=1_000)
    rig.sessions._sessions = _OrderOnly()
    opened = [rig.asked(*range(size)).session_id for size in (9, 3, 1, 2, 3, 9, 4, 4)]
    rig.clock.ms += 900
    for session in opened:
        rig.asked(session=session, epoch=1)
    rig.clock.ms += 900
    # Places for 8 partitions more: the sessions with 1, 2, 3 and 3 partitions, smallest first.
    assert rig.asked(*range(13)).session_id > 0
    lost = [rig.asked(session=session, epoch=2).error_code != 0 for session in opened]
    assert lost == [False, True, True, True, True, False, False, False]
    assert rig.metrics.snapshot()["NumIncrementalFetchPartitionsCached"] == 39


def test_eviction_of_consumer_sessions_compares_their_present_sizes() -> None:
    rig = Rig(max_sessions=2, eviction_ms=1_000)
    grown, kept = rig.asked(0).session_id, rig.asked(0, 1, 2).session_id
    rig.clock.ms += 1_001
    for session in (grown, kept):
        rig.asked(session=session, epoch=1)
    assert rig.asked(0).session_id == 0
    rig.asked(1, 2, 3, session=grown, epoch=2)
    assert rig.asked(*range(4)).session_id > 0
    assert rig.asked(session=kept, epoch=2).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert returned(rig.asked(session=grown, epoch=3)) == []


def test_consumer_sessions_limit_their_partitions() -> None:
    rig = Rig(max_partitions=4)
    session = rig.asked(0, 1, 2).session_id
    assert rig.asked(0, 1).session_id == 0
    # A session that grows above the limit is closed, and its consumer opens a new one.
    grown = rig.asked(3, 4, session=session, epoch=1)
    assert grown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert rig.metrics.snapshot()["NumIncrementalFetchPartitionsCached"] == 0
    assert Rig().asked(*range(MAX_ITEMS_PER_REQUEST + 1)).session_id == 0


async def test_consumer_session_ends_when_its_last_partition_is_forgotten() -> None:
    rig = Rig()
    session = rig.asked(0, 1).session_id
    answer = await rig.ask(session=session, epoch=1, forgets=(0,))
    assert (answer.session_id, rig.served) == (session, [1])
    answer = await rig.ask(session=session, epoch=2, forgets=(1,))
    assert (answer.session_id, answer.error_code, len(rig.sessions)) == (0, 0, 0)
