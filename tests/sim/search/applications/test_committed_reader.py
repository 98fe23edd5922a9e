from __future__ import annotations

import asyncio

from kraftjbod.core.ids import TopicPartition
from kraftjbod.testing.simulation.simulated_host import WORLD_BEGAN_MS
from tests.sim.search.applications.app_rig import rig
from tests.sim.search.applications.committed_reader import CommittedReader
from tests.sim.search.applications.transactional_producer import (
    TransactionalProducer,
)

_TP = TopicPartition("t", 0)


def test_committed_reader_shows_committed_records_and_reports_open_transactions() -> None:
    with rig() as around:
        mine, seen = around.around(), list[bytes]()

        async def play() -> None:
            await around.make("t", 1)
            client = mine.client("reader")
            reader = CommittedReader(client, "t", 1, saw=lambda _, value: seen.append(value))
            mine.begin(reader.run(), "reader")
            producer = TransactionalProducer(
                mine.client("p"), "p", timeout_ms=5_000, grows_epoch=True
            )
            await producer.init()
            await producer.send({_TP: [b"aborted"]}, WORLD_BEGAN_MS)
            await asyncio.sleep(2)
            assert reader.unread() == ["of t-0 nothing was received since"], "that was before"
            await asyncio.sleep(2)
            assert reader.unread() == ["t-0 has a transaction open at 0"]
            await producer.end(committed=False)
            await producer.send({_TP: [b"committed"]}, WORLD_BEGAN_MS)
            await producer.end(committed=True)
            await asyncio.sleep(2)
            assert reader.unread() == [] and seen == [b"committed"]
            await mine.close()

        around.cluster.client("client").run(play())
        assert around.findings == []
