"""``LogDirExecutor``: one daemon thread that does a log dir's file work, first in, first out.

* A daemon thread, so that a disk that hangs cannot hold up the interpreter's exit.
* Bounded in operations and bytes; a full queue refuses at once.
* The loop is woken once per batch of completions, not once per operation.
* It remembers when the running operation began, and can be abandoned: everything waiting fails
  at once, and whatever the thread says later is not heard.

It is a ``concurrent.futures.Executor`` so that aiofiles can use it.
It does not judge errors: ``translate`` is asked for what the waiter shall see.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar

from kraftjbod.core.errors import OperatingError, OverloadedError
from kraftjbod.core.timing import Clock

T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")

_IDLE: Final = -1


class _Job(NamedTuple):
    """One operation on its way through the thread. ``future`` and ``settle`` are the loop's."""

    op: Callable[[], Any]
    settle: Callable[[Any], Any] | None
    translate: Callable[[BaseException], BaseException] | None
    future: asyncio.Future[Any]
    size_bytes: int


class _Done(NamedTuple):
    job: _Job
    result: Any
    error: BaseException | None


class LogDirExecutor(Executor):
    """One thread and its queue. Every method but ``beat`` is for the loop's thread."""

    def __init__(
        self,
        *,
        name: str,
        clock: Clock,
        max_ops: int = 20_000,
        max_bytes: int = 256 * 1024 * 1024,
    ) -> None:
        self._name = name
        self._clock = clock
        self._max_ops = max_ops
        self._max_bytes = max_bytes
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: deque[_Done] = deque()
        #: Futures of jobs that were taken in and not yet answered, oldest first. The loop's.
        self._waiting: dict[asyncio.Future[Any], None] = {}
        self._queued_bytes = 0
        #: Read by the loop, written by the thread: ``_IDLE`` or when the running op began.
        self._running_since_ms = _IDLE
        self._wakeup_sent = False
        self._wakeup_lock = threading.Lock()
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

    def submit_op(
        self,
        op: Callable[[], T],
        *,
        settle: Callable[[T], R] | None = None,
        translate: Callable[[BaseException], BaseException] | None = None,
        size_bytes: int = 0,
    ) -> asyncio.Future[R]:
        """Run ``op`` in the thread, then ``settle`` on the loop; the future holds the latter's say.

        ``settle`` runs even if the future was cancelled meanwhile, because the effect of an
        operation belongs to the operation. So does ``translate`` for what the op raised.

        :raises OverloadedError: if the queue is full.
        """
        if self._refusal is not None:
            raise self._refusal()
        if self.is_full or (
            size_bytes and self._waiting and self._queued_bytes + size_bytes > self._max_bytes
        ):
            raise OverloadedError(
                f"{self._name} has {len(self._waiting)} operations waiting, "
                f"{self._queued_bytes} bytes in all"
            )
        if self._loop is None:
            self._start()
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting[future] = None
        self._queued_bytes += size_bytes
        self._jobs.put(_Job(op, settle, translate, future, size_bytes))
        return future

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The ``concurrent.futures`` face of :meth:`submit_op`; the loop's thread only."""
        outcome: Future[T] = Future()
        outcome.set_running_or_notify_cancel()
        inner: asyncio.Future[T] = self.submit_op(lambda: fn(*args, **kwargs))
        inner.add_done_callback(lambda done: _pass_on(done, outcome))
        return outcome

    def beat(self) -> None:
        """Called by a long operation between its steps: it is slow, not stuck."""
        self._running_since_ms = self._clock.now_ms()

    def running_for_ms(self) -> int:
        """How long the operation in the thread has been running; 0 if there is none."""
        since_ms = self._running_since_ms
        return 0 if since_ms == _IDLE else max(0, self._clock.now_ms() - since_ms)

    def abandon(self, refusal: Callable[[], BaseException]) -> None:
        """Fail everything that waits, and all that comes, with what ``refusal`` makes."""
        self._refusal = refusal
        self._jobs.put(None)
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            _fail(future, refusal())

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
            self._running_since_ms = self._clock.now_ms()
            try:
                done = _Done(job, job.op(), None)
            except BaseException as e:
                done = _Done(job, None, e)
            self._running_since_ms = _IDLE
            self._hand_over(done)

    def _hand_over(self, done: _Done) -> None:
        with self._wakeup_lock:
            self._done.append(done)
            if self._wakeup_sent:
                return
            self._wakeup_sent = True
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        """On the loop: answer everything that is finished by now."""
        with self._wakeup_lock:
            self._wakeup_sent = False
            batch, self._done = self._done, deque()
        for done in batch:
            if self._waiting.pop(done.job.future, _ABSENT) is _ABSENT:
                continue  # Abandoned: answered already.
            self._queued_bytes -= done.job.size_bytes
            self._answer(done)

    def _answer(self, done: _Done) -> None:
        job, result, error = done
        if error is None:
            if job.settle is not None:
                result = job.settle(result)
            if not job.future.done():
                job.future.set_result(result)
            return
        if job.translate is not None:
            error = job.translate(error)
        _fail(job.future, error)


_ABSENT: Final = object()


def run_apart(name: str, op: Callable[[], None]) -> None:
    """Begin ``op`` in a daemon thread of its own, for whose end nobody waits."""
    threading.Thread(target=op, name=name, daemon=True).start()


def _fail(future: asyncio.Future[Any], error: BaseException) -> None:
    if future.done():
        return
    future.set_exception(error)
    if isinstance(error, OperatingError):
        # The waiter may be gone, and nobody has to hear of it then; a bug somebody has to.
        future.exception()


def _pass_on(done: asyncio.Future[T], outcome: Future[T]) -> None:
    if done.cancelled():
        outcome.cancel()
    elif error := done.exception():
        outcome.set_exception(error)
    else:
        outcome.set_result(done.result())
