"""LogDirExecutor: order, batches, abandoning."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from kraftjbod.core.errors import KafkaStorageError
from kraftjbod.storage.dir_executor import LogDirExecutor
from tests.faults.rig import ManualClock


def make() -> LogDirExecutor:
    return LogDirExecutor(name="x", clock=ManualClock())


async def test_first_in_first_out_in_one_daemon_thread():
    executor, ran = make(), []

    def op(i: int) -> None:
        ran.append((i, threading.current_thread()))

    await asyncio.gather(*(executor.submit_op(lambda i=i: op(i)) for i in range(100)))
    assert [i for i, _ in ran] == list(range(100))
    (thread,) = {thread for _, thread in ran}
    assert thread.daemon
    executor.shutdown()
    assert not thread.is_alive()


async def test_one_wake_up_answers_a_batch():
    executor, hold = make(), threading.Event()
    futures = [executor.submit_op(hold.wait)] + [executor.submit_op(int) for _ in range(50)]
    loop, calls = asyncio.get_running_loop(), []
    drain = executor._drain
    executor._drain = lambda: (calls.append(1), drain())[1]  # type: ignore[method-assign]
    hold.set()
    # The thread is done with all of it before the loop looks once.
    while len(executor._done) < 51:
        threading.Event().wait(0.001)
    await asyncio.gather(*futures)
    assert len(calls) == 1
    assert loop is asyncio.get_running_loop()
    executor.shutdown()


async def test_as_an_executor_for_the_loop():
    executor = make()
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(executor, pow, 2, 5) == 32
    with pytest.raises(ZeroDivisionError):
        await loop.run_in_executor(executor, lambda: 1 / 0)
    executor.shutdown()


async def test_abandoned_executor_answers_everyone_and_hears_nothing_more():
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
    assert executor._thread is not None
    executor._thread.join()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert settled == []


@pytest.mark.parametrize(
    ("error", "complaints"), [(KafkaStorageError("dead"), 0), (AssertionError("a bug"), 1)]
)
async def test_what_fails_after_its_waiter_has_gone_is_news_only_if_it_is_a_bug(
    error: Exception, complaints: int
):
    """The daemons take what the loop complains of for a bug, and stop."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context))
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
    assert len(told) == complaints
    executor.shutdown()
