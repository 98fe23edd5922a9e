"""LOOP. ``LogDirMonitor``: checks every log directory once a second, and says what an operator
needs.

* How full its disk is, and how fast its logs grow and the disk fills, which are two things where
  others use the disk too: ``log_dir_filling_up`` once per time that less than
  ``log.dir.warn.free.percent`` is free. Nothing else follows from it: log.dir.min.free.bytes and
  ENOSPC are the directory's own business.
* A copy that comes or goes as a whole, by a move or a start, is no growth; what is written is.
* Whether it is slow beside the others (storage/log_dirs/slow_dirs.py judges): logged, and with
  ``log.dir.slow.action=demote`` held for STALLED until it is faster. What is demoted serves
  nothing and seems fast, so it is measured by writes of our own, each brought to the disk.

Directories come and go while the broker runs; they are looked up anew each time.
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
#: Sizes are looked at less often: growth is an average over minutes.
_CHECKS_PER_MEASUREMENT: Final = 5
#: Copies, which takes far less than a slice of the loop's time.
_MEASURED_AT_ONCE: Final = 200


@dataclass(slots=True)
class _Watched:
    """What is known of one directory over time."""

    mark: WarningMark
    #: Of the directory's own logs, and of all that is on its file system.
    logs: SpaceTrend = field(default_factory=SpaceTrend)
    disk: SpaceTrend = field(default_factory=SpaceTrend)
    #: What the last write of our own took, while it is demoted.
    probe_ms: float = 0.0
    probe: asyncio.Task[None] | None = None
    probe_began_ms: int = 0


class LogDirMonitor:
    """One coroutine, :meth:`run`, for the life of the broker."""

    def __init__(
        self, *, logs: LogManager, clock: Clock, slow_dirs: SlowDirs, warn_free_percent: int
    ) -> None:
        self._logs = logs
        self._clock = clock
        self._slow_dirs = slow_dirs
        self._warn_free_percent = warn_free_percent
        self._watched: dict[LogDir, _Watched] = {}
        #: Of each copy when it was measured last, and what those of a directory have grown by.
        self._sizes: dict[LogHandle | FutureReplica, int] = {}
        self._grown_bytes: defaultdict[LogDir, int] = defaultdict(int)
        self._doubts_clock = False
        self._log = get_logger(component="log_dir_monitor")

    async def run(self) -> None:
        """Check until cancelled."""
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
        """See how large all copies are by now."""
        before, self._sizes = self._sizes, {}
        copies: list[LogHandle | FutureReplica] = [*self._logs.handles(), *self._logs.futures()]
        async for at in in_slices(range(0, len(copies), _MEASURED_AT_ONCE)):
            for copy in copies[at : at + _MEASURED_AT_ONCE]:
                size_bytes = self._sizes[copy] = copy.size_bytes
                grown_bytes = size_bytes - before.get(copy, size_bytes)
                if grown_bytes:
                    self._grown_bytes[copy.log_dir] += grown_bytes

    def check(self) -> None:
        """Once at the clock, by which old records go, and at every directory."""
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

    # -- what is known ------------------------------------------------------------------------

    def growth_bytes_per_second(self, log_dir: LogDir) -> float:
        """Of its logs."""
        watched = self._watched.get(log_dir)
        return 0.0 if watched is None else watched.logs.bytes_per_second

    def disk_growth_bytes_per_second(self, log_dir: LogDir) -> float:
        """Of all that is on its file system."""
        watched = self._watched.get(log_dir)
        return 0.0 if watched is None else watched.disk.bytes_per_second

    def seconds_until_full(self, log_dir: LogDir) -> float | None:
        """By whichever grows faster, its logs or its disk; None if neither does."""
        watched = self._watched.get(log_dir)
        if watched is None:
            return None
        usable_bytes = log_dir.space.usable_bytes
        forecasts = [
            trend.seconds_until_full(usable_bytes) for trend in (watched.logs, watched.disk)
        ]
        return min((seconds for seconds in forecasts if seconds is not None), default=None)

    def latency_ms(self, log_dir: LogDir) -> float:
        """By which directories are compared."""
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
                message="look at the clock of this machine: until it is back, or for a day, "
                "records only go that are old by both times, and timestamps have to fit one",
            )
        elif self._doubts_clock and not now.doubt_ms:
            self._log.info("wall_clock_believed")
        self._doubts_clock = now.doubt_ms > 0

    # -- free space ---------------------------------------------------------------------------

    def _check_space(self, log_dir: LogDir, watched: _Watched) -> None:
        space = log_dir.space
        if not space.total_bytes:
            return  # It was not looked at yet.
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
            await log_dir.run(OpKind.PROBE, lambda: write_probe(log_dir.vfs, log_dir.path))
        except OperatingError as e:
            # What that says of the directory, the directory has judged.
            self._log.info("log_dir_not_measured", log_dir=log_dir.path, reason=e.message)
            return
        watched.probe_ms = self._clock.now_ms() - began_ms
