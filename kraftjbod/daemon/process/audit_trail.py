"""WIRE. ``AuditTrail``: writes refused checks and administrative acts of clients to a file.

* One line of JSON per check. A separate thread writes, so a hanging disk blocks no client.
* The queue has a limit of lines. Lines beyond the limit, and lines that cannot be written, are
  counted (``AuditDroppedTotal``), and the next written line names their number.
* The file is rotated at a size: ``audit.log`` becomes ``audit.log.1``, and so on up to a limit.
* The file is opened for each batch of lines, so another rotation by the system works too.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from queue import Empty, Full, Queue
from typing import Final

from kraftjbod.authorizer.standard_authorizer import Decision
from kraftjbod.broker.access import Access
from kraftjbod.core.acl import AclOperation, AclResourceType

MAX_WAITING_LINES: Final = 10_000
_MAX_LINES_PER_WRITE: Final = 1_000
#: Limit of a name in a line: clients choose names of topics, groups and transactions.
_MAX_NAME_CHARS: Final = 300


class AuditTrail:
    """Writes decisions of the authorizer to a file, one JSON line each.

    :meth:`record` is called in the event loop and never waits for the disk; a thread writes the
    lines.
    """

    def __init__(
        self,
        path: str | None,
        *,
        max_bytes: int,
        max_files: int,
        wall_ms: Callable[[], int],
        max_waiting_lines: int = MAX_WAITING_LINES,
    ) -> None:
        """:param path: the file; None to record nothing.
        :param max_bytes: size at which the file is rotated.
        :param max_files: number of rotated files that are kept.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._max_files = max_files
        self._wall_ms = wall_ms
        self._lines: Queue[bytes | None] = Queue(max_waiting_lines)
        #: Dropped lines that no written line names yet, and all dropped lines.
        self._dropped = self._dropped_total = 0
        self._mutex = threading.Lock()
        self._thread: threading.Thread | None = None

    def record(
        self,
        access: Access,
        operation: AclOperation,
        resource_type: AclResourceType,
        name: str,
        decision: Decision,
    ) -> None:
        """Queue a line about a decision. Drop and count the line if the queue is full. No effect
        without a file."""
        if self._path is None:
            return
        seconds, milliseconds = divmod(self._wall_ms(), 1000)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        line = json.dumps(
            {
                "time": f"{stamp}.{milliseconds:03}Z",
                "result": "allowed" if decision.is_allowed else "denied",
                "principal": access.principal,
                "host": access.host,
                "listener": access.listener_name,
                "request": access.api,
                "operation": operation.name,
                "resource_type": resource_type.name,
                "resource": name[:_MAX_NAME_CHARS],
                "rule": decision.rule,
            }
        )
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="audit", daemon=True)
            self._thread.start()
        try:
            self._lines.put_nowait(line.encode() + b"\n")
        except Full:
            self._drop(1)

    @property
    def has_lines(self) -> bool:
        """Whether any line was queued since the start, so that :meth:`close` may wait."""
        return self._thread is not None

    @property
    def dropped_total(self) -> int:
        """Number of lines since the start that were dropped or could not be written."""
        return self._dropped_total

    def close(self, timeout_s: float) -> bool:
        """Let the thread handle the queued lines and end; return whether it ended in time.

        :param timeout_s: how long to wait, in seconds; twice as long if the queue is full at first.
        """
        if self._thread is None:
            return True
        try:
            self._lines.put(None, timeout=timeout_s)
        except Full:
            return False
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _drop(self, count: int) -> None:
        with self._mutex:
            self._dropped += count
            self._dropped_total += count

    def _work(self) -> None:
        is_open = True
        while is_open:
            batch = [self._lines.get()]
            while len(batch) < _MAX_LINES_PER_WRITE:
                try:
                    batch.append(self._lines.get_nowait())
                except Empty:
                    break
            lines = [line for line in batch if line is not None]
            is_open = len(lines) == len(batch)
            if lines:
                self._write(lines)

    def _write(self, lines: list[bytes]) -> None:
        with self._mutex:
            dropped = self._dropped
        if dropped:
            lines = [*lines, json.dumps({"dropped": dropped}).encode() + b"\n"]
        try:
            self._append(b"".join(lines))
        except OSError:
            # No event here: the telemetry of a full disk would repeat it for each line.
            self._drop(len(lines) - bool(dropped))
            return
        with self._mutex:
            self._dropped -= dropped

    def _append(self, data: bytes) -> None:
        assert self._path is not None
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o640)
        try:
            size = os.fstat(fd).st_size
            if size and size + len(data) > self._max_bytes:
                os.close(fd)
                fd = -1
                self._rotate()
                fd = os.open(self._path, flags, 0o640)
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
        finally:
            if fd >= 0:
                os.close(fd)

    def _rotate(self) -> None:
        """Rename each file to the next number; the last one is replaced."""
        assert self._path is not None
        names = [self._path, *(f"{self._path}.{n}" for n in range(1, self._max_files + 1))]
        for source, target in reversed(list(pairwise(names))):
            if os.path.exists(source):
                os.replace(source, target)
