"""LOOP. ``LogDirExecutor``: one daemon thread that does a log dir's file work, first in, first out.

* A daemon thread, so that a disk that hangs cannot hold up the interpreter's exit.
* Bounded in operations and bytes; a full queue refuses at once.
* The loop is woken once per batch of completions, not once per operation.
* It remembers when the running operation began, and can be abandoned: everything waiting fails
  at once, and whatever the thread says later is not heard.
* An operation that *may be taken back* and has not begun can be failed at once; it never begins
  then, so that nothing is written after its caller was answered that nothing would be.

It is a ``concurrent.futures.Executor`` so that aiofiles can use it.
It does not judge errors: ``on_error`` sees them first, in the thread, and ``translate`` is asked
on the loop for what the waiter shall see.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from kraftjbod.core import buggify
from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock
from kraftjbod.storage.log_dirs.io_statistics import IoGroup, IoStatistics

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

_IDLE: Final = -1


@dataclass(slots=True, eq=False)
class _Job:
    """One operation on its way through the thread. ``done`` and ``settle`` are the loop's."""

    op: Callable[[], Any]
    settle: Callable[[Any], Any] | None
    translate: Callable[[BaseException], BaseException] | None
    on_error: Callable[[BaseException], None] | None
    done: Completion[Any]
    size_bytes: int
    group: IoGroup
    may_be_taken_back: bool
    #: The operation in words, for messages; an object whose ``str`` is only asked for then.
    what: object


_Done = tuple[_Job, Any, BaseException | None, int]
"""What was done, its result or its error, and how many ms that took."""


