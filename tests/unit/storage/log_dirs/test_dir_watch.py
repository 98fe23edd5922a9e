"""DirWatch: suspicion, answers, the end, and a process that stood still."""

from __future__ import annotations

import asyncio
import threading

from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.dir_watch import DirWatch
from tests.faults.rig import ManualClock


class Scene:
    """Two queues on a clock that stands still, and what their watch says."""

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

    async def until_reported(self, count: int) -> None:
        while len(self.reported) < count:
            await asyncio.sleep(0.001)


async def test_a_suspicion_is_reported_once_and_so_is_its_end() -> None:
    scene = Scene()
    hold = await scene.hang(1)
    scene.watch.start()
    scene.clock.ms += 101
    await scene.until_reported(1)
    scene.clock.ms += 200
    checks = scene.checks
    while scene.checks < checks + 20:
        await asyncio.sleep(0.001)
    assert scene.reported == ["suspect 101"]
    assert scene.watch.is_suspicious
    hold.set()
    await scene.until_reported(2)
    assert scene.reported == ["suspect 101", "answer"]
    scene.watch.stop()


async def test_the_answer_is_heard_before_whoever_waited_for_it_goes_on() -> None:
    scene = Scene()
    hold = await scene.hang()
    behind = scene.queues[0].submit_op(lambda: 5)
    scene.watch.start()
    scene.clock.ms += 101
    await scene.until_reported(1)
    hold.set()
    assert await behind == 5
    assert scene.reported[-1] == "answer"
    scene.watch.stop()


async def test_one_queue_that_answers_does_not_speak_for_the_other() -> None:
    scene = Scene()
    first, second = await scene.hang(0), await scene.hang(1)
    scene.watch.start()
    scene.clock.ms += 101
    await scene.until_reported(1)
    first.set()
    assert await scene.queues[0].submit_op(lambda: 1) == 1
    assert scene.reported == ["suspect 101"]
    second.set()
    await scene.until_reported(2)
    scene.watch.stop()


async def test_each_queue_is_suspected_after_a_time_of_its_own() -> None:
    scene = Scene(patience_ms=500)
    hold = await scene.hang(1)
    scene.watch.start()
    scene.clock.ms += 400
    checks = scene.checks
    while scene.checks < checks + 50:
        await asyncio.sleep(0.001)
    assert scene.reported == []
    scene.clock.ms += 101
    await scene.until_reported(1)
    assert scene.reported == ["suspect 501"]
    hold.set()
    await scene.until_reported(2)
    scene.watch.stop()


async def test_what_never_ends_is_given_up() -> None:
    scene = Scene()
    hold = await scene.hang()
    scene.watch.start()
    scene.clock.ms += 1001
    await scene.until_reported(1)
    assert scene.reported == ["hung 1001"]
    hold.set()


async def test_a_process_that_stood_still_blames_nobody_for_it() -> None:
    scene = Scene()
    hold = await scene.hang()
    scene.watch.start()
    for _ in range(2):
        due = scene.watch._next_poll
        assert due is not None
        due.cancel()
        # As after SIGSTOP: the check that was due 600 ms ago comes now, and the clock went on.
        due._when -= 0.6
        scene.clock.ms += 600
        scene.watch._poll_on_time()
    assert scene.reported == []
    assert scene.watch.running_ms() <= 100
    scene.clock.ms += 101
    await scene.until_reported(1)
    assert scene.reported[0].startswith("suspect")
    hold.set()
    scene.watch.stop()


async def test_an_answer_that_comes_first_after_a_standstill_blames_nobody_either() -> None:
    scene = Scene()
    first, second = await scene.hang(0), await scene.hang(1)
    scene.watch.start()
    scene.clock.ms += 101
    await scene.until_reported(1)
    due = scene.watch._next_poll
    assert due is not None
    due.cancel()
    due._when -= 5
    scene.clock.ms += 5000
    first.set()
    assert await scene.queues[0].submit_op(lambda: 1) == 1
    assert scene.reported == ["suspect 101"]
    second.set()
    await scene.until_reported(2)
    assert scene.reported == ["suspect 101", "answer"]
    scene.watch.stop()


async def test_nothing_is_reported_after_the_stop() -> None:
    scene = Scene()
    hold = await scene.hang()
    scene.watch.start()
    scene.clock.ms += 101
    await scene.until_reported(1)
    scene.watch.stop()
    hold.set()
    await scene.queues[0].submit_op(lambda: None)
    assert scene.reported == ["suspect 101"]
    assert not scene.watch.is_suspicious


async def test_watch_of_idle_queues_has_no_timer_until_an_operation_begins() -> None:
    scene = Scene()
    scene.watch.start()
    assert scene.watch._next_poll is None
    hold = await scene.hang()
    assert scene.watch._next_poll is not None
    scene.clock.ms += 101
    await scene.until_reported(1)
    hold.set()
    await scene.until_reported(2)
    while scene.watch._next_poll is not None:
        await asyncio.sleep(0.001)
    scene.watch.stop()
    hold = await scene.hang()
    assert scene.watch._next_poll is None
    hold.set()
