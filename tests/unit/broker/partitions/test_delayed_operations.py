"""``OffsetPurgatory`` and ``FetchPurgatory``: operations end once, by success, failure or
deadline."""

from __future__ import annotations

import asyncio
import time

import pytest

from kraftjbod.broker.partitions.delayed_operations import FetchPurgatory, OffsetPurgatory
from kraftjbod.core.errors import ErrorCode, OverloadedError
from kraftjbod.core.ids import TopicPartition

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
LONG_MS = 600_000


class RealClock:
    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000


def produces(max_waiting: int = 100) -> OffsetPurgatory:
    return OffsetPurgatory(kind="produces", clock=RealClock(), max_waiting=max_waiting)


async def test_waiting_produce_completes_when_the_high_watermark_reaches_its_offset() -> None:
    waits = produces()
    first = waits.wait(T0, 10, LONG_MS)
    second = waits.wait(T0, 20, LONG_MS)
    other = waits.wait(T1, 5, LONG_MS)
    waits.reached(T0, 9)
    assert not first.done()
    waits.reached(T0, 10)
    assert (await first) is ErrorCode.NONE
    assert not second.done() and not other.done() and len(waits) == 2
    waits.reached(T0, 25)
    assert (await second) is ErrorCode.NONE
    waits.close()


async def test_fail_ends_all_waiting_produces_of_one_partition_only() -> None:
    """A directory failed, or a leadership was lost."""
    waits = produces()
    failing = [waits.wait(T0, offset, LONG_MS) for offset in range(5)]
    other = waits.wait(T1, 1, LONG_MS)
    waits.fail(T0, ErrorCode.KAFKA_STORAGE_ERROR)
    assert [f.result() for f in failing] == [ErrorCode.KAFKA_STORAGE_ERROR] * 5
    assert not other.done() and len(waits) == 1
    waits.close()
    assert other.result() is ErrorCode.NOT_LEADER_OR_FOLLOWER and len(waits) == 0


async def test_fail_of_a_partition_without_waiting_produces_has_no_effect() -> None:
    waits = produces()
    waits.fail(T0, ErrorCode.KAFKA_STORAGE_ERROR)
    waits.reached(T0, 1)
    assert len(waits) == 0


async def test_later_produces_with_earlier_deadlines_time_out_first() -> None:
    """A later produce with an earlier deadline does not wait for the timer of the first one."""
    waits = produces()
    patient = waits.wait(T0, 10, LONG_MS)
    hasty = waits.wait(T0, 10, 5)
    hastier = waits.wait(T1, 10, 1)
    assert (await hasty) is ErrorCode.REQUEST_TIMED_OUT
    assert (await hastier) is ErrorCode.REQUEST_TIMED_OUT
    assert not patient.done() and len(waits) == 1
    waits.reached(T0, 10)
    assert patient.result() is ErrorCode.NONE
    waits.close()


async def test_waiting_produce_times_out_after_another_completed() -> None:
    waits = produces()
    done = waits.wait(T0, 1, 1)
    late = waits.wait(T0, 2, 10)
    waits.reached(T0, 1)
    assert done.result() is ErrorCode.NONE
    assert (await late) is ErrorCode.REQUEST_TIMED_OUT
    assert len(waits) == 0


async def test_completed_waiting_produces_leave_few_deadlines() -> None:
    """A client may ask for a timeout of weeks, and its produces end after milliseconds."""
    waits = produces()
    for timeout_ms in range(LONG_MS, LONG_MS + 10_000, 10):
        for _ in range(2):
            waits.wait(T0, 1, timeout_ms)
            waits.reached(T0, 1)
    assert len(waits) == 0 and len(waits._deadlines) < 100
    waits.close()


async def test_overdue_waits_of_one_partition_complete_in_order_of_arrival() -> None:
    """The order must not depend on addresses of objects, or simulations cannot be repeated."""
    waits = produces()
    order: list[int] = []
    pending = [waits.wait(T0, offset, 5) for offset in range(50)]
    for offset, wait in enumerate(pending[:-1]):
        wait.add_done_callback(lambda _, offset=offset: order.append(offset))
    assert (await pending[-1]) is ErrorCode.REQUEST_TIMED_OUT
    assert order == sorted(order) and len(order) == 49
    waits.close()


async def test_cancelled_produce_affects_no_other() -> None:
    waits = produces()
    gone = waits.wait(T0, 1, LONG_MS).future()
    kept = waits.wait(T0, 1, LONG_MS)
    gone.cancel()
    waits.reached(T0, 1)
    assert kept.result() is ErrorCode.NONE and len(waits) == 0
    waits.close()


async def test_waiting_produces_are_limited() -> None:
    waits = produces(max_waiting=1)
    waits.wait(T0, 1, LONG_MS)
    with pytest.raises(OverloadedError):
        waits.wait(T1, 1, LONG_MS)
    waits.close()
    assert "waiting=0" in repr(waits)


async def test_waiting_produces_are_limited_per_partition() -> None:
    waits = OffsetPurgatory(kind="produces", clock=RealClock(), max_per_partition=2)
    for offset in (1, 2):
        waits.wait(T0, offset, LONG_MS)
    with pytest.raises(OverloadedError, match="2 produces wait for t-0 already"):
        waits.wait(T0, 3, LONG_MS)
    waits.wait(T1, 1, LONG_MS)
    waits.reached(T0, 1)
    waits.wait(T0, 3, LONG_MS)
    assert len(waits) == 3
    waits.close()


async def test_waiting_fetch_completes_when_its_partitions_have_enough_bytes_together() -> None:
    waits = FetchPurgatory()
    done = waits.wait([T0, T1], 100, LONG_MS)
    waits.arrived(T0, 60)
    assert not done.done()
    waits.arrived(T1, 40)
    assert (await done) is True
    await asyncio.sleep(0)
    assert len(waits) == 0 and "partitions=0" in repr(waits)


async def test_waiting_fetch_ends_at_its_deadline() -> None:
    waits = FetchPurgatory()
    assert (await waits.wait([T0], 1, 1)) is False


async def test_wake_ends_waiting_fetches_of_a_partition() -> None:
    waits = FetchPurgatory()
    on_both = waits.wait([T0, T1], 1 << 20, LONG_MS)
    on_other = waits.wait([T1], 1 << 20, LONG_MS)
    waits.wake(T0)
    assert (await on_both) is True
    assert not on_other.done()
    waits.close()
    assert (await on_other) is True


async def test_cancelled_fetch_is_forgotten() -> None:
    waits = FetchPurgatory()
    waits.wait([T0, T0], 1, LONG_MS).cancel()
    await asyncio.sleep(0)
    assert len(waits) == 0 and "partitions=0" in repr(waits)
    waits.arrived(T0, 1)


async def test_waiting_fetches_are_limited_by_partitions() -> None:
    waits = FetchPurgatory(max_partitions=3)
    waits.wait([T0, T1], 1, LONG_MS)
    with pytest.raises(OverloadedError):
        waits.wait([T0, T1], 1, LONG_MS)
    waits.wake(T0)
    await asyncio.sleep(0)
    waits.wait([T0, T1], 1, LONG_MS)
    waits.close()
    await asyncio.sleep(0)


async def test_waiting_fetches_are_limited_by_count() -> None:
    waits = FetchPurgatory(max_waiting=1)
    waits.wait([T0], 1, LONG_MS)
    with pytest.raises(OverloadedError):
        waits.wait([T0], 1, LONG_MS)
    waits.close()
    await asyncio.sleep(0)
