"""``LogDirExecutor``: order, batches of results, revoked operations and abandonment."""

from __future__ import annotations

import asyncio
import gc
import threading
from errno import EIO
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError, OverloadedError
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.io_statistics import IoGroup, IoStatistics
from tests.faults.rig import ManualClock


def make() -> LogDirExecutor:
    return LogDirExecutor(name="x", clock=ManualClock())


async def test_dir_executor_runs_operations_in_order_in_one_daemon_thread() -> None:
    executor, ran = make(), []

    def op(i: int) -> None:
        ran.append((i, threading.current_thread()))

    await asyncio.gather(*(executor.submit_op(lambda i=i: op(i)) for i in range(100)))
    assert [i for i, _ in ran] == list(range(100))
    (thread,) = {thread for _, thread in ran}
    assert thread.daemon
    executor.shutdown()
    assert not thread.is_alive()


async def test_dir_executor_delivers_a_batch_of_results_in_one_wake_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executor, hold, is_last, hold_last = make(), *(threading.Event() for _ in range(3))
    loop, wake_ups = asyncio.get_running_loop(), []
    wake_up = loop.call_soon_threadsafe

    def counted(*args: Any) -> asyncio.Handle:
        wake_ups.append(args)
        return wake_up(*args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
    futures = [executor.submit_op(hold.wait)] + [executor.submit_op(int) for _ in range(50)]
    last = executor.submit_op(lambda: (is_last.set(), hold_last.wait()))
    hold.set()
    # The thread finishes all operations but the last one within one event loop iteration.
    is_last.wait()
    await asyncio.gather(*futures)
    assert len(wake_ups) == 1
    hold_last.set()
    await last
    executor.shutdown()


async def test_dir_executor_returns_results_and_errors_of_run_in_executor() -> None:
    executor = make()
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(executor, pow, 2, 5) == 32
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(executor, lambda: 1 / 0)
    executor.shutdown()


async def test_dir_executor_abandon_fails_all_operations_and_discards_late_results() -> None:
    executor, hold = make(), threading.Event()
    settled: list[object] = []
    stuck = executor.submit_op(hold.wait, settle=settled.append)
    queued = executor.submit_op(int)
    foreign = asyncio.wrap_future(executor.submit(int))
    executor.abandon(lambda: KafkaStorageError("dead"))
    for future in (stuck, queued, foreign):
        with pytest.raises(KafkaStorageError, match="dead"):
            await future
    with pytest.raises(KafkaStorageError):
        executor.submit_op(int)
    hold.set()
    while executor.has_thread:
        threading.Event().wait(0.001)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert settled == []


@pytest.mark.parametrize(
    ("error", "complaints"), [(KafkaStorageError("dead"), 0), (AssertionError("a bug"), 1)]
)
async def test_dir_executor_failure_without_waiter_is_reported_only_if_unexpected(
    error: Exception, complaints: int
) -> None:
    """The daemons treat an error reported by the event loop as a bug, and stop."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: reported.append(context)
    )
    executor, hold = make(), threading.Event()

    def op() -> None:
        hold.wait()
        raise error

    waiting = asyncio.ensure_future(asyncio.shield(executor.submit_op(op)))
    await asyncio.sleep(0)
    waiting.cancel()
    hold.set()
    await executor.submit_op(int)
    del waiting
    gc.collect()
    assert len(reported) == complaints
    executor.shutdown()


async def test_dir_executor_take_back_prevents_pending_operations() -> None:
    executor, hold, ran = make(), threading.Event(), []
    running = executor.begin_op(hold.wait, may_be_taken_back=True)
    while not executor.is_running:
        await asyncio.sleep(0.001)
    doomed = [
        executor.begin_op(lambda: ran.append("doomed"), size_bytes=100, may_be_taken_back=True)
        for _ in range(3)
    ]
    kept = executor.submit_op(lambda: ran.append("kept"))
    assert executor.take_back(lambda: KafkaStorageError("elsewhere")) == 3
    for future in doomed:
        with pytest.raises(KafkaStorageError, match="elsewhere"):
            await future
    assert not running.done(), "an operation that has begun continues"
    assert executor.queued_bytes == 0
    hold.set()
    assert await running
    await kept
    assert ran == ["kept"]
    assert executor.take_back(lambda: KafkaStorageError("elsewhere")) == 0
    await executor.begin_op(lambda: ran.append("later"), may_be_taken_back=True)
    assert ran == ["kept", "later"]
    executor.shutdown()


async def test_dir_executor_take_back_and_start_exclude_each_other() -> None:
    """An operation either ran and its waiter got the result, or never ran."""
    executor, ran = make(), []
    futures = {
        i: executor.begin_op(lambda i=i: ran.append(i), may_be_taken_back=True) for i in range(5000)
    }
    taken = 0
    while not all(future.done() for future in futures.values()):
        await asyncio.sleep(0)
        if len(ran) > 1000:
            taken += executor.take_back(lambda: KafkaStorageError("elsewhere"))
    executor.shutdown()
    completed = [i for i, future in futures.items() if future.exception() is None]
    assert ran == completed
    assert taken == len(futures) - len(ran)
    assert executor.queued_bytes == 0


async def test_dir_executor_hold_back_fails_only_operations_that_may_be_taken_back() -> None:
    executor, ran = make(), []

    def fill_up() -> None:
        executor.hold_back(lambda: KafkaStorageError("full"))
        ran.append("fill")

    executor.submit_op(fill_up)
    refused = executor.begin_op(lambda: ran.append("write"), may_be_taken_back=True)
    await executor.submit_op(lambda: ran.append("read"))
    with pytest.raises(KafkaStorageError, match="full"):
        await refused
    executor.let_go()
    await executor.begin_op(lambda: ran.append("write again"), may_be_taken_back=True)
    assert ran == ["fill", "read", "write again"]
    executor.shutdown()


async def test_dir_executor_calls_on_error_before_the_next_operation() -> None:
    executor, seen = make(), []

    def fail() -> None:
        raise OSError(5, "on demand")

    failed = executor.begin_op(fail, on_error=lambda e: seen.append((e.errno, "seen")))
    await executor.submit_op(lambda: seen.append("next"))
    assert seen == [(5, "seen"), "next"]
    with pytest.raises(OSError, match="on demand"):
        await failed

    def worse(_error: BaseException) -> None:
        raise OSError(28, "worse")

    with pytest.raises(OSError, match="worse"):
        await executor.begin_op(fail, on_error=worse)
    executor.shutdown()


async def test_dir_executor_counts_operations_with_duration_and_size() -> None:
    clock, statistics = ManualClock(), IoStatistics()
    executor = LogDirExecutor(name="x", clock=clock, statistics=statistics)

    def slow() -> None:
        clock.ms += 40

    def fail() -> None:
        raise OSError(5, "on demand")

    await executor.begin_op(slow, size_bytes=7, group=IoGroup.WRITE)
    with pytest.raises(OSError, match="on demand"):
        await executor.begin_op(fail, group=IoGroup.READ)
    written, read = statistics.figures_of(IoGroup.WRITE), statistics.figures_of(IoGroup.READ)
    assert (written.operations, written.total_ms, written.size_bytes) == (1, 40, 7)
    assert (read.operations, read.errors) == (1, 1)
    executor.shutdown()


async def test_dir_executor_excuse_subtracts_paused_time_of_the_running_operation_only() -> None:
    clock = ManualClock()
    executor, hold = LogDirExecutor(name="x", clock=clock), threading.Event()
    running = executor.submit_op(hold.wait)
    while not executor.is_running:
        await asyncio.sleep(0.001)
    clock.ms += 500
    executor.excuse(300)
    executor.excuse(100)
    assert executor.running_for_ms() == 100
    executor.excuse(9000)
    clock.ms += 70
    assert executor.running_for_ms() == 70, "time to come is not excused"
    hold.set()
    await running
    hold.clear()
    clock.ms += 1
    again = executor.submit_op(hold.wait)
    while not executor.is_running:
        await asyncio.sleep(0.001)
    clock.ms += 500
    assert executor.running_for_ms() == 500
    hold.set()
    await again
    executor.shutdown()


async def test_dir_executor_error_in_settle_or_translate_fails_only_its_caller() -> None:
    """Later results of the same batch were lost."""
    executor, hold = make(), threading.Event()
    first = executor.submit_op(hold.wait)
    unsettled = executor.submit_op(int, settle=lambda result: 1 // result)
    untranslated = executor.submit_op(lambda: [][0], translate=lambda error: {}["no"])
    cancelled = executor.submit_op(int, settle=lambda result: 1 // result)
    cancelled.cancel()

    def fail() -> None:
        raise OSError(EIO, "the disk failed")

    late = executor.submit_op(fail)
    late.set_exception(OverloadedError("as log_dir.py answers operations of other threads"))
    late.exception()
    last = executor.submit_op(lambda: 7)
    with capture_logs() as logged:
        hold.set()
        assert await last == 7
    assert await first
    with pytest.raises(ZeroDivisionError):
        await unsettled
    with pytest.raises(KeyError):
        await untranslated
    (event,) = logged
    assert event["event"] == "unheard_operation_failed"
    assert isinstance(event["exc_info"], ZeroDivisionError)
    executor.shutdown()
