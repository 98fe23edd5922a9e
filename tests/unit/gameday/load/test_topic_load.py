"""``TopicLoad`` keeps its rate, stops on request, and reports a failed producer."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.gameday.load.numbered_stream import NumberedStream
from kraftjbod.gameday.load.topic_load import TopicLoad
from tests.unit.cli.mini_broker import mini_broker


def steady(partitions: int, rate: float) -> TopicLoad:
    streams = {p: NumberedStream(f"r{p}", size_bytes=64) for p in range(partitions)}
    return TopicLoad.at_rate(streams, rate)


@pytest.mark.parametrize(("rate", "batch"), [(10.0, 1), (50.0, 1), (1000.0, 20)])
async def test_topic_load_writes_to_all_partitions_until_stopped(rate: float, batch: int) -> None:
    async with mini_broker() as broker:
        topic = broker.create("t", 2)
        load = steady(2, rate)
        assert not load.is_flowing
        producing = asyncio.create_task(load.run_load(broker.address, "t"))
        while load.acked < 5 * batch:
            await asyncio.sleep(0.01)
        load.stop()
        await producing
        assert load.is_flowing
        assert load.errors == []
        assert topic.end(0) > 0 and topic.end(1) > 0
        assert load.acked == topic.end(0) + topic.end(1)
        assert {ack.count for one in load.loads for ack in one.acks} == {batch}
        instants = [ack.at_s for ack in load.loads[0].acks]
        assert instants[-1] - instants[0] >= (len(instants) - 2) * batch / rate


async def test_topic_load_reports_failed_producer_and_continues_with_others() -> None:
    async with mini_broker() as broker:
        broker.create("t", 2)
        broker.fail_next["Produce"] = [ErrorCode.MESSAGE_TOO_LARGE]
        load = steady(2, 100.0)
        producing = asyncio.create_task(load.run_load(broker.address, "t"))
        while load.acked < 5:
            await asyncio.sleep(0.01)
        load.stop()
        await producing
        [error] = load.errors
        assert "MESSAGE_TOO_LARGE" in error
        assert not load.is_flowing


async def test_full_speed_load_stopped_early_sends_its_least_number_of_records() -> None:
    async with mini_broker() as broker:
        topic = broker.create("t", 2)
        streams = {p: NumberedStream(f"r{p}", size_bytes=64) for p in range(2)}
        load = TopicLoad(streams, batch_records=500, least={0: 700, 1: 3})
        load.stop()
        await load.run_load(broker.address, "t")
        assert [topic.end(p) for p in (0, 1)] == [1000, 500]
        assert [(ack.offset, ack.count) for ack in load.loads[0].acks] == [(0, 500), (500, 500)]
