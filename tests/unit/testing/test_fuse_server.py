"""The fault file system without a fault is a disk like any other."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftjbod.storage.vfs import OpenMode, RealVfs, write_atomically
from kraftjbod.testing import fault_fs, mounts
from kraftjbod.testing.fault_fs import FaultFs
from kraftjbod.testing.fuse_server import FaultOrder

REASON = fault_fs.why_not()
needs_fuse = [pytest.mark.disk, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[str]:
    backing = tmp_path / "backing"
    backing.mkdir()
    with (
        mounts.empty_mount_point() as path,
        FaultFs.mount(Path(path), backing=backing, home=tmp_path),
    ):
        yield path


def test_fault_order_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "fault"
    for order in (
        FaultOrder(fault="slow", delay_s=0.25, number=7),
        FaultOrder(fault=None, delay_s=0.0, number=8),
    ):
        order.write(path)
        assert FaultOrder.read(str(path)) == order


class TestOnTheMount:
    pytestmark = needs_fuse

    def test_vfs_operations_on_the_fuse_mount_act_as_on_a_disk(
        self, root: str, tmp_path: Path
    ) -> None:
        vfs = RealVfs()
        vfs.make_dirs(f"{root}/a/b")
        write_atomically(vfs, f"{root}/a/b/file", b"one")
        write_atomically(vfs, f"{root}/a/b/file", b"two" * 100_000)
        assert vfs.read_if_exists(f"{root}/a/b/file") == b"two" * 100_000
        file = vfs.open(f"{root}/a/b/file", OpenMode.READ_WRITE)
        vfs.rename(f"{root}/a/b", f"{root}/c")
        file.write_at(300_000, [b"behind"])
        file.truncate(300_003)
        assert (file.size(), file.read_at(299_997, 99)) == (300_003, b"twobeh")
        file.close()
        assert [(e.name, e.is_dir) for e in vfs.list_dir(root)] == [("a", True), ("c", True)]
        assert (tmp_path / "backing/c/file").stat().st_size == 300_003
        assert vfs.space(root).total_bytes > 0
        assert vfs.device(root) != vfs.device(str(tmp_path))
        vfs.remove_tree(f"{root}/c")
        vfs.unlink_if_exists(f"{root}/nothing")
        assert not vfs.exists(f"{root}/c/file")
        lock = vfs.try_lock(f"{root}/lock")
        assert lock is not None
        assert vfs.try_lock(f"{root}/lock") is None

    def test_owners_modes_and_times_set_on_the_fuse_mount_are_returned(self, root: str) -> None:
        path = f"{root}/mine"
        Path(path).write_bytes(b"")
        os.chmod(path, 0o640)
        os.utime(path, (11, 22))
        found = os.stat(path)
        assert (found.st_mode & 0o777, found.st_atime, found.st_mtime) == (0o640, 11, 22)
        os.utime(path)
        assert os.stat(path).st_mtime > 22
        if os.geteuid() == 0:
            os.chown(path, 12, 34)
            assert (os.stat(path).st_uid, os.stat(path).st_gid) == (12, 34)

    def test_unlinked_file_exists_while_it_is_open(self, root: str) -> None:
        with open(f"{root}/file", "w+b", buffering=0) as file:
            file.write(b"first")
            os.unlink(f"{root}/file")
            Path(f"{root}/file").write_bytes(b"another")
            assert os.fstat(file.fileno()).st_size == 5
            assert os.pread(file.fileno(), 9, 0) == b"first"
        assert Path(f"{root}/file").read_bytes() == b"another"

    def test_append_and_truncate_on_the_fuse_mount_change_the_file(self, root: str) -> None:
        with open(f"{root}/file", "ab", buffering=0) as file:
            file.write(b"one")
            file.write(b"two")
        with open(f"{root}/file", "ab", buffering=0) as file:
            file.write(b"three")
        assert Path(f"{root}/file").read_bytes() == b"onetwothree"
        with open(f"{root}/file", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, 10_000)
        assert Path(f"{root}/file").read_bytes() == bytes(10_000)

    def test_symlink_on_the_fuse_mount_is_refused(self, root: str) -> None:
        with pytest.raises(OSError) as reported:
            os.symlink("there", f"{root}/link")
        assert reported.value.errno in (errno.ENOSYS, errno.EPERM)
        assert os.listdir(root) == []
