"""WIRE. ``Environment``: what a daemon is handed of the world: clock, randomness, figures, disks.

The real ones are made only here, and the loop in runner.py. The loop is what time, timers,
connections and listeners are asked of (net/connection.py), so whoever brings another loop brings
those too.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.loop.wall_guard import PossibleNow, WallGuard
from kraftjbod.core.metadata_version import SUPPORTED_FEATURES
from kraftjbod.core.telemetry import Metrics, set_level
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor, MakeExecutor
from kraftjbod.storage.vfs import RealVfs, Vfs


class SystemClock:
    """The real :class:`~kraftjbod.core.loop.timing.Clock`."""

    def __init__(self) -> None:
        self._guard = WallGuard()
        self.possible_now()

    def now_ms(self) -> int:
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def possible_now(self) -> PossibleNow:
        return self._guard.sample(self.now_ms(), self.wall_ms())


def _max_open_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return -1 if soft == resource.RLIM_INFINITY else soft


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What only the process can provide."""

    clock: Clock = field(default_factory=SystemClock)
    random_bytes: Callable[[int], bytes] = os.urandom
    rng: random.Random = field(default_factory=random.Random)
    metrics: Metrics = field(default_factory=Metrics)
    set_telemetry_level: Callable[[str], None] = set_level
    """Called when the level of events changes while the daemon runs."""
    make_vfs: Callable[[], Vfs] = RealVfs
    """Called once per log directory."""
    make_executor: MakeExecutor = LogDirExecutor
    """Called for each thread that works on disks, or checks what is large."""
    max_open_files: int = field(default_factory=_max_open_files)
    """RLIMIT_NOFILE of this process; negative if there is none."""
    features: dict[str, tuple[int, int]] = field(default_factory=lambda: SUPPORTED_FEATURES)
    """Least and greatest level by feature that the node registers; those of older software in a
    simulation of mixed versions."""
