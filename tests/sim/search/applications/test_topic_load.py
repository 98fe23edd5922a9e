from __future__ import annotations

import asyncio

import pytest

from kraftjbod.cli.clients.cluster_admin import delete_records, delete_topic
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicId, TopicPartition
from tests.sim.search.applications.app_rig import Rig, rig
from tests.sim.search.applications.topic_load import TopicLoad, require_topic
from tests.sim.search.ledgers.ledger import Ledger


async def _load(around: Rig, ledger: Ledger) -> TopicLoad:
    """Return a load of the topic that currently has the name."""
    surroundings = around.around()
    writer, reader = surroundings.client("writer"), surroundings.client("reader")
    for client in (writer, reader):
        await client.refresh_metadata(["t"])
    topic_id = TopicId(writer.metadata.topic("t").topic_id)
    load = TopicLoad(
        surroundings,
        ledger,
        "t",
        topic_id,
        key=ledger.add_incarnation("t", topic_id),
        writer=writer,
        reader=reader,
        pause_s=0.1,
    )
    load.begin()
    return load


def test_topic_load_leaves_recreated_topic_of_same_name_alone() -> None:
    ledger = Ledger()
    with rig() as around:

        async def play() -> None:
            client = around.cluster.client("client").kafka
            await around.make("t", 1)
            old = await _load(around, ledger)
            await asyncio.sleep(2)
            old.is_ending = True
            await delete_topic(client, "t")
            await around.make("t", 1)
            new = await _load(around, ledger)
            await asyncio.sleep(2)
            await new.stop_writing()
            while new.unread():
                await asyncio.sleep(0.1)
            assert ledger.acked_end(old.key, 0) > 5 and ledger.acked_end(new.key, 0) > 5
            with pytest.raises(OperatingError) as wrong:
                await client.refresh_metadata(["t"])
                require_topic(client, "t", old.topic_id)
            assert wrong.value.code is ErrorCode.UNKNOWN_TOPIC_ID
            await old.end()
            await new.end()

        around.cluster.client("client").run(play())
        assert around.findings == []


def test_topic_load_reader_continues_at_log_start_after_deletion() -> None:
    ledger = Ledger()
    with rig() as around:

        async def play() -> None:
            await around.make("t", 1)
            load = await _load(around, ledger)
            await asyncio.sleep(2)
            end = ledger.acked_end(load.key, 0)
            client = around.cluster.client("client").kafka
            answers = await delete_records(client, {TopicPartition("t", 0): end})
            assert answers == {TopicPartition("t", 0): end}
            late = await _load(around, ledger2 := Ledger())
            await asyncio.sleep(2)
            assert min(ledger2.seen[late.key, 0]) == late.latest_start == end
            await load.end()
            await late.end()

        around.cluster.client("client").run(play())
        assert around.findings == []
