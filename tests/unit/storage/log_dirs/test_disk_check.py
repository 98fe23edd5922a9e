"""Periodic check of a directory's identity, its free space, and the write probe."""

from __future__ import annotations

from errno import EMFILE, ENOSPC, EROFS

import pytest

from kraftjbod.storage.log_dirs.disk_check import check_disk, holds_replicas, write_probe
from kraftjbod.storage.vfs import OpenMode, Space, write_atomically
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import directory_id, format_dir
from tests.faults.vfs_fault import Fault, FaultVfs


def make() -> tuple[FaultVfs, MemVfs]:
    mem = MemVfs()
    format_dir(mem, "/d1", 1)
    return FaultVfs(mem), mem


def check(vfs: FaultVfs, *, device: int = 1, has_free_space: bool = True) -> Space:
    return check_disk(
        vfs, "/d1", directory_id=directory_id(1), device=device, has_free_space=has_free_space
    )


def test_check_disk_returns_the_space_and_leaves_no_file() -> None:
    vfs, mem = make()
    before = mem.used_bytes()
    assert check(vfs).usable_bytes > 0
    assert mem.used_bytes() == before
    assert [entry.name for entry in mem.list_dir("/d1")] == ["meta.properties"]


@pytest.mark.parametrize(("number", "message"), [(2, "expected"), (None, "directory id is none")])
def test_check_disk_fails_for_another_directory_id(number: int | None, message: str) -> None:
    vfs, mem = make()
    if number is None:
        mem.unlink_if_exists("/d1/meta.properties")
    else:
        format_dir(mem, "/d1", number)
    with pytest.raises(OSError, match=message):
        check(vfs)


def test_check_disk_without_a_free_descriptor_detects_a_missing_identity() -> None:
    vfs, mem = make()
    mem.unlink_if_exists("/d1/meta.properties")
    vfs.inject(Fault(errno=EMFILE, kinds=frozenset({"open", "read_if_exists"})))
    with pytest.raises(OSError, match="directory id is none"):
        check(vfs)


def test_check_disk_of_a_malformed_identity_raises_an_os_error() -> None:
    """Only an ``OSError`` takes the directory OFFLINE. Other errors count as bugs of the check."""
    vfs, mem = make()
    write_atomically(mem, "/d1/meta.properties", b"version=1")
    with pytest.raises(OSError, match=r"meta.properties: cluster.id was not found"):
        check(vfs)


def test_check_disk_fails_for_another_device() -> None:
    with pytest.raises(OSError, match="now on device 1, was on 9"):
        check(make()[0], device=9)


def test_check_disk_of_a_full_disk_fails_only_with_has_free_space() -> None:
    vfs, mem = make()
    mem.capacity_inodes = 0
    with pytest.raises(OSError, match="No space") as caught:
        check(vfs)
    assert caught.value.errno == ENOSPC
    assert check(vfs, has_free_space=False).free_inodes == 0


@pytest.mark.parametrize("has_free_space", [True, False])
def test_check_disk_detects_a_read_only_disk(has_free_space: bool) -> None:
    vfs, _ = make()
    vfs.inject(Fault(errno=EROFS, kinds=frozenset({"open"})))
    with pytest.raises(OSError, match="Read-only"):
        check(vfs, has_free_space=has_free_space)


@pytest.mark.parametrize(
    ("name", "holds"),
    [("t-0", True), ("__cluster_metadata-0", True), ("lost+found", False), (None, False)],
)
def test_holds_replicas_ignores_files_and_other_directories(name: str | None, holds: bool) -> None:
    vfs, mem = make()
    if name is not None:
        mem.make_dirs(f"/d1/{name}")
    mem.open("/d1/u-0", OpenMode.CREATE)
    assert holds_replicas(vfs, "/d1") is holds


def seen_by(vfs: FaultVfs) -> list[str]:
    kinds: list[str] = []
    vfs.on_operation = lambda kind, path: kinds.append(kind)
    write_probe(vfs, "/d1")
    vfs.on_operation = None
    return kinds


def test_write_probe_writes_syncs_and_removes_a_file() -> None:
    vfs = FaultVfs(MemVfs())
    vfs.make_dirs("/d1")
    kinds = seen_by(vfs)
    assert kinds.index("write_at") < kinds.index("sync") < kinds.index("unlink_if_exists")
    assert vfs.list_dir("/d1") == []


@pytest.mark.parametrize("kind", ["write_at", "sync"])
def test_write_probe_failure_leaves_no_file_and_no_descriptor(kind: str) -> None:
    vfs = FaultVfs(MemVfs())
    vfs.make_dirs("/d1")
    vfs.inject(Fault(kinds=frozenset({kind})))
    kinds: list[str] = []
    vfs.on_operation = lambda kind, path: kinds.append(kind)
    with pytest.raises(OSError, match="error"):
        write_probe(vfs, "/d1")
    assert kinds.count("close") == kinds.count("open") == 1
    assert vfs.list_dir("/d1") == []
