"""``ProcessVfs``: disks by their paths, unusable once the process has ended."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence

import pytest

from kraftjbod.storage.vfs import OpenMode, VfsFile
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.simulated_disk import (
    DiskCosts,
    ProcessFile,
    ProcessVfs,
    SimulatedDisk,
)
from kraftjbod.testing.simulation.simulated_thread import SimulatedThread
from kraftjbod.testing.simulation.virtual_loop import virtual_loop
from kraftjbod.testing.simulation.world import World


def _vfs() -> tuple[ProcessVfs, dict[str, SimulatedDisk]]:
    world = World(seed=1)
    disks = {f"/b/d{i}": SimulatedDisk(world, "b", f"/b/d{i}", i) for i in (1, 2)}
    for path, disk in disks.items():
        disk.vfs.make_dirs(path)
    return ProcessVfs(disks), disks


def test_process_vfs_maps_each_path_to_its_disk() -> None:
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


def test_files_of_released_directory_or_ended_process_are_unusable() -> None:
    vfs, disks = _vfs()
    abandoned = vfs.open("/b/d1/f", OpenMode.CREATE)
    other = vfs.open("/b/d2/f", OpenMode.CREATE)
    vfs.let_go("/b/d1")
    with pytest.raises(OSError, match="Bad file descriptor"):
        abandoned.write_at(0, [b"late"])
    with pytest.raises(OSError, match="Stale file handle"):
        vfs.open("/b/d1/f", OpenMode.READ)
    other.write_at(0, [b"in time"])
    vfs.detach()
    with pytest.raises(OSError, match="Bad file descriptor"):
        other.write_at(0, [b"too late"])
    other.close()
    assert disks["/b/d2"].vfs.read_if_exists("/b/d2/f") == b"in time"


def test_power_cut_keeps_synced_bytes() -> None:
    vfs, disks = _vfs()
    file = vfs.open("/b/d1/f", OpenMode.CREATE)
    file.write_at(0, [b"synced"])
    file.sync()
    vfs.sync_dir("/b/d1")
    disks["/b/d1"].power_cut()
    assert disks["/b/d1"].vfs.read_if_exists("/b/d1/f") == b"synced"
    assert disks["/b/d1"].vfs.device_number == 1


def _syncs(files: Sequence[VfsFile]) -> list[bool]:
    """Sync each of ``files`` once; return whether each sync succeeded."""
    succeeded = []
    for file in files:
        try:
            file.sync()
        except OSError as e:
            assert e.errno == errno.EIO
            succeeded.append(False)
        else:
            succeeded.append(True)
    return succeeded


def _with_failed_writeback(*, in_sync: bool) -> tuple[ProcessVfs, SimulatedDisk, list[ProcessFile]]:
    """Return two descriptors of a file, written until writeback fails: in a sync, or before it."""
    vfs, disks = _vfs()
    disk = disks["/b/d1"]
    vfs.open("/b/d1/0.log", OpenMode.CREATE)
    disk.vfs.sync_dir("/b/d1")
    files = [vfs.open("/b/d1/0.log", OpenMode.READ_WRITE) for _ in range(2)]
    while True:
        disk.faults.begin_fault(DiskFault.WRITEBACK)
        if disk.faults.fails_in_sync is in_sync:
            break
    for number in range(20):
        files[0].write_at(number, [b"5"])
        if not in_sync and files[0].inner.writeback_errors:
            return vfs, disk, files
        if in_sync and not _syncs(files[:1])[0]:
            return vfs, disk, files
    raise AssertionError("writeback never failed")


def test_failed_writeback_is_reported_to_each_descriptor_once_and_its_pages_are_lost() -> None:
    vfs, disk, files = _with_failed_writeback(in_sync=True)
    whole = files[0].read_at(0, 30)
    assert _syncs(files) == [True, False], "the first one reported it already"
    assert _syncs([*files, vfs.open("/b/d1/0.log", OpenMode.READ_WRITE)]) == [True] * 3
    assert files[0].read_at(0, 30) == whole, "from memory"
    certain = disk.vfs.crash_clone(1).read_if_exists("/b/d1/0.log")
    disk.vfs.drop_caches()
    assert files[0].read_at(0, 30) == certain != whole


def test_failed_background_writeback_is_reported_to_the_next_descriptor_too() -> None:
    vfs, disk, files = _with_failed_writeback(in_sync=False)
    late = vfs.open("/b/d1/0.log", OpenMode.READ_WRITE)
    assert _syncs([late, *files]) == [False, False, False]
    assert _syncs([vfs.open("/b/d1/0.log", OpenMode.READ_WRITE)]) == [True]

    vfs, disk, files = _with_failed_writeback(in_sync=False)
    whole = files[0].read_at(0, 30)
    disk.vfs.drop_caches()
    disk.faults.heal()
    assert _syncs(files) == [True, True] and files[0].read_at(0, 30) == whole, "written after all"


def test_space_of_a_removed_file_is_free_once_its_last_descriptor_is_closed() -> None:
    vfs, disks = _vfs()
    disk = disks["/b/d1"].vfs
    one, other = (vfs.open("/b/d1/f", OpenMode.CREATE) for _ in range(2))
    one.write_at(0, [b"1" * 1_000])
    disk.capacity_bytes = disk.used_bytes() + 10
    vfs.unlink_if_exists("/b/d1/f")
    assert not vfs.exists("/b/d1/f")
    one.close()
    one.close()
    with pytest.raises(OSError, match="No space left"):
        vfs.open("/b/d1/g", OpenMode.CREATE).write_at(0, [b"2" * 11])
    other.close()
    vfs.open("/b/d1/g", OpenMode.CREATE).write_at(0, [b"2" * 1_010])


@pytest.mark.parametrize("end", ["process ends", "directory is released"])
def test_space_of_a_removed_file_is_free_once_its_process_has_no_descriptor(end: str) -> None:
    vfs, disks = _vfs()
    vfs.open("/b/d1/f", OpenMode.CREATE).write_at(0, [b"1" * 1_000])
    vfs.open("/b/d1/g", OpenMode.CREATE).write_at(0, [b"2" * 10])
    vfs.rename("/b/d1/g", "/b/d1/f")
    assert disks["/b/d1"].vfs.used_bytes() == 1_010
    if end == "process ends":
        vfs.detach()
    else:
        vfs.let_go("/b/d1")
    assert disks["/b/d1"].vfs.used_bytes() == 10


def _took_us(work: Callable[[ProcessVfs], object], costs: DiskCosts) -> int:
    """Return the virtual time of ``work`` in a thread, on a disk with 200 files of 1,000 bytes."""
    vfs, disks = _vfs()
    disk = disks["/b/d1"]
    for number in range(200):
        vfs.open(f"/b/d1/{number}", OpenMode.CREATE).write_at(0, [bytes(1_000)])
    vfs.detach()
    process, ended_us = ProcessVfs(disks), list[int]()
    disk.costs = costs

    def job() -> None:
        work(process)
        ended_us.append(disk.world.now_us)

    SimulatedThread(virtual_loop(disk.world, "b"), job, "disk")
    disk.world.run_until(60_000_000)
    return ended_us[0]


@pytest.mark.parametrize(
    ("work", "costs", "least_us"),
    [
        (lambda vfs: vfs.list_dir("/b/d1"), DiskCosts(us_per_name=50), 10_000),
        (lambda vfs: vfs.remove_tree("/b/d1"), DiskCosts(us_per_name=50), 10_000),
        (lambda vfs: vfs.remove_tree("/b/d1"), DiskCosts(freed_bytes_per_us=10), 20_000),
        (lambda vfs: vfs.read_if_exists("/b/d1/7"), DiskCosts(bytes_per_us=0.05), 20_000),
    ],
)
def test_operations_take_time_by_bytes_and_names(
    work: Callable[[ProcessVfs], object], costs: DiskCosts, least_us: int
) -> None:
    cheap = DiskCosts(bytes_per_us=1e9, freed_bytes_per_us=1e9, us_per_name=0)
    assert _took_us(work, cheap) < 1_000
    assert least_us < _took_us(work, costs) < 3 * least_us


def _close_us(*, size: int, is_named: bool) -> int:
    """Return the virtual time of the last close of a file."""
    vfs, disks = _vfs()
    world, took_us = disks["/b/d1"].world, list[int]()

    def work() -> None:
        file = vfs.open("/b/d1/f", OpenMode.CREATE)
        file.write_at(0, [bytes(size)])
        if not is_named:
            vfs.unlink_if_exists("/b/d1/f")
        began_us = world.now_us
        file.close()
        took_us.append(world.now_us - began_us)

    SimulatedThread(virtual_loop(world, "b"), work, "disk")
    world.run_until(60_000_000)
    return took_us[0]


def test_removing_a_file_takes_time_by_its_size_when_its_space_becomes_free() -> None:
    assert _close_us(size=10_000_000, is_named=False) > 100 * _close_us(size=1_000, is_named=False)
    assert _close_us(size=10_000_000, is_named=True) < 100
