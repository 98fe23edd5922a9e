"""``RealVfs`` on a real directory, and ``MemVfs`` with the same behaviour."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EIO, ENOTEMPTY
from functools import partial
from pathlib import Path

import pytest

from kraftjbod.storage.vfs import OpenMode, RealVfs, Vfs, write_atomically
from kraftjbod.testing.simulation.memory_vfs import MemVfs


@pytest.fixture(params=["real", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Vfs, str]:
    if request.param == "real":
        return RealVfs(), str(tmp_path)
    vfs = MemVfs()
    vfs.make_dirs("/root")
    return vfs, "/root"


def test_vfs_file_writes_reads_and_truncates(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/f", OpenMode.CREATE)
    file.write_at(0, [b"abc", bytearray(b"def"), memoryview(b"ghi")])
    file.write_at(3, [b"DEF"])
    file.sync()
    assert file.size() == 9
    assert bytes(file.read_at(2, 5)) == b"cDEFg"
    assert bytes(file.read_at(7, 100)) == b"hi"
    assert bytes(file.read_at(9, 1)) == b""
    file.truncate(4)
    assert vfs.read_if_exists(f"{root}/f") == b"abcD"
    file.close()


def test_vfs_creates_files_unreadable_by_other_users(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        vfs = RealVfs()
        vfs.open(f"{tmp_path}/log", OpenMode.CREATE).close()
        lock = vfs.try_lock(f"{tmp_path}/lock")
        assert lock is not None
        lock.close()
        write_atomically(vfs, f"{tmp_path}/notes", b"")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"log": 0o640, "lock": 0o640, "notes": 0o640}


def test_vfs_write_at_accepts_more_buffers_than_one_system_call(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    file = vfs.open(f"{root}/f", OpenMode.CREATE)
    file.write_at(0, [b"x"] * 3000)
    assert file.size() == 3000
    file.close()


def test_vfs_renames_lists_and_removes_names(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    vfs.make_dirs(f"{root}/a/b")
    vfs.make_dirs(f"{root}/a/b")
    write_atomically(vfs, f"{root}/a/f", b"one")
    write_atomically(vfs, f"{root}/a/f", b"2", sync=False)
    for sized, size_bytes in (("f", 1), ("", 1), (None, None), (".log", None)):
        listed = [(e.name, e.is_dir, e.size_bytes) for e in vfs.list_dir(f"{root}/a", sized=sized)]
        assert listed == [("b", True, 0), ("f", False, size_bytes)]
    vfs.rename(f"{root}/a", f"{root}/c")
    assert vfs.read_if_exists(f"{root}/c/f") == b"2"
    assert not vfs.exists(f"{root}/a/f")
    assert [vfs.is_dir(f"{root}/{name}") for name in ("c", "c/f", "a")] == [True, False, False]
    vfs.make_dirs(f"{root}/d")
    with pytest.raises(OSError, match=r"not empty") as refused:
        vfs.rename(f"{root}/d", f"{root}/c")
    assert refused.value.errno == ENOTEMPTY
    vfs.rename(f"{root}/d", f"{root}/c/b")
    vfs.unlink_if_exists(f"{root}/c/f")
    vfs.unlink_if_exists(f"{root}/c/f")
    assert vfs.read_if_exists(f"{root}/c/f") is None
    vfs.sync_dir(root)
    vfs.remove_tree(f"{root}/c")
    assert not vfs.exists(f"{root}/c")


def test_list_dir_does_not_follow_symbolic_links(tmp_path: Path) -> None:
    (tmp_path / "behind").mkdir()
    (tmp_path / "listed").mkdir()
    (tmp_path / "listed/dangling").symlink_to("nowhere")
    (tmp_path / "listed/to-a-directory").symlink_to(tmp_path / "behind")
    write_atomically(RealVfs(), f"{tmp_path}/listed/file", b"12")
    listed = RealVfs().list_dir(f"{tmp_path}/listed")
    assert [(e.name, e.is_dir, e.is_link) for e in listed] == [
        ("dangling", False, True),
        ("file", False, False),
        ("to-a-directory", False, True),
    ]


@pytest.mark.parametrize(("sized", "stats"), [(None, 0), (".log", 3), ("", 6)])
def test_list_dir_reads_inodes_for_sizes_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sized: str | None, stats: int
) -> None:
    """Each inode costs a seek on a disk whose inodes are not cached."""
    asked: list[str] = []

    class CountedEntry:
        def __init__(self, entry: os.DirEntry[str]) -> None:
            self._entry, self.name = entry, entry.name
            self.is_dir, self.is_symlink = entry.is_dir, entry.is_symlink

        def stat(self, *, follow_symlinks: bool) -> os.stat_result:
            asked.append(self.name)
            return self._entry.stat(follow_symlinks=follow_symlinks)

    scandir = os.scandir

    @contextmanager
    def counted(path: str) -> Iterator[Iterator[CountedEntry]]:
        with scandir(path) as entries:
            yield map(CountedEntry, entries)

    for number in range(3):
        (tmp_path / f"{number}.log").touch()
        (tmp_path / f"{number}.index").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(os, "scandir", counted)
    assert len(RealVfs().list_dir(f"{tmp_path}", sized=sized)) == 7
    assert len(asked) == stats


def test_list_dir_skips_names_that_vanish_meanwhile(tmp_path: Path) -> None:
    """A cleaner thread renames files while a directory is listed."""
    for name in range(50):
        (tmp_path / f"{name}").touch()
    vfs, stopped = RealVfs(), threading.Event()

    def rename_back_and_forth() -> None:
        while not stopped.is_set():
            for name in range(50):
                vfs.rename(f"{tmp_path}/{name}", f"{tmp_path}/{name}.swap")
            for name in range(50):
                vfs.rename(f"{tmp_path}/{name}.swap", f"{tmp_path}/{name}")

    renaming = threading.Thread(target=rename_back_and_forth)
    renaming.start()
    try:
        for _ in range(500):
            names = [entry.name for entry in vfs.list_dir(f"{tmp_path}", sized="")]
            assert len(names) == len(set(names))
            assert {name.removesuffix(".swap") for name in names} <= set(map(str, range(50)))
    finally:
        stopped.set()
        renaming.join()


def test_remove_tree_of_absent_path_does_nothing(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    vfs.make_dirs(f"{root}/t-0")
    vfs.remove_tree(f"{root}/t-0-delete")
    assert vfs.exists(f"{root}/t-0")


def test_remove_tree_skips_names_that_vanish_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator removes the same directory with ``rm -r``."""
    directory = tmp_path / "t-0-delete"
    directory.mkdir()
    for number in range(5):
        (directory / f"{number}.log").touch()
    unlink = os.unlink

    def unlink_after_operator(path: str, *, dir_fd: int | None = None) -> None:
        monkeypatch.setattr(os, "unlink", unlink)
        unlink(path, dir_fd=dir_fd)
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", unlink_after_operator)
    RealVfs().remove_tree(str(directory))
    assert not directory.exists()


