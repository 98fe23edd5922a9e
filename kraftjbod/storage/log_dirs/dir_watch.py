"""LOOP. ``DirWatch``: the two timers of a log dir that is online.

* One finds operations that do not end: after a time that each queue has of its own they are
  reported, once, and again when they have ended; after ``timeout_ms`` they are given up. The timer
  is off while no operation is queued, because a broker can have dozens of idle directories.
* The other asks for a check of the disk.
* Time in which this whole process stood still is no operation's fault.

It watches and reports; its dir decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor

#: The stall watch polls this many times per ``timeout_ms``, and until it may suspect somebody.
_POLLS_PER_TIMEOUT: Final = 20
_POLLS_PER_SUSPECT: Final = 20
#: A poll that comes this late says that the loop stood still.
_LATE_S: Final = 0.25


class Watched(Protocol):
    """What hears of it. All on the loop."""

    def on_suspect(self, running_ms: int) -> None: ...

    def on_answer(self) -> None: ...

    def on_hung(self, running_ms: int) -> None: ...

    def check_disk(self) -> None: ...


class DirWatch:
    """Of one dir; ``queues`` says after how many ms each is suspected. For the loop's thread."""

    def __init__(
        self,
        watched: Watched,
        queues: Mapping[LogDirExecutor, int],
        *,
        timeout_ms: int,
        check_interval_ms: int,
    ) -> None:
        self._watched = watched
        self._queues = queues
        self._timeout_ms = timeout_ms
        self._check_interval_s = check_interval_ms / 1000
        suspect_ms = min(queues.values())
        poll_ms = min(timeout_ms // _POLLS_PER_TIMEOUT, suspect_ms // _POLLS_PER_SUSPECT)
        self._poll_interval_s = max(1, poll_ms) / 1000
        self._next_poll: asyncio.TimerHandle | None = None
        self._next_check: asyncio.TimerHandle | None = None
        #: An operation has been running for too long, and was reported.
        self.is_suspicious = False

    def start(self) -> None:
        """Poll and ask from now until :meth:`stop`."""
        self._poll_on_time()
        self._check()

    def stop(self) -> None:
        for timer in (self._next_poll, self._next_check):
            if timer is not None:
                timer.cancel()
        self._next_poll = self._next_check = None
        self._call_on_begin(None)
        self._note(is_suspicious=False)

    def running_ms(self) -> int:
        """How long the oldest operation in a thread has been running; 0 if none is."""
        return max(queue.running_for_ms() for queue in self._queues)

    def _poll_on_time(self) -> None:
        """By the timer, or before that."""
        if self._next_poll is not None:
            late_s = asyncio.get_running_loop().time() - self._next_poll.when()
            self._next_poll.cancel()
            if late_s > _LATE_S:
                for queue in self._queues:
                    queue.excuse(int(late_s * 1000))
            self._next_poll = None
        if self.is_suspicious or not all(queue.is_idle for queue in self._queues):
            self._begin_polling()
            self._poll()
        else:
            self._call_on_begin(self._begin_polling)

    def _begin_polling(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_poll = loop.call_later(self._poll_interval_s, self._poll_on_time)
        self._call_on_begin(None)

    def _call_on_begin(self, callback: Callable[[], None] | None) -> None:
        for queue in self._queues:
            queue.on_begin = callback

    def _poll(self) -> None:
        running_ms = self.running_ms()
        if running_ms > self._timeout_ms:
            self._watched.on_hung(running_ms)
        elif any(queue.running_for_ms() > suspect_ms for queue, suspect_ms in self._queues.items()):
            if not self.is_suspicious:
                self._note(is_suspicious=True)
                self._watched.on_suspect(running_ms)
        elif self.is_suspicious:
            self._note(is_suspicious=False)
            self._watched.on_answer()

    def _note(self, *, is_suspicious: bool) -> None:
        self.is_suspicious = is_suspicious
        for queue in self._queues:
            # Whoever was answered may ask for more at once, and shall not be refused any more.
            # After a standstill that can come before the timer, and must know of it as well.
            queue.on_answers = self._poll_on_time if is_suspicious else None

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_check = loop.call_later(self._check_interval_s, self._check)
        self._watched.check_disk()
