"""``DirWatch``: suspicion, recovery, timeout, and pauses of the process."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.dir_watch import DirWatch
from tests.faults.rig import ManualClock


class Watched:
    """Two executors with a manual clock, and the reports of their watch."""

    def __init__(self, *, patience_ms: int = 100) -> None:
        self.clock = ManualClock()
        self.queues = [LogDirExecutor(name=name, clock=self.clock) for name in "ab"]
        self.reported: list[str] = []
        self.checks = 0
        self.watch = DirWatch(
            self,
            {self.queues[0]: 100, self.queues[1]: patience_ms},
            timeout_ms=1000,
            check_interval_ms=1,
        )

    def on_suspect(self, running_ms: int) -> None:
        self.reported.append(f"suspect {running_ms}")

    def on_answer(self) -> None:
        self.reported.append("answer")

    def on_hung(self, running_ms: int) -> None:
        self.reported.append(f"hung {running_ms}")
        self.watch.stop()

    def check_disk(self) -> None:
        self.checks += 1

    async def hang(self, queue: int = 0) -> threading.Event:
        began, hold = threading.Event(), threading.Event()

        def op() -> None:
            began.set()
            hold.wait()

        self.queues[queue].submit_op(op)
        await asyncio.to_thread(began.wait)
        return hold

    @property
    def waits_for_operations(self) -> bool:
        """Whether the watch has no timer, and a queue calls it when an operation begins."""
        return all(queue.on_begin is not None for queue in self.queues)

    def pause(self, late_ms: int) -> None:
        """Block the event loop while the clock advances, as a SIGSTOP does."""
        began_s = time.monotonic()
        time.sleep(late_ms / 1000)
        self.clock.ms += int((time.monotonic() - began_s) * 1000)

    async def until_reported(self, count: int) -> None:
        while len(self.reported) < count:
            await asyncio.sleep(0.001)


async def test_dir_watch_reports_a_suspicion_and_its_end_once() -> None:
    watched = Watched()
    hold = await watched.hang(1)
    watched.watch.start()
    watched.clock.ms += 101
    await watched.until_reported(1)
    watched.clock.ms += 200
    checks = watched.checks
    while watched.checks < checks + 20:
        await asyncio.sleep(0.001)
    assert watched.reported == ["suspect 101"]
    assert watched.watch.is_suspicious
    hold.set()
    await watched.until_reported(2)
    assert watched.reported == ["suspect 101", "answer"]
    watched.watch.stop()


async def test_dir_watch_reports_an_answer_before_the_waiting_caller_continues() -> None:
    watched = Watched()
    hold = await watched.hang()
    behind = watched.queues[0].submit_op(lambda: 5)
    watched.watch.start()
    watched.clock.ms += 101
    await watched.until_reported(1)
    hold.set()
    assert await behind == 5
    assert watched.reported[-1] == "answer"
    watched.watch.stop()


async def test_dir_watch_stays_suspicious_while_another_queue_hangs() -> None:
    watched = Watched()
    first, second = await watched.hang(0), await watched.hang(1)
    watched.watch.start()
    watched.clock.ms += 101
    await watched.until_reported(1)
    first.set()
    assert await watched.queues[0].submit_op(lambda: 1) == 1
    assert watched.reported == ["suspect 101"]
    second.set()
    await watched.until_reported(2)
    watched.watch.stop()


async def test_dir_watch_limit_is_configured_per_queue() -> None:
    watched = Watched(patience_ms=500)
    hold = await watched.hang(1)
    watched.watch.start()
    watched.clock.ms += 400
    checks = watched.checks
    while watched.checks < checks + 50:
        await asyncio.sleep(0.001)
    assert watched.reported == []
    watched.clock.ms += 101
    await watched.until_reported(1)
    assert watched.reported == ["suspect 501"]
    hold.set()
    await watched.until_reported(2)
    watched.watch.stop()


async def test_dir_watch_reports_hung_after_the_timeout() -> None:
    watched = Watched()
    hold = await watched.hang()
    watched.watch.start()
    watched.clock.ms += 1001
    await watched.until_reported(1)
    assert watched.reported == ["hung 1001"]
    hold.set()


@pytest.mark.parametrize(("times", "late_ms"), [(2, 600), (6, 200)])
async def test_dir_watch_excludes_the_time_of_a_paused_process(times: int, late_ms: int) -> None:
    """A process that is short of CPU time pauses for shorter times, but again and again."""
    watched = Watched()
    hold = await watched.hang()
    watched.watch.start()
    for _ in range(times):
        watched.pause(late_ms)
        while watched.watch.running_ms() > 100:
            assert watched.reported == []
            await asyncio.sleep(0)
    assert watched.reported == []
    watched.clock.ms += 101
    await watched.until_reported(1)
    assert watched.reported[0].startswith("suspect")
    hold.set()
    watched.watch.stop()


async def test_dir_watch_excludes_a_pause_if_an_answer_arrives_before_the_check() -> None:
    watched = Watched()
    first, second = await watched.hang(0), await watched.hang(1)
    watched.watch.start()
    watched.clock.ms += 101
    await watched.until_reported(1)
    first.set()
    watched.pause(600)
    assert await watched.queues[0].submit_op(lambda: 1) == 1
    assert watched.reported == ["suspect 101"]
    second.set()
    await watched.until_reported(2)
    assert watched.reported == ["suspect 101", "answer"]
    watched.watch.stop()


async def test_dir_watch_reports_nothing_after_stop() -> None:
    watched = Watched()
    hold = await watched.hang()
    watched.watch.start()
    watched.clock.ms += 101
    await watched.until_reported(1)
    watched.watch.stop()
    hold.set()
    await watched.queues[0].submit_op(lambda: None)
    assert watched.reported == ["suspect 101"]
    assert not watched.watch.is_suspicious


async def test_dir_watch_of_idle_queues_has_no_timer() -> None:
    watched = Watched()
    watched.watch.start()
    assert watched.waits_for_operations
    hold = await watched.hang()
    assert not watched.waits_for_operations
    watched.clock.ms += 101
    await watched.until_reported(1)
    hold.set()
    await watched.until_reported(2)
    while not watched.waits_for_operations:
        await asyncio.sleep(0.001)
    watched.watch.stop()
    assert not watched.waits_for_operations
    hold = await watched.hang()
    watched.clock.ms += 5000
    hold.set()
    await watched.queues[0].submit_op(lambda: None)
    assert watched.reported == ["suspect 101", "answer"]