def test_vfs_operations_on_an_absent_path_raise_file_not_found(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    for op in (
        lambda: vfs.open(f"{root}/no", OpenMode.READ_WRITE),
        lambda: vfs.rename(f"{root}/no", f"{root}/x"),
        lambda: vfs.list_dir(f"{root}/no"),
        lambda: vfs.space(f"{root}/no"),
        lambda: vfs.device(f"{root}/no"),
        lambda: vfs.open_stream(f"{root}/no"),
    ):
        with pytest.raises(FileNotFoundError):
            op()


def test_try_lock_has_one_holder(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    held = vfs.try_lock(f"{root}/.lock")
    assert held is not None
    assert vfs.try_lock(f"{root}/.lock") is None
    held.close()
    again = vfs.try_lock(f"{root}/.lock")
    assert again is not None
    again.close()


def test_vfs_let_go_releases_the_lock(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    assert vfs.try_lock(f"{root}/.lock") is not None
    vfs.let_go(root)
    vfs.let_go(root)
    other = RealVfs() if isinstance(vfs, RealVfs) else vfs
    again = other.try_lock(f"{root}/.lock")
    assert again is not None
    again.close()


@contextmanager
def no_free_descriptors() -> Iterator[None]:
    """Make each open of this process fail with EMFILE."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    fillers = [os.dup(0)]
    while fillers[-1] < highest:
        fillers.append(os.dup(0))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(fillers[-1], highest) + 1, hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open("/", os.O_RDONLY)
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)


def test_vfs_let_go_needs_no_descriptor(tmp_path: Path) -> None:
    vfs = RealVfs()
    assert vfs.try_lock(f"{tmp_path}/.lock") is not None
    file = vfs.open(f"{tmp_path}/f", OpenMode.CREATE)
    with no_free_descriptors():
        vfs.let_go(f"{tmp_path}")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.sync()
    again = RealVfs().try_lock(f"{tmp_path}/.lock")
    assert again is not None
    again.close()


def test_sync_dir_succeeds_without_a_free_descriptor(tmp_path: Path) -> None:
    """Earlier renames and removals must become durable without a free descriptor."""
    vfs = RealVfs()
    with no_free_descriptors():
        vfs.sync_dir(f"{tmp_path}")
        vfs.sync_dir(f"{tmp_path}")


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_vfs_close_let_go_closes_the_descriptors(tmp_path: Path) -> None:
    vfs = RealVfs()
    before = open_descriptors()
    files = [vfs.open(f"{tmp_path}/{n}", OpenMode.CREATE) for n in range(9)]
    vfs.let_go(f"{tmp_path}")
    assert len(open_descriptors()) == len(before) + 9
    vfs.close_let_go(f"{tmp_path}")
    assert open_descriptors() == before
    other = RealVfs().open(f"{tmp_path}/other", OpenMode.CREATE)
    for file in files:
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.write_at(0, [b"late"])
        file.close()
    other.write_at(0, [b"mine"])
    other.close()


def test_vfs_file_after_let_go_refuses_operations_and_keeps_its_descriptor_number(
    tmp_path: Path,
) -> None:
    """A reused number would let a late write go into another file."""
    vfs, healthy = RealVfs(), RealVfs()
    (tmp_path / "dead").mkdir()
    path = f"{tmp_path}/dead/f"
    dead = vfs.open(path, OpenMode.CREATE)
    dead.write_at(0, [b"before"])
    beside = vfs.open(f"{tmp_path}/beside", OpenMode.CREATE)
    vfs.let_go(f"{tmp_path}/dead")
    others = [healthy.open(f"{tmp_path}/{n}", OpenMode.CREATE) for n in range(9)]
    for straggler in (
        lambda: dead.write_at(0, [b"late"]),
        lambda: dead.read_at(0, 1),
        lambda: dead.read_cached_at(0, 1),
        lambda: dead.truncate(0),
        dead.sync,
    ):
        with pytest.raises(OSError, match="Bad file descriptor"):
            straggler()
    dead.close()
    for file in others:
        file.write_at(0, [b"mine"])
        assert file.read_at(0, 9) == b"mine"
        file.close()
    beside.write_at(0, [b"elsewhere"])
    beside.close()
    with pytest.raises(OSError, match="Stale file handle"):
        vfs.open(path, OpenMode.READ)
    assert healthy.read_if_exists(path) == b"before"


def test_vfs_space_is_within_total_and_open_stream_reads_the_file(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    assert 0 < vfs.space(root).usable_bytes <= vfs.space(root).total_bytes
    write_atomically(vfs, f"{root}/f", b"text")
    with vfs.open_stream(f"{root}/f") as stream:
        assert stream.read() == b"text"


def test_copy_from_copies_a_range_between_files(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    source = vfs.open(f"{root}/source", OpenMode.CREATE)
    source.write_at(0, [b"0123456789"])
    target = vfs.open(f"{root}/target", OpenMode.CREATE)
    target.write_at(0, [b"abcd"])
    assert target.copy_from(source, 3, 4) == 4
    assert bytes(target.read_at(0, 100)) == b"abc3456"
    assert target.copy_from(source, 7, 100) == 3
    assert target.copy_from(source, 10, 100) == 0
    assert bytes(target.read_at(0, 100)) == b"abc3456789"
    target.sync()
    target.forget_cached(0, 10)
    assert bytes(target.read_at(0, 100)) == b"abc3456789"


def test_open_if_exists_returns_none_for_an_absent_file(place: tuple[Vfs, str]) -> None:
    vfs, root = place
    assert vfs.open_if_exists(f"{root}/f") is None
    vfs.open(f"{root}/f", OpenMode.CREATE).write_at(0, [b"abc"])
    found = vfs.open_if_exists(f"{root}/f")
    assert found is not None
    assert bytes(found.read_at(0, 9)) == b"abc"


def test_sync_side_by_side_runs_several_at_a_time() -> None:
    """Two fsyncs wait for each other, and would never end one after the other."""
    barrier = threading.Barrier(2, timeout=30)
    beats: list[str] = []

    def sync() -> None:
        barrier.wait()

    RealVfs().sync_side_by_side([sync] * 16, lambda: beats.append(threading.current_thread().name))
    assert beats == [threading.current_thread().name] * 16


def test_sync_side_by_side_raises_an_error_after_all_have_ended() -> None:
    ended: list[int] = []

    def sync(number: int) -> None:
        ended.append(number)
        if number == 5:
            raise OSError(EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        RealVfs().sync_side_by_side([partial(sync, n) for n in range(100)], lambda: None)
    assert sorted(ended) == list(range(100))


def test_sync_side_by_side_without_another_thread_uses_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ended: list[int] = []
    beats: list[int] = []
    RealVfs().sync_side_by_side(
        [partial(ended.append, n) for n in range(100)], lambda: beats.append(0)
    )
    assert (ended, len(beats)) == (list(range(100)), 100)
