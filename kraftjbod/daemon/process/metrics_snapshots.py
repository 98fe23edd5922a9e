"""WIRE. ``MetricsSnapshots``: writes all metrics to a JSON file at each interval.

The file is replaced by a rename, so a reader never sees an incomplete one. A separate thread writes
each snapshot, so a disk that hangs does not block the event loop. While a snapshot is being
written, no other one starts. A failed snapshot is logged, and the next interval tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path

from kraftjbod.core.telemetry import Metrics, get_logger


def _open_draft(path: str, flags: int) -> int:
    """Open the draft file with mode 0640.

    :raises OSError: ``path`` is a symbolic link, or cannot be opened.
    """
    return os.open(path, flags | os.O_NOFOLLOW, 0o640)


class MetricsSnapshots:
    """Writes snapshots at an interval; see :meth:`write_snapshots`.

    :param is_complete: return whether all metrics are registered. No snapshot is written before,
        because alerts need the initial value of each metric.
    """

    def __init__(
        self, path: Path, metrics: Metrics, *, interval_ms: int, is_complete: Callable[[], bool]
    ) -> None:
        self._path = path
        self._is_complete = is_complete
        self._metrics = metrics
        self._interval_ms = interval_ms
        #: Number of intervals skipped because a snapshot was still being written.
        self._skipped = 0
        self._is_writing = False
        self._log = get_logger(component="metrics_snapshots", path=str(path))

    async def write_snapshots(self) -> None:
        """Write a snapshot to the file at each interval, in a thread, until cancelled. An interval
        is skipped while a snapshot is still being written. A failure is logged."""
        while True:
            if self._is_complete():
                self._begin()
            await asyncio.sleep(self._interval_ms / 1000)

    def _begin(self) -> None:
        if self._is_writing:
            self._skipped += 1
            if self._skipped == 1:
                self._log.warning("metrics_snapshot_waits", interval_ms=self._interval_ms)
            return
        if self._skipped:
            self._log.info("metrics_snapshots_resumed", skipped=self._skipped)
            self._skipped = 0
        self._is_writing = True
        args = (asyncio.get_running_loop(), self._metrics.snapshot())
        threading.Thread(target=self._write, args=args, name="metrics", daemon=True).start()

    def _write(self, loop: asyncio.AbstractEventLoop, figures: dict[str, float]) -> None:
        error = None
        try:
            fresh = self._path.with_name(self._path.name + ".tmp")
            with open(fresh, "w", encoding="utf-8", opener=_open_draft) as draft:
                draft.write(json.dumps(figures))
            fresh.replace(self._path)
        except OSError as e:
            error = e
        with contextlib.suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(self._ended, error)

    def _ended(self, error: OSError | None) -> None:
        self._is_writing = False
        if error is not None:
            self._log.warning("metrics_snapshot_failed", reason=str(error))