class LogDirExecutor(Executor):
    """One thread and its queue. Every method but ``beat`` is for the loop's thread."""

    def __init__(
        self,
        *,
        name: str,
        clock: Clock,
        max_ops: int = 20_000,
        max_bytes: int = 256 * 1024 * 1024,
        statistics: IoStatistics | None = None,
    ) -> None:
        self._name = name
        self._clock = clock
        self._statistics = statistics
        self._max_ops = max_ops
        self._max_bytes = max_bytes
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        #: The thread appends, the loop takes from the other end: that needs no lock.
        self._done: deque[_Done] = deque()
        #: Jobs that were taken in and not yet answered, oldest first. The loop's.
        self._waiting: dict[_Job, None] = {}
        #: Jobs that may be taken back and have not begun. The thread takes a job out when it
        #: begins it, the loop when it takes it back: whoever gets it may have it.
        self._not_begun: dict[_Job, None] = {}
        #: What jobs that may be taken back fail with when their turn comes; set by the thread.
        self._hold: Callable[[], BaseException] | None = None
        #: Called when an operation is queued, if set.
        self.on_begin: Callable[[], None] | None = None
        #: Called after answers were given, if set.
        self.on_answers: Callable[[], None] | None = None
        #: Called on the loop when the thread has ended, if set before; see :attr:`has_thread`.
        self.on_end: Callable[[], None] | None = None
        self._has_ended = False
        self._queued_bytes = 0
        #: Read by the loop, written by the thread: ``_IDLE`` or when the running op began.
        self._running_since_ms = _IDLE
        #: The job that began last; written by the thread.
        self._begun: _Job | None = None
        #: Of all operations so far; written by the thread.
        self.beats = 0
        #: (since when, how many ms): time of the running op in which this process stood still.
        self._excused = (_IDLE, 0)
        self._wakeup_sent = False
        self._refusal: Callable[[], BaseException] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __repr__(self) -> str:
        state = "abandoned" if self._refusal else f"waiting={len(self._waiting)}"
        return f"<LogDirExecutor {self._name} {state}>"

    @property
    def is_full(self) -> bool:
        """As many operations wait as may wait."""
        return len(self._waiting) >= self._max_ops

    @property
    def is_idle(self) -> bool:
        """Nothing waits, and nothing runs that was not answered."""
        return not self._waiting

    @property
    def is_running(self) -> bool:
        """An operation is in the thread; of one that was abandoned, too."""
        return self._running_since_ms != _IDLE

    @property
    def has_thread(self) -> bool:
        """The thread has begun, and not ended yet."""
        return self._loop is not None and not self._has_ended

    def submit_op(
        self,
        op: Callable[[], T],
        *,
        settle: Callable[[T], R] | None = None,
        translate: Callable[[BaseException], BaseException] | None = None,
        size_bytes: int = 0,
    ) -> asyncio.Future[R]:
        """:meth:`begin_op` for who waits in a task; cancelling the future takes nothing back."""
        done: Completion[R] = self.begin_op(
            op, settle=settle, translate=translate, size_bytes=size_bytes
        )
        return done.future()

    def begin_op(
        self,
        op: Callable[[], T],
        *,
        settle: Callable[[T], R] | None = None,
        translate: Callable[[BaseException], BaseException] | None = None,
        on_error: Callable[[BaseException], None] | None = None,
        size_bytes: int = 0,
        group: IoGroup = IoGroup.OTHER,
        may_be_taken_back: bool = False,
        what: object = "",
    ) -> Completion[R]:
        """Run ``op`` in the thread, then ``settle`` on the loop, whose say is the result.

        ``settle`` runs even if nobody waits any more, because the effect of an operation belongs
        to the operation. So does ``translate`` for what the op raised.
        ``on_error`` sees that before any other op runs; what it raises takes its place.

        :param what: the operation in words (``str(what)``) for :meth:`running_op`.
        :raises OverloadedError: if the queue is full.
        """
        if self._refusal is not None:
            raise self._refusal()
        waiting = len(self._waiting)
        if waiting >= self._max_ops or (
            size_bytes
            and waiting
            and (
                self._queued_bytes + size_bytes > self._max_bytes
                or (buggify.is_on and buggify.fires("storage.queue_full"))
            )
        ):
            raise OverloadedError(
                f"{self._name} has {waiting} operations waiting, {self._queued_bytes} bytes in all"
            )
        done: Completion[Any] = Completion()
        job = _Job(
            op, settle, translate, on_error, done, size_bytes, group, may_be_taken_back, what
        )
        self._waiting[job] = None
        if may_be_taken_back:
            self._not_begun[job] = None
        self._queued_bytes += size_bytes
        self._jobs.put(job)
        if self._loop is None:
            self._start()
        if self.on_begin is not None:
            self.on_begin()
        return done

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The ``concurrent.futures`` face of :meth:`submit_op`; the loop's thread only."""
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()
        inner: asyncio.Future[T] = self.submit_op(lambda: fn(*args, **kwargs))
        inner.add_done_callback(lambda done: _pass_on(done, outcome))
        return outcome

    def beat(self) -> None:
        """Called by a long operation between its steps: it is slow, not stuck."""
        self.beats += 1
        self._running_since_ms = self._clock.now_ms()

    def running_for_ms(self) -> int:
        """How long the operation in the thread has been running; 0 if there is none."""
        since_ms = self._running_since_ms
        if since_ms == _IDLE:
            return 0
        excused_since_ms, excused_ms = self._excused
        if excused_since_ms != since_ms:
            excused_ms = 0
        return max(0, self._clock.now_ms() - since_ms - excused_ms)

    def running_op(self) -> str:
        """Return the operation in the thread in words, such as ``flush``; empty if unknown."""
        job = self._begun
        return "" if job is None or self._running_since_ms == _IDLE else str(job.what)

    def excuse(self, stood_still_ms: int) -> None:
        """The whole process stood still: the running operation is not to blame for that time."""
        since_ms = self._running_since_ms
        excused_since_ms, excused_ms = self._excused
        so_far_ms = excused_ms if excused_since_ms == since_ms else 0
        longest_ms = max(0, self._clock.now_ms() - since_ms)
        self._excused = (since_ms, min(so_far_ms + stood_still_ms, longest_ms))

    def take_back(self, refusal: Callable[[], BaseException]) -> int:
        """Fail whatever may be taken back and has not begun; how many that were."""
        taken = 0
        for job in list(self._not_begun):
            if self._not_begun.pop(job, _ABSENT) is _ABSENT:
                continue  # The thread has just begun it.
            taken += 1
            del self._waiting[job]
            self._queued_bytes -= job.size_bytes
            job.op = _nothing  # It waits for its turn still, but not with its bytes.
            job.done.set_exception(refusal())
        return taken

    def hold_back(self, refusal: Callable[[], BaseException]) -> None:
        """Called in the thread: from now on, what may be taken back fails instead of beginning."""
        self._hold = refusal

    def let_go(self) -> None:
        """Undo :meth:`hold_back`, on the loop."""
        self._hold = None

    def abandon(self, refusal: Callable[[], BaseException]) -> None:
        """Fail everything that waits, and all that comes, with what ``refusal`` makes."""
        self._refusal = refusal
        self._jobs.put(None)
        waiting, self._waiting = self._waiting, {}
        self._not_begun.clear()
        for job in waiting:
            job.done.set_exception(refusal())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the thread end after what is queued. Waits only for a thread that is idle soon."""
        self._jobs.put(None)
        if wait and self._thread is not None and self._refusal is None:
            self._thread.join()

    def _start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None and self._refusal is None:
            if job.may_be_taken_back and self._not_begun.pop(job, _ABSENT) is _ABSENT:
                continue
            self._begun = job
            began_ms = self._running_since_ms = self._clock.now_ms()
            hold = self._hold if job.may_be_taken_back else None
            result, error = _carry_out(job.op, job.on_error) if hold is None else (None, hold())
            elapsed_ms = self._clock.now_ms() - began_ms
            self._running_since_ms = _IDLE
            self._hand_over((job, result, error, elapsed_ms))
        self._has_ended = True
        assert self._loop is not None
        if self.on_end is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.on_end)

    def _hand_over(self, done: _Done) -> None:
        self._done.append(done)
        if self._wakeup_sent:
            return  # The loop has not begun to look, and will find it.
        self._wakeup_sent = True
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        """On the loop: answer everything that is finished by now."""
        if buggify.is_on and buggify.fires("storage.late_answers"):
            assert self._loop is not None
            self._loop.call_soon(self._drain)
            return
        # First: what is done from now on wakes the loop anew.
        self._wakeup_sent = False
        for _ in range(len(self._done)):
            job, result, error, elapsed_ms = self._done.popleft()
            if self._waiting.pop(job, _ABSENT) is _ABSENT:
                continue  # Abandoned: answered already.
            self._queued_bytes -= job.size_bytes
            self._answer(job, result, error)
            if self._statistics is not None:
                is_error = isinstance(error, OSError)
                self._statistics.record(job.group, elapsed_ms, job.size_bytes, is_error=is_error)
        if self.on_answers is not None:
            self.on_answers()

    def _answer(self, job: _Job, result: Any, error: BaseException | None) -> None:
        try:
            if error is None:
                if job.settle is not None:
                    result = job.settle(result)
                job.done.set_result(result)
                return
            if job.translate is not None:
                error = job.translate(error)
        except Exception as bug:
            # Whoever waits hears of it, and so does the next in the batch of its own outcome.
            error = bug
        job.done.set_exception(error)


class ThreadCount:
    """How many threads of other executors are in operations on one dir's files.

    ``with`` counts the calling thread. ``on_none`` is called in the last one that leaves, if set.
    """

    __slots__ = ("_count", "_mutex", "on_none")

    def __init__(self) -> None:
        self._count = 0
        self._mutex = threading.Lock()
        self.on_none: Callable[[], None] | None = None

    def __bool__(self) -> bool:
        return self._count > 0

    def __enter__(self) -> None:
        with self._mutex:
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            self._count -= 1
            is_last = self._count == 0
        if is_last and self.on_none is not None:
            self.on_none()


class MakeExecutor(Protocol):
    """How whoever needs an executor gets one; outside of tests :class:`LogDirExecutor` itself."""

    def __call__(
        self,
        *,
        name: str,
        clock: Clock,
        max_ops: int = ...,
        max_bytes: int = ...,
        statistics: IoStatistics | None = None,
    ) -> LogDirExecutor: ...


_ABSENT: Final = object()


def _carry_out(
    op: Callable[[], T], on_error: Callable[[BaseException], None] | None
) -> tuple[T | None, BaseException | None]:
    """Its result, or its error. What it raises remembers this frame, so no future may be in it."""
    try:
        return op(), None
    except BaseException as e:
        return None, _after(e, on_error)


def _after(error: BaseException, on_error: Callable[[BaseException], None] | None) -> BaseException:
    if on_error is not None:
        try:
            on_error(error)
        except BaseException as worse:
            return worse
    return error


def _nothing() -> None:
    """What a job does that was taken back."""


def _pass_on(done: asyncio.Future[T], outcome: Future[T]) -> None:
    if done.cancelled():
        outcome.cancel()
    elif error := done.exception():
        outcome.set_exception(error)
    else:
        outcome.set_result(done.result())
