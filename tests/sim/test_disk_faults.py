from __future__ import annotations

import errno
import random

import pytest

from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.disk_faults import DiskFaults
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from kraftjbod.testing.simulation.simulated_thread import Gate


class _Disk:
    def __init__(self) -> None:
        self.path = "/d"
        self.vfs = MemVfs()
        self.gate = Gate()
        self.slowness = 1.0
        self.rng = random.Random(1)
        self.vfs.make_dirs(self.path)
        self.vfs.open("/d/file", OpenMode.CREATE).write_at(0, [b"1234"])
        self.faults = DiskFaults(self)


def test_eio_lasts_until_healed_and_eio_once_fails_at_most_one_operation() -> None:
    disk = _Disk()
    disk.faults.begin_fault(DiskFault.EIO)
    for _ in range(3):
        with pytest.raises(OSError, match="Input/output error") as caught:
            disk.faults.strike("read_at", "/d/file")
        assert caught.value.errno == errno.EIO
    disk.faults.heal()
    disk.faults.strike("read_at", "/d/file")

    disk.faults.begin_fault(DiskFault.EIO_ONCE)
    failed = 0
    for kind in ("open", "write_at", "read_at", "copy_from", "truncate", "sync", "sync_dir") * 50:
        try:
            disk.faults.strike(kind, "/d/file")
        except OSError:
            failed += 1
    assert failed <= 1


def test_hang_slow_and_full_faults_last_until_healed() -> None:
    disk = _Disk()
    for fault in (DiskFault.HANG, DiskFault.SLOW, DiskFault.FULL):
        disk.faults.begin_fault(fault)
    assert disk.gate.is_closed and disk.slowness > 1
    with pytest.raises(OSError, match="No space left"):
        disk.vfs.open("/d/file", OpenMode.READ_WRITE).write_at(4, [b"5"])
    disk.faults.heal(DiskFault.HANG)  #  Each fault has an owner, which ends it.
    assert not disk.gate.is_closed and disk.slowness > 1
    disk.faults.heal()
    assert disk.slowness == 1
    disk.vfs.open("/d/file", OpenMode.READ_WRITE).write_at(4, [b"5"])


def test_vanished_disk_returns_unless_it_was_replaced() -> None:
    disk = _Disk()
    device = disk.vfs.device(disk.path)
    disk.faults.begin_fault(DiskFault.UNMOUNT)
    assert disk.vfs.list_dir("/d") == [] and disk.vfs.device("/d") != device
    disk.faults.heal()
    assert disk.vfs.exists("/d/file") and disk.vfs.device("/d") == device
    disk.faults.begin_fault(DiskFault.UNMOUNT)
    disk.faults.power_cut()
    disk.faults.begin_fault(DiskFault.WIPE)
    disk.faults.heal()
    assert disk.vfs.list_dir("/d") == [] and disk.vfs.device("/d") != device


def test_list_dir_with_clutter_shows_names_that_may_vanish() -> None:
    disk = _Disk()
    disk.faults.begin_fault(DiskFault.CLUTTER)
    seen, vanished = set[str](), set[str]()
    for _ in range(50):
        with disk.faults.cluttered(disk.vfs, "/d"):
            listed = disk.vfs.list_dir("/d")
        seen |= {"link" if entry.is_link else "file" for entry in listed}
        names = {entry.name for entry in disk.vfs.list_dir("/d")}
        vanished |= {entry.name for entry in listed} - names
    assert seen == {"link", "file"} and len(vanished) > 3
    disk.faults.heal()
    assert [entry.name for entry in disk.vfs.list_dir("/d")] == ["file"]
