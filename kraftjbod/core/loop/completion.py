"""LOOP. ``Completion``: a future whose callback runs in the same event loop iteration.

It has the interface of an ``asyncio.Future``, but ``set_result`` calls the callback synchronously.
A future schedules its callback for the next iteration, which costs one iteration per step of a
chain (ADR 75).

A callback must only pass the value on: it must not start new work. An exception of a callback goes
to the exception handler of the loop, and not to the caller of ``set_result``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.telemetry import get_logger

T = TypeVar("T")
R = TypeVar("R")


class Completion(Generic[T]):
    """Result of an operation, a value or an error, for one callback or one ``await``. Not
    thread-safe.

    The callback runs inside :meth:`set_result` or :meth:`set_exception`.
    """

    __slots__ = ("_callback", "_error", "_is_done", "_value")

    def __init__(self) -> None:
        self._is_done = False
        self._value: T | None = None
        self._error: BaseException | None = None
        self._callback: Callable[[Completion[T]], None] | None = None

    def __repr__(self) -> str:
        state = "waiting" if not self._is_done else repr(self._error or self._value)
        return f"<{type(self).__name__} {state}>"

    @classmethod
    def of(cls, value: T) -> Completion[T]:
        """Return a completion that is done, with ``value``."""
        made: Completion[T] = Completion()
        made._is_done, made._value = True, value
        return made

    def done(self) -> bool:
        return self._is_done

    def result(self) -> T:
        """Return the value, or raise the error. The completion must be done."""
        assert self._is_done, self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it is there once it is done

    def exception(self) -> BaseException | None:
        return self._error

    def set_result(self, value: T) -> None:
        """Complete with ``value``. Calls after the first completion have no effect.

        An error of the callback is passed to the loop's exception handler, not raised.
        """
        if self._is_done:
            return
        self._is_done = True
        self._value = value
        # Clear the callback to avoid a reference cycle: the callback may refer to this object.
        callback, self._callback = self._callback, None
        if callback is not None:
            try:
                callback(self)
            except Exception as e:
                self._callback_failed(e)

    def set_exception(self, error: BaseException) -> None:
        """Complete with an error. Calls after the first completion have no effect."""
        if not self._is_done:
            self._is_done = True
            self._error = error
            self._call_back()

    def add_done_callback(self, callback: Callable[[Completion[T]], None]) -> None:
        """Call ``callback`` on completion, or now if done. At most one callback can wait."""
        assert self._callback is None, self
        self._callback = callback
        if self._is_done:
            self._call_back()

    def map(self, change: Callable[[T], R]) -> Completion[R]:
        """Return a completion with the result of ``change(value)``.

        The returned completion fails with the exception of ``change``, or with this completion's
        error without a call of ``change``.
        """
        mapped: Completion[R] = Completion()

        def pass_on(done: Completion[T]) -> None:
            if done._error is not None:
                mapped.set_exception(done._error)
                return
            try:
                value = change(done._value)  # type: ignore[arg-type]  # it is there once it is done
            except Exception as e:
                mapped.set_exception(e)
            else:
                mapped.set_result(value)

        self.add_done_callback(pass_on)
        return mapped

    def after(self, do: Callable[[], None]) -> Completion[T]:
        """Return a completion with the same result or error.

        ``do`` is called just before the returned completion is answered. It must not raise.
        """
        passed: Completion[T] = Completion()

        def pass_on(done: Completion[T]) -> None:
            do()
            if done._error is not None:
                passed.set_exception(done._error)
            else:
                passed.set_result(done._value)  # type: ignore[arg-type]  # it is there

        self.add_done_callback(pass_on)
        return passed

    def future(self) -> asyncio.Future[T]:
        """Return a future with the same result or error. Cancelling the future does not stop the
        work.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.add_done_callback(lambda done: _pass_to(future, done._value, done._error))
        return future

    def __await__(self) -> Generator[Any, None, T]:
        if not self._is_done:
            return (yield from self.future())
        return self.result()

    def _call_back(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            try:
                callback(self)
            except Exception as e:
                self._callback_failed(e)

    def _callback_failed(self, error: Exception) -> None:
        context = {"message": f"the callback of {self!r} failed", "exception": error}
        asyncio.get_running_loop().call_exception_handler(context)


async def to_its_end(work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T:
    """Await ``work`` and return its result. If the caller is cancelled, the call ends at once, and
    ``work`` still runs to its end.

    After a cancellation, an OperatingError or OSError of ``work`` is dropped, and any other error
    is logged. (With ``asyncio.shield`` alone, asyncio would report each dropped error as never
    retrieved.)
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        running.add_done_callback(_note_unheard)
        raise


def _note_unheard(done: asyncio.Future[Any]) -> None:
    if not done.cancelled() and (error := done.exception()) is not None:
        _log_unheard(error)


def _log_unheard(error: BaseException) -> None:
    # Expected errors are dropped: a disk may still report errors after it was taken offline.
    if not isinstance(error, OperatingError | OSError):
        get_logger(component="completion").error("unheard_operation_failed", exc_info=error)


def _pass_to(future: asyncio.Future[T], value: Any, error: BaseException | None) -> None:
    if error is None:
        if not future.done():
            future.set_result(value)
        return
    if future.done():
        _log_unheard(error)
        return
    future.set_exception(error)
    if isinstance(error, OperatingError):
        # Mark an expected error as retrieved: the waiter may be gone. asyncio logs other errors.
        future.exception()
