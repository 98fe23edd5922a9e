"""LOOP. ``LogDirMonitor``: checks every log directory once a second and reports problems to
operators.

* Free space, the growth of the logs and the growth of the disk, which differ if other programs use
  the disk. ``log_dir_filling_up`` is logged once each time the free space falls below
  ``log.dir.warn.free.percent``. It has no other effect: the directory itself handles
  log.dir.min.free.bytes and ENOSPC.
* A copy that appears or disappears as a whole, by a move or a start, does not count as growth.
* Slowness compared with the other directories (judged in storage/log_dirs/slow_dirs.py). It is
  logged, and with ``log.dir.slow.action=demote`` the directory counts as STALLED until it is
  faster. A demoted directory has no load and would seem fast, so probe writes measure it, each
  flushed to the disk.

Directories appear and disappear while the broker runs, so each check looks them up again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final, assert_never

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.disk_check import write_probe
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.log_dirs.slow_dirs import (
    Action,
    BecameFast,
    BecameSlow,
    Demote,
    DirLatency,
    GiveBack,
    SlowDirs,
)
from kraftjbod.storage.log_dirs.space_trend import Crossing, SpaceTrend, WarningMark
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.moves.future_replica import FutureReplica

_CHECK_INTERVAL_S: Final = 1.0
#: Sizes are measured less often: growth is an average over minutes.
_CHECKS_PER_MEASUREMENT: Final = 5
#: Number of copies, which takes far less than the time slice of the event loop.
_MEASURED_AT_ONCE: Final = 200


@dataclass(slots=True)
class _Watched:
    """The measurements of one directory over time."""

    mark: WarningMark
    #: Growth of the directory's own logs, and of all files in its file system.
    logs: SpaceTrend = field(default_factory=SpaceTrend)
    disk: SpaceTrend = field(default_factory=SpaceTrend)
    #: Duration of the last probe write, while it is demoted.
    probe_ms: float = 0.0
    probe: asyncio.Task[None] | None = None
    probe_began_ms: int = 0


class LogDirMonitor:
    """Checks the free space, growth and latency of every log directory, and logs problems.

    :meth:`run_checks` runs for the broker's lifetime. The measured values are available per
    directory.
    """

    def __init__(
        self, *, logs: LogManager, clock: Clock, slow_dirs: SlowDirs, warn_free_percent: int
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._slow_dirs = slow_dirs
        self._warn_free_percent = warn_free_percent
        self._watched: dict[LogDir, _Watched] = {}
        #: Last measured size of each copy, and the growth per directory.
        self._sizes: dict[LogHandle | FutureReplica, int] = {}
        self._grown_bytes: defaultdict[LogDir, int] = defaultdict(int)
        self._doubts_clock = False
        self._log = get_logger(component="log_dir_monitor")

    async def run_checks(self) -> None:
        """Check every second, and measure sizes every five seconds, until cancelled."""
        try:
            for number in itertools.count():
                if number % _CHECKS_PER_MEASUREMENT == 0:
                    await self.measure()
                self.check()
                await asyncio.sleep(_CHECK_INTERVAL_S)
        finally:
            for watched in self._watched.values():
                if watched.probe is not None:
                    watched.probe.cancel()

    async def measure(self) -> None:
        """Measure the sizes of all copies, and add their growth to that of their directories."""
        before, self._sizes = self._sizes, {}
        copies: list[LogHandle | FutureReplica] = [*self._logs.handles(), *self._logs.futures()]
        async for at in in_slices(range(0, len(copies), _MEASURED_AT_ONCE)):
            for copy in copies[at : at + _MEASURED_AT_ONCE]:
                size_bytes = self._sizes[copy] = copy.size_bytes
                grown_bytes = size_bytes - before.get(copy, size_bytes)
                if grown_bytes:
                    self._grown_bytes[copy.log_dir] += grown_bytes

    def check(self) -> None:
        """Check the free space and the latency of each online directory, and the wall clock, once.

        Logs problems, and demotes a slow directory if configured. Waits for no disk.
        """
        self._check_clock()
        present = [log_dir for log_dir in self._logs.dirs() if log_dir.is_online]
        for log_dir in self._watched.keys() - set(present):
            del self._watched[log_dir]
            self._grown_bytes.pop(log_dir, None)
        for log_dir in present:
            if log_dir not in self._watched:
                self._watched[log_dir] = _Watched(WarningMark(self._warn_free_percent))
            self._check_space(log_dir, self._watched[log_dir])
        latencies = [
            DirLatency(
                directory_id=log_dir.directory_id,
                latency_ms=self.latency_ms(log_dir),
                is_healthy=log_dir.state is LogDirState.ONLINE,
            )
            for log_dir in present
        ]
        by_id = {log_dir.directory_id: log_dir for log_dir in present}
        for action in self._slow_dirs.check(latencies):
            self._perform(action, by_id[action.directory_id])
        if self._slow_dirs.demoted is not None:
            demoted = by_id[self._slow_dirs.demoted]
            self._begin_probe(demoted, self._watched[demoted])

    # -- figures ------------------------------------------------------------------------------

    def growth_bytes_per_second(self, log_dir: LogDir) -> float:
        """Return the growth rate of the logs in the directory, averaged over minutes; 0 if it is
        not known.
        """
        watched = self._watched.get(log_dir)
        return 0.0 if watched is None else watched.logs.bytes_per_second

    def disk_growth_bytes_per_second(self, log_dir: LogDir) -> float:
        """Return the growth rate of all files in the directory's file system, averaged over
        minutes; 0 if it is not known.
        """
        watched = self._watched.get(log_dir)
        return 0.0 if watched is None else watched.disk.bytes_per_second

    def seconds_until_full(self, log_dir: LogDir) -> float | None:
        """Return the seconds until the disk is full, at the faster of both growth rates; None if
        neither grows or is known.
        """
        watched = self._watched.get(log_dir)
        if watched is None:
            return None
        usable_bytes = log_dir.space.usable_bytes
        forecasts = [
            trend.seconds_until_full(usable_bytes) for trend in (watched.logs, watched.disk)
        ]
        return min((seconds for seconds in forecasts if seconds is not None), default=None)

    def latency_ms(self, log_dir: LogDir) -> float:
        """Return the average latency in ms of the directory's writes, flushes and probes, for the
        comparison of directories.

        For a demoted directory it is at least that of the probe writes.
        """
        watched = self._watched.get(log_dir)
        if watched is None or self._slow_dirs.demoted != log_dir.directory_id:
            return log_dir.statistics.latency_ms
        running_ms = 0
        if watched.probe is not None and not watched.probe.done():
            running_ms = self._clock.now_ms() - watched.probe_began_ms
        return max(log_dir.statistics.latency_ms, watched.probe_ms, running_ms)

    def is_slow(self, log_dir: LogDir) -> bool:
        return self._slow_dirs.is_slow(log_dir.directory_id)

    # -- time ---------------------------------------------------------------------------------

    def _check_clock(self) -> None:
        now = self._clock.possible_now()
        if now.doubt_ms and not self._doubts_clock:
            self._log.warning(
                "wall_clock_jumped",
                by_ms=now.doubt_ms,
                message="check the clock of this machine: until it is correct, or for a day, "
                "retention deletes only records that are expired by both times, and a timestamp "
                "must be valid by one of them",
            )
        elif self._doubts_clock and not now.doubt_ms:
            self._log.info("wall_clock_trusted")
        self._doubts_clock = now.doubt_ms > 0

    # -- free space ---------------------------------------------------------------------------

    def _check_space(self, log_dir: LogDir, watched: _Watched) -> None:
        space = log_dir.space
        if not space.total_bytes:
            return  # Not measured yet.
        now_ms = self._clock.now_ms()
        watched.logs.note(self._grown_bytes[log_dir], now_ms)
        watched.disk.note(space.total_bytes - space.usable_bytes, now_ms)
        match watched.mark.sample(space.usable_bytes, space.total_bytes):
            case Crossing.FILLING_UP:
                seconds = self.seconds_until_full(log_dir)
                self._log.warning(
                    "log_dir_filling_up",
                    log_dir=log_dir.path,
                    free_bytes=space.usable_bytes,
                    total_bytes=space.total_bytes,
                    growth_bytes_per_second=round(watched.logs.bytes_per_second),
                    disk_growth_bytes_per_second=round(watched.disk.bytes_per_second),
                    seconds_until_full=None if seconds is None else round(seconds),
                )
            case Crossing.NO_LONGER:
                self._log.info(
                    "log_dir_no_longer_filling_up",
                    log_dir=log_dir.path,
                    free_bytes=space.usable_bytes,
                )
            case None:
                return

    # -- speed --------------------------------------------------------------------------------

    def _perform(self, action: Action, log_dir: LogDir) -> None:
        match action:
            case BecameSlow():
                self._log.warning(
                    "log_dir_slow",
                    log_dir=log_dir.path,
                    latency_ms=round(action.latency_ms, 1),
                    limit_ms=round(action.limit_ms, 1),
                )
            case BecameFast():
                self._log.info(
                    "log_dir_not_slow_any_more",
                    log_dir=log_dir.path,
                    latency_ms=round(action.latency_ms, 1),
                )
            case Demote():
                latency_ms = log_dir.statistics.latency_ms
                self._watched[log_dir].probe_ms = latency_ms
                log_dir.suspect(f"it is slow: {latency_ms:.0f} ms for a write")
            case GiveBack():
                log_dir.absolve()
            case _:
                assert_never(action)

    def _begin_probe(self, log_dir: LogDir, watched: _Watched) -> None:
        if watched.probe is None or watched.probe.done():
            watched.probe_began_ms = self._clock.now_ms()
            watched.probe = asyncio.create_task(self._probe(log_dir, watched))

    async def _probe(self, log_dir: LogDir, watched: _Watched) -> None:
        began_ms = self._clock.now_ms()
        try:
            await log_dir.run_operation(
                OpKind.PROBE, lambda: write_probe(log_dir.vfs, log_dir.path)
            )
        except OperatingError as e:
            # The directory itself has judged the error.
            self._log.info("log_dir_not_measured", log_dir=log_dir.path, reason=e.message)
            return
        watched.probe_ms = self._clock.now_ms() - began_ms
