"""ProcessVfs: disks by their paths, useless once the process is gone."""

from __future__ import annotations

import errno

import pytest

from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.simulated_disk import ProcessVfs, SimulatedDisk
from kraftjbod.testing.simulation.world import World


def _vfs() -> tuple[ProcessVfs, dict[str, SimulatedDisk]]:
    world = World(seed=1)
    disks = {f"/b/d{i}": SimulatedDisk(world, "b", f"/b/d{i}", i) for i in (1, 2)}
    for path, disk in disks.items():
        disk.vfs.make_dirs(path)
    return ProcessVfs(disks), disks


def test_each_path_has_its_disk() -> None:
    vfs, disks = _vfs()
    vfs.open("/b/d1/f", OpenMode.CREATE).write_at(0, [b"abc"])
    assert disks["/b/d1"].vfs.read_if_exists("/b/d1/f") == b"abc"
    assert not disks["/b/d2"].vfs.exists("/b/d1/f")
    assert [vfs.device(path) for path in disks] == [1, 2]
    with pytest.raises(OSError, match="cross-device") as raised:
        vfs.rename("/b/d1/f", "/b/d2/f")
    assert raised.value.errno == errno.EXDEV
    with pytest.raises(FileNotFoundError):
        vfs.open("/b/d3/f", OpenMode.CREATE)


def test_what_was_given_up_or_outlived_its_process_is_useless() -> None:
    vfs, disks = _vfs()
    given_up = vfs.open("/b/d1/f", OpenMode.CREATE)
    other = vfs.open("/b/d2/f", OpenMode.CREATE)
    vfs.let_go("/b/d1")
    with pytest.raises(OSError, match="Bad file descriptor"):
        given_up.write_at(0, [b"late"])
    with pytest.raises(OSError, match="Stale file handle"):
        vfs.open("/b/d1/f", OpenMode.READ)
    other.write_at(0, [b"in time"])
    vfs.is_detached = True
    with pytest.raises(OSError, match="Bad file descriptor"):
        other.write_at(0, [b"too late"])
    other.close()
    assert disks["/b/d2"].vfs.read_if_exists("/b/d2/f") == b"in time"


def test_a_power_cut_leaves_what_was_synced() -> None:
    vfs, disks = _vfs()
    file = vfs.open("/b/d1/f", OpenMode.CREATE)
    file.write_at(0, [b"synced"])
    file.sync()
    vfs.sync_dir("/b/d1")
    disks["/b/d1"].power_cut()
    assert disks["/b/d1"].vfs.read_if_exists("/b/d1/f") == b"synced"
    assert disks["/b/d1"].vfs.device_number == 1
