"""WIRE. ``Environment``: a daemon's access to the process: clock, randomness, metrics, disks.

Only this file creates the real implementations; runner.py creates the real event loop. Time,
timers, connections and listeners come from the loop (net/connection.py), so a simulated loop
replaces them too.
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
from kraftjbod.core.reference_reader import NO_REFERENCES, DynamicReferences
from kraftjbod.core.telemetry import Metrics, set_level
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor, MakeExecutor
from kraftjbod.storage.vfs import RealVfs, Vfs


class SystemClock:
    """The real :class:`~kraftjbod.core.loop.timing.Clock`: monotonic and wall-clock
    milliseconds."""

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
    """Access to the process and the operating system. A simulation passes its own values."""

    clock: Clock = field(default_factory=SystemClock)
    random_bytes: Callable[[int], bytes] = os.urandom
    rng: random.Random = field(default_factory=random.Random)
    metrics: Metrics = field(default_factory=Metrics)
    set_telemetry_level: Callable[[str], None] = set_level
    """Called when the telemetry level changes while the daemon runs."""
    make_vfs: Callable[[], Vfs] = RealVfs
    """Called once per log directory."""
    make_executor: MakeExecutor = LogDirExecutor
    """Called for each thread that works on disks or checks large requests."""
    max_open_files: int = field(default_factory=_max_open_files)
    """RLIMIT_NOFILE of this process; negative if unlimited."""
    features: dict[str, tuple[int, int]] = field(default_factory=lambda: SUPPORTED_FEATURES)
    """Lowest and highest level of each feature that the node registers. A simulation of mixed
    versions passes those of an older version."""
    references: DynamicReferences = NO_REFERENCES
    """Replaces references in values that change while the daemon runs."""
