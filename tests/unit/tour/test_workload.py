"""``Workload``: the tour's load and its acknowledgements."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.tour.source_lines import LineStream, SourceLine
from kraftjbod.tour.workload import Workload
from tests.unit.cli.mini_broker import mini_broker


def stream(lines: int) -> LineStream:
    return LineStream([SourceLine(place=f"f:{n}", text=b"%d" % n) for n in range(lines)])


async def test_workload_stopped_early_sends_all_lines_once() -> None:
    async with mini_broker() as broker:
        topic = broker.create("t", 2)
        workload = Workload([stream(700), stream(3)], max_s=60)
        workload.stop()
        await workload.run(broker.address, "t")
        assert (workload.acked, workload.lines) == (703, 703)
        assert [topic.end(p) for p in (0, 1)] == [700, 3]
        assert [(a.offset, a.count) for a in workload.loads[0].acks] == [(0, 500), (500, 200)]
        assert workload.first_s <= workload.last_s
        assert workload.acked_bytes > 703


async def test_workload_repeats_lines_until_stopped() -> None:
    async with mini_broker() as broker:
        broker.create("t")
        workload = Workload([stream(3)], max_s=60)
        producing = asyncio.create_task(workload.run(broker.address, "t"))
        while workload.acked < 9:
            await asyncio.sleep(0)
        workload.stop()
        await producing
        assert workload.acked % 3 == 0


@pytest.mark.parametrize("code", [ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_PRODUCER_EPOCH])
async def test_workload_ends_producer_of_refused_batch_with_reason(code: ErrorCode) -> None:
    async with mini_broker() as broker:
        broker.create("t")
        broker.fail_next["Produce"] = [code]
        workload = Workload([stream(3)], max_s=60)
        await workload.run(broker.address, "t")
        [load] = workload.loads
        assert (load.acked, load.in_doubt) == (0, 3)
        assert code.name in (load.error or "")


async def test_workload_after_max_time_leaves_last_batch_in_doubt() -> None:
    workload = Workload([stream(3)], max_s=0.0)
    await workload.run("127.0.0.1:1", "t")
    assert workload.loads[0].in_doubt > 0
    assert "not done" in (workload.loads[0].error or "")
