"""LOOP. ``LogDirExecutor``: one daemon thread that runs a log directory's operations in order.

* The thread is a daemon, so that a hanging disk cannot delay the exit of the interpreter
  (ADR 3).
* The queue is bounded in operations and bytes. A full queue refuses new operations at once.
* The event loop is woken once per batch of completions, not once per operation.
* The executor measures how long the running operation has been running.
* The executor can be abandoned. Then all pending operations fail at once, and later results of
  the thread are ignored.
* An operation that *may be taken back* can be failed at once if it has not started. It never starts
  then, so nothing is written after its caller got an error.

The class is a ``concurrent.futures.Executor`` so that aiofiles can use it. It does not judge
errors. After an error, the callback ``on_error`` runs in the thread. Then ``translate`` runs on the
event loop and returns the caller's exception.
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
    """One queued operation. Only the event loop uses ``done``, ``settle`` and ``translate``."""

    op: Callable[[], Any]
    settle: Callable[[Any], Any] | None
    translate: Callable[[BaseException], BaseException] | None
    on_error: Callable[[BaseException], None] | None
    done: Completion[Any]
    size_bytes: int
    group: IoGroup
    may_be_taken_back: bool
    #: Description of the operation for messages. Its ``str`` is computed only when needed.
    what: object


_Done = tuple[_Job, Any, BaseException | None, int]
"""An operation, its result or its error, and its duration in ms."""


class LogDirExecutor(Executor):
    """Runs the operations of one log directory in one thread, in the order of their submission,
    with a bounded queue.

    All methods run on the event loop, except :meth:`beat` and :meth:`hold_back`.
    """

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
        #: The thread appends and the event loop takes from the other end, so no lock is needed.
        self._done: deque[_Done] = deque()
        #: Accepted jobs without an answer, oldest first. Only the event loop uses it.
        self._waiting: dict[_Job, None] = {}
        #: Jobs that may be taken back and have not started. The thread pops a job to start it, the
        #: event loop pops it to take it back: the first pop wins.
        self._not_begun: dict[_Job, None] = {}
        #: Creates the error of jobs that may be taken back; set by the thread.
        self._hold: Callable[[], BaseException] | None = None
        #: Called when an operation is queued, if set.
        self.on_begin: Callable[[], None] | None = None
        #: Called after a batch of answers, if set.
        self.on_answers: Callable[[], None] | None = None
        #: Called on the event loop when the thread has ended; see :attr:`has_thread`.
        self.on_end: Callable[[], None] | None = None
        self._has_ended = False
        self._queued_bytes = 0
        #: Start of the running operation in ms, or ``_IDLE``; written by the thread.
        self._running_since_ms = _IDLE
        #: The job that started last; written by the thread.
        self._begun: _Job | None = None
        #: Number of beats of all operations; written by the thread.
        self.beats = 0
        #: (start of an operation, ms of it during which this process was paused).
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
        """Whether as many operations as allowed are queued or running. The limit of bytes is not
        considered.
        """
        return len(self._waiting) >= self._max_ops

    @property
    def is_idle(self) -> bool:
        """Whether every accepted operation was answered."""
        return not self._waiting

    @property
    def is_running(self) -> bool:
        """Whether the thread runs an operation, even after :meth:`abandon`."""
        return self._running_since_ms != _IDLE

    @property
    def has_thread(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self._loop is not None and not self._has_ended

    def submit_op(
        self,
        op: Callable[[], T],
        *,
        settle: Callable[[T], R] | None = None,
        translate: Callable[[BaseException], BaseException] | None = None,
        size_bytes: int = 0,
    ) -> asyncio.Future[R]:
        """Queue ``op`` as :meth:`begin_op` does, with the same errors, and return a future of the
        answer.

        Cancelling the future does not cancel ``op``.
        """
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
        is_last: bool = False,
    ) -> Completion[R]:
        """Queue ``op`` for the thread and return the completion of the answer.

        ``settle`` and ``translate`` run on the event loop even if the caller stopped waiting,
        because they publish the effects of the operation.

        :param settle: returns the answer for the result of ``op``.
        :param translate: returns the caller's exception for the exception of ``op``.
        :param on_error: called in the thread with the exception, before the next operation starts.
            An exception of the callback replaces the first one.
        :param size_bytes: memory that the operation holds until it is answered. One operation of
            any size is accepted if no other one is waiting.
        :param group: the counters of the statistics that the operation belongs to.
        :param may_be_taken_back: whether :meth:`take_back` and :meth:`hold_back` may fail it.
        :param what: description of the operation (``str(what)``) for :meth:`running_op`.
        :param is_last: whether :meth:`shutdown` follows. A full queue takes this one operation.
        :raises OverloadedError: the queue is full. After :meth:`abandon`, its error is raised.
        """
        if self._refusal is not None:
            raise self._refusal()
        waiting = len(self._waiting)
        if waiting >= self._max_ops + is_last or (
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
        """Queue ``fn`` for the thread (``concurrent.futures.Executor``), with the errors of
        :meth:`begin_op`.

        Call it only on the event loop. Cancelling the future does not cancel ``fn``.
        """
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()
        inner: asyncio.Future[T] = self.submit_op(lambda: fn(*args, **kwargs))
        inner.add_done_callback(lambda done: _pass_on(done, outcome))
        return outcome

    def beat(self) -> None:
        """Report progress of the running operation from its thread, so that its running time
        restarts at 0.
        """
        self.beats += 1
        self._running_since_ms = self._clock.now_ms()

    def running_for_ms(self) -> int:
        """Milliseconds since the running operation started or last beat, without pauses; 0 if none
        runs.
        """
        since_ms = self._running_since_ms
        if since_ms == _IDLE:
            return 0
        excused_since_ms, excused_ms = self._excused
        if excused_since_ms != since_ms:
            excused_ms = 0
        return max(0, self._clock.now_ms() - since_ms - excused_ms)

    def running_op(self) -> str:
        """Describe the running operation, such as ``flush``; empty if none runs."""
        job = self._begun
        return "" if job is None or self._running_since_ms == _IDLE else str(job.what)

    def excuse(self, paused_ms: int) -> None:
        """Subtract ``paused_ms``, a pause of the whole process, from the time of the running
        operation.
        """
        since_ms = self._running_since_ms
        excused_since_ms, excused_ms = self._excused
        so_far_ms = excused_ms if excused_since_ms == since_ms else 0
        longest_ms = max(0, self._clock.now_ms() - since_ms)
        self._excused = (since_ms, min(so_far_ms + paused_ms, longest_ms))

    def take_back(self, refusal: Callable[[], BaseException]) -> int:
        """Fail the operations that may be taken back and have not started. Return their number.

        :param refusal: creates the error of each operation.
        """
        taken = 0
        for job in list(self._not_begun):
            if self._not_begun.pop(job, _ABSENT) is _ABSENT:
                continue  # The thread has just started it.
            taken += 1
            del self._waiting[job]
            self._queued_bytes -= job.size_bytes
            job.op = _do_nothing  # The job stays in the queue, but its memory is released.
            job.done.set_exception(refusal())
        return taken

    @property
    def queued_bytes(self) -> int:
        """Bytes of the operations that are queued, and of the running one."""
        return self._queued_bytes

    def hold_back(self, refusal: Callable[[], BaseException]) -> None:
        """Fail operations that may be taken back instead of starting them, until :meth:`let_go`.

        Called in the thread. ``refusal`` creates the error of each operation.
        """
        self._hold = refusal

    def let_go(self) -> None:
        """Start operations again that may be taken back: undo :meth:`hold_back`. Called on the
        event loop.
        """
        self._hold = None

    def abandon(self, refusal: Callable[[], BaseException]) -> None:
        """Fail all pending and all future operations with the error that ``refusal`` creates.

        The running operation fails too; its later result is ignored, and its thread ends then.
        """
        self._refusal = refusal
        self._jobs.put(None)
        waiting, self._waiting = self._waiting, {}
        self._not_begun.clear()
        for job in waiting:
            job.done.set_exception(refusal())

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the thread end after the queued operations. Later operations never get an answer.

        With ``wait``, block until the thread has ended, unless it was abandoned. ``cancel_futures``
        has no effect.
        """
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
            self._post_result((job, result, error, elapsed_ms))
        self._has_ended = True
        assert self._loop is not None
        if self.on_end is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.on_end)

    def _post_result(self, done: _Done) -> None:
        self._done.append(done)
        if self._wakeup_sent:
            return  # The event loop has not drained the results yet and will include this one.
        self._wakeup_sent = True
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        """Answer the operations that the thread has finished. Runs on the event loop."""
        if buggify.is_on and buggify.fires("storage.late_answers"):
            assert self._loop is not None
            self._loop.call_soon(self._drain)
            return
        # Reset this first: an operation that finishes during the loop needs another wake-up.
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
            # The caller gets the bug's exception, and the other operations still get answers.
            error = bug
        job.done.set_exception(error)


class ThreadCount:
    """Number of threads of other executors that now run operations on one directory's files.

    Each thread enters the object with ``with``. ``on_none``, if set, is called in the last thread
    that leaves.
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
    """Factory of executors: :class:`LogDirExecutor` itself, except in tests."""

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
    """Run ``op``. Return its result and None, or None and its error.

    The traceback of the error refers to this frame, so no local variable here may be a future.
    """
    try:
        return op(), None
    except BaseException as e:
        return None, _error_after(e, on_error)


def _error_after(
    error: BaseException, on_error: Callable[[BaseException], None] | None
) -> BaseException:
    if on_error is not None:
        try:
            on_error(error)
        except BaseException as worse:
            return worse
    return error


def _do_nothing() -> None:
    """Operation of a job that was taken back."""


def _pass_on(done: asyncio.Future[T], outcome: Future[T]) -> None:
    if done.cancelled():
        outcome.cancel()
    elif error := done.exception():
        outcome.set_exception(error)
    else:
        outcome.set_result(done.result())
