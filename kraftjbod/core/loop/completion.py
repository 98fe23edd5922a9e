"""LOOP. ``Completion``: a value that comes later, handed on in the same turn of the loop.

It is asked as an ``asyncio.Future`` is. What differs is when its callback runs: at once, within
whoever completes it, where a future's runs in the loop's next turn; on a way through several hands
that is a turn for each. So a callback passes on what it was given and returns: it asks for nothing
new, and what it raises goes to the loop's exception handler, not to who completed it.
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
    """One value or one error, for one callback or one ``await``. For the loop's thread."""

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
        """One that is done."""
        made: Completion[T] = Completion()
        made._is_done, made._value = True, value
        return made

    def done(self) -> bool:
        return self._is_done

    def result(self) -> T:
        """The value, once it is done; raises the error if that is what it ended with."""
        assert self._is_done, self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # it is there once it is done

    def exception(self) -> BaseException | None:
        return self._error

    def set_result(self, value: T) -> None:
        """Hand ``value`` on; what comes after the first word is not heard."""
        if self._is_done:
            return
        self._is_done = True
        self._value = value
        # Who is called may hold this one: forgotten, they are no cycle that waits for a collector.
        callback, self._callback = self._callback, None
        if callback is not None:
            try:
                callback(self)
            except Exception as e:
                self._callback_failed(e)

    def set_exception(self, error: BaseException) -> None:
        """As :meth:`set_result`, with an error."""
        if not self._is_done:
            self._is_done = True
            self._error = error
            self._call_back()

    def add_done_callback(self, callback: Callable[[Completion[T]], None]) -> None:
        """Have ``callback`` called when it is done, which may be now; only one may wait."""
        assert self._callback is None, self
        self._callback = callback
        if self._is_done:
            self._call_back()

    def map(self, change: Callable[[T], R]) -> Completion[R]:
        """What ``change`` makes of the value, or raises; an error stays what it is."""
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
        """The same, once ``do`` was called, whatever it ends with."""
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
        """The same as a future, which may be cancelled: what it waits for goes on."""
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
    """Do ``work`` to its end: cancelling who waits takes nothing back.

    How it ends is no news then, but for a bug, which is logged. (``asyncio.shield`` alone leaves an
    error that nobody hears to the collector, for whom it is a bug of the daemon.)
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
    # What a disk says after it was given up is no news.
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
        # The waiter may be gone, and nobody has to hear of it then; a bug somebody has to.
        future.exception()
