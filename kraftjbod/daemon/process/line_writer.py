"""WIRE. ``LineWriter``: writes lines to a file or a pipe in a separate thread.

* The caller never waits. A system disk that hangs, or a pipe whose reader does not read, blocks
  only the thread.
* The queue has a limit in bytes. Lines beyond the limit are dropped and counted, like lines that
  cannot be written. The thread writes a line with the count once it can write again.
* ``close`` waits for the queued lines until a deadline. A killed process loses them.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

_MAX_WAITING_BYTES: Final = 8 * 1024 * 1024
#: Memory that a line needs in addition to its bytes.
_LINE_OVERHEAD_BYTES: Final = 100
#: How often a full non-blocking descriptor is polled.
_POLL_S: Final = 0.5


class LineWriter:
    """A writer of telemetry, with those methods of a text stream that telemetry calls.

    :param dropped_line: function that returns the line to write after the given number of lines was
        dropped.
    :param max_waiting_bytes: limit of the queue; each line counts with an overhead of 100 bytes.
    """

    def __init__(
        self,
        fd: int,
        dropped_line: Callable[[int], str],
        *,
        max_waiting_bytes: int = _MAX_WAITING_BYTES,
    ) -> None:
        self._fd = fd
        self._dropped_line = dropped_line
        self._max_waiting_bytes = max_waiting_bytes
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._mutex = threading.Lock()
        self._waiting_bytes = 0
        self._dropped = 0
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        """Queue ``text``; return its number of characters, or 0 if it was dropped. Never waits or
        raises."""
        line = text.encode("utf-8", errors="backslashreplace")
        cost = len(line) + _LINE_OVERHEAD_BYTES
        with self._mutex:
            if self._waiting_bytes + cost > self._max_waiting_bytes:
                self._dropped += 1
                return 0
            self._waiting_bytes += cost
        self._lines.put(line)
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread writes as soon as it can."""

    def isatty(self) -> bool:
        return os.isatty(self._fd)

    def close(self, timeout_s: float) -> bool:
        """Let the thread handle the queued lines and end; return whether it ended within
        ``timeout_s`` seconds.

        ``fd`` stays open.
        """
        self._lines.put(None)
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _work(self) -> None:
        while (line := self._lines.get()) is not None:
            is_written = self._write(line)
            with self._mutex:
                self._waiting_bytes -= len(line) + _LINE_OVERHEAD_BYTES
                self._dropped += not is_written
                dropped = self._dropped if is_written else 0
            if dropped and self._write(self._dropped_line(dropped).encode()):
                with self._mutex:
                    self._dropped -= dropped

    def _write(self, line: bytes) -> bool:
        rest = memoryview(line)
        while rest:
            try:
                rest = rest[os.write(self._fd, rest) :]
            except BlockingIOError:
                select.select([], [self._fd], [], _POLL_S)
            except OSError:
                return False
        return True
