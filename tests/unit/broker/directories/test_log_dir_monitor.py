"""``LogDirMonitor`` reports directories that fill up or are slow, and demotes slow ones."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.directories.log_dir_monitor import LogDirMonitor
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.wall_guard import WallGuard
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.slow_dirs import CHECKS_TO_FAST, CHECKS_TO_SLOW, SlowDirs
from kraftjbod.storage.vfs import Space
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import ManualClock, format_dir, manager_of, open_dir
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.gates import until

GIB = 1 << 30


class Rig:
    def __init__(self, *, may_demote: bool = False, dirs: int = 2) -> None:
        self.clock = ManualClock()
        self.vfss = [FaultVfs(MemVfs()) for _ in range(dirs)]
        self.dirs: list[LogDir] = []
        for number, vfs in enumerate(self.vfss, 1):
            format_dir(vfs, f"/d{number}", number)
            self.dirs.append(open_dir(vfs, f"/d{number}", number, clock=self.clock))
        self.monitor = LogDirMonitor(
            logs=manager_of(self.dirs, clock=self.clock),
            clock=self.clock,
            slow_dirs=SlowDirs(factor=10, min_ms=50, may_demote=may_demote),
            warn_free_percent=10,
        )

    def set_free(self, free_bytes: int, log_dir: int = 0) -> None:
        self.dirs[log_dir].space = Space(
            total_bytes=100 * GIB, usable_bytes=free_bytes, free_inodes=99
        )

    def checks(self, times: int) -> list[Any]:
        """Check ``times`` times, once a second, and return the log lines."""
        with capture_logs() as logged:
            for _ in range(times):
                self.clock.ms += 1_000
                self.monitor.check()
        return logged


def events(reported: list[Any]) -> list[str]:
    return [line["event"] for line in reported]


async def test_filling_disk_is_logged_once_with_time_until_full() -> None:
    rig = Rig()
    free_bytes = 12 * GIB
    for _ in range(1_000):
        rig.set_free(free_bytes)
        assert rig.checks(1) == []
        free_bytes -= 2_000_000
    growth = rig.monitor.disk_growth_bytes_per_second(rig.dirs[0])
    assert growth == pytest.approx(2_000_000, rel=0.01)
    rig.set_free(10 * GIB - 1)
    (warning,) = rig.checks(1)
    assert (warning["event"], warning["log_level"]) == ("log_dir_filling_up", "warning")
    assert (warning["log_dir"], warning["free_bytes"]) == ("/d1", 10 * GIB - 1)
    assert warning["growth_bytes_per_second"] == 0
    assert warning["disk_growth_bytes_per_second"] > 0
    assert warning["seconds_until_full"] == pytest.approx(
        warning["free_bytes"] / warning["disk_growth_bytes_per_second"], rel=0.01
    )
    assert rig.checks(5) == []
    rig.set_free(20 * GIB)
    (over,) = rig.checks(3)
    assert (over["event"], over["free_bytes"]) == ("log_dir_no_longer_filling_up", 20 * GIB)


async def test_filling_disk_that_is_unchecked_or_offline_is_not_logged() -> None:
    rig = Rig()
    assert rig.checks(3) == []
    rig.set_free(GIB, 1)
    assert events(rig.checks(1)) == ["log_dir_filling_up"]
    rig.dirs[1].go_offline("pulled")
    rig.set_free(50 * GIB, 1)
    assert rig.checks(3) == []
    assert rig.monitor.disk_growth_bytes_per_second(rig.dirs[1]) == 0
    assert rig.monitor.seconds_until_full(rig.dirs[1]) is None


async def test_slow_directory_is_logged_and_stays_online_by_default() -> None:
    rig = Rig()
    rig.dirs[1].statistics.latency_ms = 75.0
    found = rig.checks(CHECKS_TO_SLOW + 20)
    (warning,) = found
    assert (warning["event"], warning["log_level"]) == ("log_dir_slow", "warning")
    assert (warning["log_dir"], warning["latency_ms"], warning["limit_ms"]) == ("/d2", 75, 50)
    assert rig.monitor.is_slow(rig.dirs[1])
    assert not rig.monitor.is_slow(rig.dirs[0])
    assert rig.dirs[1].state is LogDirState.ONLINE
    rig.dirs[1].statistics.latency_ms = 3.0
    assert events(rig.checks(CHECKS_TO_FAST + 5)) == ["log_dir_not_slow_any_more"]


async def test_demoted_directory_is_stalled_while_probe_writes_hang() -> None:
    rig = Rig(may_demote=True)
    slow = rig.dirs[1]
    hang = rig.vfss[1].inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"sync"})))
    slow.statistics.latency_ms = 75.0
    found = rig.checks(CHECKS_TO_SLOW)
    assert events(found) == ["log_dir_slow", "log_dir_stalled"]
    assert slow.state is LogDirState.STALLED
    assert "slow" in slow.impaired_reason
    # The directory serves no requests, so that its measured latency is low.
    slow.statistics.latency_ms = 0.1
    await until(lambda: hang.hits)
    assert rig.checks(3 * CHECKS_TO_FAST) == []
    assert slow.state is LogDirState.STALLED
    rig.vfss[1].release()
    await until(lambda: slow.state is LogDirState.OFFLINE)


async def test_demoted_directory_returns_online_when_it_is_fast_again() -> None:
    rig = Rig(may_demote=True)
    slow = rig.dirs[1]
    slow.statistics.latency_ms = 75.0
    rig.checks(CHECKS_TO_SLOW)
    assert slow.state is LogDirState.STALLED
    slow.statistics.latency_ms = 0.1
    reported: list[Any] = []

    def is_back() -> bool:
        reported.extend(rig.checks(1))
        return slow.state is LogDirState.ONLINE

    await until(is_back)
    assert events(reported) == ["log_dir_not_slow_any_more", "log_dir_answers_again"]
    assert [entry.name for entry in rig.vfss[1].list_dir("/d2")] == ["meta.properties"]


async def test_sole_directory_is_not_demoted() -> None:
    rig = Rig(may_demote=True, dirs=1)
    rig.dirs[0].statistics.latency_ms = 900.0
    assert events(rig.checks(CHECKS_TO_SLOW + 5)) == ["log_dir_slow"]
    assert rig.dirs[0].state is LogDirState.ONLINE


async def test_failed_probe_of_a_slow_directory_takes_it_offline() -> None:
    rig = Rig(may_demote=True)
    rig.vfss[1].inject(Fault(kinds=frozenset({"sync"})))
    rig.dirs[1].statistics.latency_ms = 75.0
    with capture_logs() as logged:
        rig.checks(CHECKS_TO_SLOW)
        await until(lambda: rig.dirs[1].state is LogDirState.OFFLINE)
        await until(lambda: "log_dir_not_measured" in events(logged))
    rig.checks(3)
    assert not rig.monitor.is_slow(rig.dirs[1])


async def test_wall_clock_jump_is_logged_once_per_jump() -> None:
    rig = Rig()
    guard, jumped = WallGuard(), [0]
    rig.clock.possible_now = lambda: guard.sample(rig.clock.ms, rig.clock.ms + jumped[-1])
    found = rig.checks(3)
    for jump_ms in (10**9, 10**9, 0, -(10**9)):
        jumped.append(jump_ms)
        found += rig.checks(3)
    assert events(found) == ["wall_clock_jumped", "wall_clock_trusted", "wall_clock_jumped"]
    assert found[0]["by_ms"] == 10**9
