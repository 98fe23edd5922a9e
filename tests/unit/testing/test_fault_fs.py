"""The slow disk is a disk: files, names and space are as anywhere, and writes take their time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kraftjbod.storage.vfs import OpenMode, RealVfs, write_atomically
from kraftjbod.testing import fault_fs
from kraftjbod.testing.fault_fs import SlowDisk

pytestmark = [
    pytest.mark.disk,
    pytest.mark.skipif(fault_fs.why_not() is not None, reason=str(fault_fs.why_not())),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[SlowDisk]:
    with fault_fs.slow_disk(tmp_path) as disk:
        yield disk


def test_files_and_names(disk: SlowDisk, tmp_path: Path) -> None:
    vfs, root = RealVfs(), disk.path
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


def test_owners_and_modes(disk: SlowDisk) -> None:
    path = f"{disk.path}/mine"
    Path(path).write_bytes(b"")
    os.chmod(path, 0o640)
    os.chown(path, 12, 34)
    found = os.stat(path)
    assert (found.st_mode & 0o777, found.st_uid, found.st_gid) == (0o640, 12, 34)


def test_the_mount_ends_with_the_test(tmp_path: Path) -> None:
    with fault_fs.slow_disk(tmp_path) as disk:
        disk.set_delay(3_600)
    assert not os.path.exists(disk.path)
