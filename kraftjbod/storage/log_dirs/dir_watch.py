"""LOOP. ``DirWatch``: the two timers of an online log directory.

* The first timer finds operations that run for too long. After a time set per queue it calls
  ``on_suspect`` once, and ``on_answer`` when they have ended. After ``timeout_ms`` it calls
  ``on_hung``. The timer is off while no operation is queued, because a broker can have dozens of
  idle directories.
* The second timer requests checks of the disk.
* Time during which the whole process was paused, or the event loop was late, does not count.

The class only reports. The log directory decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor

#: Polls per ``timeout_ms``, and per shortest time until an operation is suspected.
_POLLS_PER_TIMEOUT: Final = 20
_POLLS_PER_SUSPECT: Final = 20
#: A poll this late means that the event loop was blocked or paused. One interval of the default
#: settings: a process that is short of CPU time is late by less, but at each poll.
_LATE_S: Final = 0.1


class Watched(Protocol):
    """The log directory that a ``DirWatch`` observes. All methods are called on the event loop.

    ``on_suspect``: an operation runs for longer than its limit. ``on_answer``: that is over.
    ``on_hung``: an operation runs for longer than ``timeout_ms``; repeated at each poll.
    ``check_disk``: a periodic check is due.
    """

    def on_suspect(self, running_ms: int) -> None: ...

    def on_answer(self) -> None: ...

    def on_hung(self, running_ms: int) -> None: ...

    def check_disk(self) -> None: ...


class DirWatch:
    """Reports operations of a log directory that run for too long, and requests periodic checks of
    its disk.

    :param queues: the executors, and after how many ms an operation of each is suspected.
    :param timeout_ms: after this time a running operation is reported as hung.
    """

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
        #: An operation has exceeded its time, and this was reported.
        self.is_suspicious = False

    def start(self) -> None:
        """Start the polls of running operations and the periodic disk checks, until :meth:`stop`.
        The first check is requested at once.
        """
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
        """Longest running time of the operations that run now, in ms; 0 if none runs."""
        return max(queue.running_for_ms() for queue in self._queues)

    def _poll_on_time(self) -> None:
        """Poll the queues, when the timer fires or earlier when answers arrive, and set the timer
        again.
        """
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
            # A caller may submit again as soon as it has its answer, and must not be refused then.
            # After a pause of the process, answers may come before the timer, and the pause must be
            # excused first.
            queue.on_answers = self._poll_on_time if is_suspicious else None

    def _check(self) -> None:
        loop = asyncio.get_running_loop()
        self._next_check = loop.call_later(self._check_interval_s, self._check)
        self._watched.check_disk()
