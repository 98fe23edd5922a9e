"""Every kind of log disk fails in every supported way, and is intact after healing."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.log_disks import (
    DISK_KINDS,
    FAULTS,
    DiskKind,
    LogDisk,
    best_kind,
    make_disk,
    why_not,
)
from kraftjbod.testing.mounts import DiskKitError

pytestmark = pytest.mark.disk

ERRNO: dict[DiskFault, int] = {
    DiskFault.EIO: errno.EIO,
    DiskFault.READONLY: errno.EROFS,
    DiskFault.FULL: errno.ENOSPC,
    DiskFault.UNMOUNT: errno.ENOENT,
}
CAN: list[tuple[DiskKind, DiskFault]] = [
    (kind, fault)
    for kind, faults in {
        "plain": ("chmod", "unmount", "wipe"),
        "ext4": FAULTS,
        "xfs": tuple(fault for fault in FAULTS if fault != "readonly"),
        "tmpfs": ("chmod", "full", "unmount", "wipe"),
        "fuse": FAULTS,
    }.items()
    for fault in faults
]


def disk_of(kind: DiskKind, home: Path) -> LogDisk:
    reason = why_not(kind)
    if reason is not None:
        pytest.skip(reason)
    return make_disk(kind, home=home)


@pytest.fixture
def disk(kind: DiskKind, tmp_path: Path) -> Iterator[LogDisk]:
    disk = disk_of(kind, tmp_path / "home")
    try:
        yield disk
    finally:
        disk.close()


def write(path: Path, data: bytes) -> None:
    """Write to the disk, past the page cache."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)


def errno_of_writing(path: Path) -> int | None:
    try:
        write(path, bytes(1024 * 1024))
    except OSError as e:
        return e.errno
    return None


@pytest.mark.parametrize(("kind", "fault"), CAN)
def test_log_disk_fails_and_heals_for_each_fault(disk: LogDisk, fault: DiskFault) -> None:
    assert disk.faults == {fault for kind, fault in CAN if kind == disk.kind}
    write(disk.path / "old", b"old")
    os.sync()
    disk.fail(fault)
    assert disk.fault == fault
    match fault:
        case "hang" | "slow":
            done = threading.Event()

            def write_later() -> None:
                write(disk.path / "later", b"x")
                done.set()

            threading.Thread(target=write_later, daemon=True).start()
            assert done.wait(30 if fault == "slow" else 0.5) is (fault == "slow")
        case "chmod":
            assert os.stat(disk.path).st_mode & 0o777 == 0
        case "wipe":
            assert list(disk.path.iterdir()) == []
        case _:
            assert errno_of_writing(disk.path / "new") == ERRNO[fault]
    disk.heal()
    disk.heal()
    assert disk.fault is None
    if fault == "hang":
        assert done.wait(30)
    assert (disk.path / "old").exists() is (fault != "wipe")
    assert errno_of_writing(disk.path / "after") is None


@pytest.mark.parametrize("kind", DISK_KINDS)
def test_closed_log_disk_leaves_no_mount(kind: DiskKind, tmp_path: Path) -> None:
    disk = disk_of(kind, tmp_path / "home")
    with suppress(DiskKitError):
        disk.fail("hang")
    disk.close()
    with open("/proc/self/mounts", encoding="utf-8") as mounts:
        assert str(disk.path.parent) not in mounts.read()


@pytest.mark.parametrize("kind", DISK_KINDS)
def test_log_disk_refuses_second_fault(disk: LogDisk) -> None:
    disk.fail("chmod")
    with pytest.raises(DiskKitError, match=r"has failed already \(chmod\): heal it first"):
        disk.fail("wipe")


@pytest.mark.parametrize("kind", ["plain"])
def test_log_disk_fail_with_unsupported_or_unknown_fault_raises_error_with_choices(
    disk: LogDisk,
) -> None:
    with pytest.raises(
        DiskKitError, match=r"a plain disk cannot readonly; others can: ext4 .*fuse"
    ):
        disk.fail("readonly")
    with pytest.raises(DiskKitError, match="no such fault: fire; there are eio, chmod,"):
        disk.fail("fire")
    assert disk.fault is None


def test_best_kind_of_log_disk_is_available_on_this_machine() -> None:
    assert why_not(best_kind()) is None
