"""``OffsetAsker``: a client that asks leaders for offsets (ListOffsets) throughout a run.

Each question names the leader epoch in the leader's own metadata. So its answer is of that epoch,
or an error. ListOffsets has no topic id: the leader's metadata names the topic as well, and while
the cluster has that topic under the name, the answer is of that topic.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from kraftjbod.cli.clients.cluster_admin import require_ok
from kraftjbod.cli.clients.cluster_client import may_pass
from kraftjbod.core.errors import OperatingError, RequestTimedOutError
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.protocol.messages import ListOffsetsRequest, MetadataRequest
from tests.sim.search.applications.application import Surroundings
from tests.sim.search.ledgers.ledger import Ledger
from tests.sim.search.offset_invariants import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    MAX_TIMESTAMP,
    Answer,
    OffsetInvariants,
    Question,
)

_PAUSE_S: Final = (0.1, 0.7)
_BY_TIME: Final = "by time"
_KINDS: Final = (EARLIEST, EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP, _BY_TIME, _BY_TIME)
#: First versions: the largest timestamp, the earliest local offset, and leader epochs.
_MIN_VERSION: Final = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8}
_EPOCHS_SINCE: Final = 4
#: Metadata: topic ids.
_IDS_NAMED: Final = 10
_READ_COMMITTED: Final = 1
#: A search by time is for the time of an acknowledged record, or for one before or after it.
_BESIDE_MS: Final = (-1_000, 0, 0, 1, 1_000)


class _Place(NamedTuple):
    """A partition on the broker that says it leads the partition."""

    leader: int
    topic: str
    topic_id: TopicId
    partition: int
    leader_epoch: int


class OffsetAsker:
    """Call :meth:`start`, and :meth:`close` at the end."""

    def __init__(
        self,
        around: Surroundings,
        ledger: Ledger,
        topics: Sequence[str],
        *,
        reused: Sequence[str],
        newest_epoch: Callable[[TopicId, int], int],
        settled_end: Callable[[int, TopicPartition], int | None],
        rng: random.Random,
    ) -> None:
        """
        :param topics: names of topics whose committed records are never lost.
        :param reused: names among ``topics`` that several topics have, one after the other.
        :param newest_epoch: returns the newest leader epoch of a partition; -1 if it does not
            exist any more, or no node of the cluster knows it.
        :param settled_end: returns the end of the log of a leader, given by its id, if all records
            of that log are committed, else None.
        """
        #: Answers without an error, by timestamp.
        self.answered: Counter[int | str] = Counter()
        self._around = around
        self._ledger = ledger
        self._topics = topics
        self._reused = reused
        self._cluster_epoch = newest_epoch
        self._settled_end = settled_end
        self._rng = rng
        self._invariants = OffsetInvariants(ledger)
        self._client = around.client("offset-asker")
        #: A controller or leader that knows the newest epoch may fail before the next question.
        self._newest_epochs: defaultdict[tuple[TopicId, int], int] = defaultdict(int)

    def start(self) -> None:
        self._around.begin(self._ask(), "offset-asker")

    async def close(self) -> None:
        await self._around.close()

    async def _ask(self) -> None:
        while True:
            await asyncio.sleep(self._rng.uniform(*_PAUSE_S))
            topic = self._rng.choice(self._topics)
            try:
                await self._ask_about(topic)
            except (OperatingError, RequestTimedOutError) as e:
                is_excused = may_pass(e) or isinstance(e, RequestTimedOutError)
                if not is_excused and topic not in self._reused:
                    self._around.found(f"ListOffsets of {topic} was refused: {e}")

    async def _ask_about(self, topic: str) -> None:
        """:raises OperatingError: the cluster cannot answer now."""
        place = await self._find_place(topic)
        if place is None:
            return
        key = self._ledger.key_of(topic, place.topic_id)
        kind = self._rng.choice(_KINDS)
        timestamp = self._draw_time(key, place.partition) if isinstance(kind, str) else kind
        question = Question(
            key,
            place.partition,
            place.leader_epoch,
            timestamp,
            is_committed_only=self._rng.random() < 1 / 2,
        )
        known = self._invariants.before(question, is_newest=self._is_newest(place))
        tp = TopicPartition(topic, place.partition)
        end = self._settled_end(place.leader, tp)
        answer = await self._request(place, question)
        self.answered[kind] += 1
        is_settled = end is not None and end == self._settled_end(place.leader, tp)
        start: int | None = 0
        if known.needs_start and self._ledger.may_start(key, place.partition) > 0:
            # Records may be deleted, before the answer at the latest.
            start = (await self._request(place, question._replace(timestamp=EARLIEST))).offset
        if self._newest_epoch(place) < 0:
            return  # The topic was deleted: the answer may be of the next topic of that name.
        if wrong := self._invariants.judge(known, answer, start, is_settled=is_settled):
            self._around.found(wrong)

    def _draw_time(self, key: str, partition: int) -> int:
        records = self._ledger.acknowledged(key, partition)
        if not records:
            return 0
        return max(0, self._rng.choice(records).stamped_ms + self._rng.choice(_BESIDE_MS))

    def _newest_epoch(self, place: _Place) -> int:
        """Return the newest leader epoch, -1 if the topic does not exist any more."""
        epoch = self._cluster_epoch(place.topic_id, place.partition)
        if epoch < 0:
            return -1
        key = place.topic_id, place.partition
        self._newest_epochs[key] = max(self._newest_epochs[key], epoch)
        return self._newest_epochs[key]

    def _is_newest(self, place: _Place) -> bool:
        return 0 <= self._newest_epoch(place) <= place.leader_epoch

    async def _find_place(self, topic: str) -> _Place | None:
        """Return a partition whose leader says that it leads it; None if there is none.

        :raises OperatingError: there is no leader, or the leader does not answer.
        """
        metadata = await self._client.refresh_metadata([topic])
        partition = self._rng.randrange(len(metadata.topic(topic).partitions))
        leader = metadata.leader(topic, partition)
        named = MetadataRequest.MetadataRequestTopic(name=topic)
        request = MetadataRequest(topics=[named], allow_auto_topic_creation=False)
        response = await self._client.request(leader, request, min_version=_IDS_NAMED)
        (own,) = response.topics
        topic_id = TopicId(bytes(own.topic_id))
        if topic in self._reused and not self._ledger.is_known(topic_id):
            return None
        for one in own.partitions:
            if one.partition_index == partition and one.leader_id == leader:
                return _Place(leader, topic, topic_id, partition, one.leader_epoch)
        return None

    async def _request(self, place: _Place, question: Question) -> Answer:
        """:raises OperatingError: the answer is an error, or there is none."""
        kind = ListOffsetsRequest
        part = kind.ListOffsetsPartition(
            partition_index=place.partition,
            current_leader_epoch=place.leader_epoch,
            timestamp=question.timestamp,
        )
        request = kind(
            replica_id=-1,
            isolation_level=_READ_COMMITTED if question.is_committed_only else 0,
            topics=[kind.ListOffsetsTopic(name=place.topic, partitions=[part])],
        )
        least = _MIN_VERSION.get(question.timestamp, _EPOCHS_SINCE)
        response = await self._client.request(place.leader, request, min_version=least)
        ((found,),) = (topic.partitions for topic in response.topics)
        require_ok(found, f"{question}")
        return Answer(found.offset, found.timestamp)
