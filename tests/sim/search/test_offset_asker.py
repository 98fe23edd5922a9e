from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kraftjbod.broker.replicas.replica_reads import FoundOffset, ReplicaReads
from kraftjbod.core.ids import TopicId, TopicPartition
from tests.sim.search.applications.app_rig import Rig, rig
from tests.sim.search.applications.topic_load import TopicLoad
from tests.sim.search.cluster_view import ClusterView
from tests.sim.search.ledgers.ledger import Ledger
from tests.sim.search.offset_asker import OffsetAsker
from tests.sim.search.offset_invariants import EARLIEST, EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP

_KINDS = {EARLIEST, EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP, "by time"}


def _run(around: Rig, meanwhile: Callable[[], Awaitable[None]]) -> OffsetAsker:
    """Ask about a topic that is written, until ``meanwhile`` ends."""
    ledger, surroundings, view = Ledger(), around.around(), ClusterView(around.cluster)
    asker = OffsetAsker(
        around.around(),
        ledger,
        ["t"],
        reused=[],
        newest_epoch=view.newest_epoch,
        settled_end=view.settled_end,
        rng=random.Random(3),
    )

    async def play() -> None:
        await around.make("t", 1)
        writer = surroundings.client("writer")
        await writer.refresh_metadata(["t"])
        load = TopicLoad(
            surroundings,
            ledger,
            "t",
            TopicId(writer.metadata.topic("t").topic_id),
            key="t",
            writer=writer,
            reader=surroundings.client("reader"),
            # An answer comes while no record is in flight.
            pause_s=0.05,
        )
        load.begin()
        asker.start()
        await meanwhile()
        await load.end()
        await asker.close()

    around.cluster.client("client").run(play())
    return asker


def test_offset_asker_gets_all_kinds_of_answers_while_the_leader_changes() -> None:
    with rig() as around:

        async def break_leader() -> None:
            await asyncio.sleep(10)
            around.cluster.broker(2).kill()
            await asyncio.sleep(10)
            around.cluster.broker(2).start()
            around.cluster.broker(3).kill()
            await asyncio.sleep(20)

        asker = _run(around, break_leader)
    assert set(asker.answered) == _KINDS
    assert around.findings == []


@pytest.mark.parametrize("kind", ["latest", "by time"])
def test_offset_asker_finds_wrong_answers_of_a_broker(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = ReplicaReads.find_offset

    async def answer_wrongly(
        self: ReplicaReads, tp: TopicPartition, timestamp_ms: int, **more: Any
    ) -> FoundOffset:
        answer = await find(self, tp, timestamp_ms, **more)
        if timestamp_ms == LATEST and kind == "latest":
            return answer._replace(offset=0)
        if timestamp_ms >= 0 and kind == "by time":
            return answer._replace(offset=answer.offset + 1)
        return answer

    monkeypatch.setattr(ReplicaReads, "find_offset", answer_wrongly)
    with rig() as around:
        _run(around, lambda: asyncio.sleep(15))
    assert around.findings
    asked = "the latest offset" if kind == "latest" else "the first offset since "
    assert all(f"for {asked}" in finding for finding in around.findings), around.findings[:3]
