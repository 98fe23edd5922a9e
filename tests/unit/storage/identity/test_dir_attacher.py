"""The directory attacher: opening directories at run time, and its refusals."""

from __future__ import annotations

import asyncio
import gc
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import LOST_DIR
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.identity.dir_attacher import DirAttacher
from kraftjbod.storage.identity.known_dirs import KnownDirs, read_known_dirs, write_known_dirs
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.vfs import OpenMode, RealVfs, Vfs
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    CLUSTER_ID,
    NODE_ID,
    directory_id,
    format_dir,
    open_dir,
    random_bytes_of,
    require_no_report,
)
from tests.faults.vfs_fault import Fault, FaultVfs


class Node:
    """A node with its metadata directory at /meta, and disks at other paths."""

    def __init__(
        self,
        *,
        reserve_bytes: int = 0,
        timeout_ms: int = 30_000,
        allowed_roots: Sequence[str] = ("/",),
    ) -> None:
        self.meta = MemVfs()
        format_dir(self.meta, "/meta", 100)
        self.disks: dict[str, Vfs] = {}
        self.made: list[weakref.ref[LogDir]] = []
        self.news = LogDirFailureChannel(max_dirs=9)
        self.reserve_bytes = reserve_bytes
        self.attacher = DirAttacher(
            metadata_dir=open_dir(self.meta, "/meta", 100),
            cluster_id=CLUSTER_ID,
            node_id=NODE_ID,
            make_log_dir=self.make,
            random_bytes=random_bytes_of(),
            timeout_ms=timeout_ms,
            allowed_roots=allowed_roots,
        )

    def make(self, path: str) -> LogDir:
        log_dir = open_dir(
            self.disks[path], path, channel=self.news, reserve_bytes=self.reserve_bytes
        )
        log_dir.directory_id = LOST_DIR
        self.made.append(weakref.ref(log_dir))
        return log_dir

    def disk(self, path: str, number: int | None = None) -> FaultVfs:
        inner = MemVfs()
        inner.make_dirs(path)
        if number is not None:
            format_dir(inner, path, number)
        self.disks[path] = vfs = FaultVfs(inner)
        return vfs

    def dead(self, path: str, number: int) -> LogDir:
        log_dir = open_dir(self.disks[path], path, number)
        with capture_logs():
            log_dir.go_offline("a test said so")
        return log_dir

    def known(self) -> KnownDirs:
        return read_known_dirs(self.meta, "/meta")


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def reason_for_refusal(node: Node, path: str) -> str:
    """Return the logged reason of a refusal; the client receives the same answer for each path."""
    with capture_logs() as logs, pytest.raises(OperatingError) as caught:
        await node.attacher.open_new(path, [])
    (logged,) = (e for e in logs if e["event"] == "new_log_dir_not_taken")
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.message.startswith(f"{path} is refused: name a directory below ")
    reason: str = logged["reason"]
    assert reason not in caught.value.message
    return reason


async def test_open_new_refuses_a_symlink_that_leaves_the_allowed_roots(tmp_path: Path) -> None:
    """An allowed root may itself be a symlink."""
    inside, outside = tmp_path / "disks", tmp_path / "elsewhere"
    for path in (inside / "d1", outside / "d1"):
        path.mkdir(parents=True)
    (inside / "out").symlink_to(outside / "d1")
    (inside / "in").symlink_to(inside / "d1")
    (tmp_path / "root").symlink_to(inside)
    for roots in ([str(inside)], [str(tmp_path / "root")]):
        node = Node(allowed_roots=roots)
        node.disks = dict.fromkeys((f"{inside}/out", f"{inside}/in"), RealVfs())
        reason = await reason_for_refusal(node, f"{inside}/out")
        assert reason == f"{inside}/out is {outside}/d1, which is not below log.dirs.allowed.roots"
        assert list((outside / "d1").iterdir()) == []
        (await node.attacher.open_new(f"{inside}/in", [])).close()


async def test_open_new_keeps_at_most_one_finished_failed_attempt() -> None:
    node = Node()
    for number in range(50):
        node.disks[f"/none-{number}"] = MemVfs()
        await reason_for_refusal(node, f"/none-{number}")
        await until(lambda: not any(d.is_busy for d in living(node)))

    def are_forgotten() -> bool:
        gc.collect()
        return len(living(node)) == 1

    # A thread that is about to end still refers to its directory.
    await until(are_forgotten)


def living(node: Node) -> list[LogDir]:
    """Return the directories that still exist of all that the node made."""
    return [log_dir for made in node.made if (log_dir := made()) is not None]


async def test_reopen_keeps_the_directory_cordoned() -> None:
    node = Node()
    node.disk("/d1", 1)
    dead = node.dead("/d1", 1)
    dead.is_cordoned = True
    back = await node.attacher.reopen(dead)
    assert (back.directory_id, back.state, back.is_cordoned) == (
        directory_id(1),
        LogDirState.ONLINE,
        True,
    )
    back.close()


async def test_dismiss_after_cancellation_logs_the_reason() -> None:
    node = Node()
    node.disk("/d1", 1)
    back = await node.attacher.reopen(node.dead("/d1", 1))
    with capture_logs() as logs:
        node.attacher.dismiss(back, asyncio.CancelledError())
    assert [(e["event"], e["reason"]) for e in logs] == [
        ("log_dir_not_opened", "cancelled, because the broker stops")
    ]


async def test_reopen_reports_a_failure_to_the_channel_only_after_take_into_service() -> None:
    node = Node()
    node.disk("/d1", 1)
    back = await node.attacher.reopen(node.dead("/d1", 1))
    with capture_logs() as logs:
        back.go_offline("dead again")
    assert [(e["event"], e["log_level"]) for e in logs] == [("log_dir_not_opened", "info")]
    await require_no_report(node.news)
    back.take_into_service()
    assert await node.news.take() is back


async def test_reopen_accepts_the_id_of_a_directory_unknown_to_the_node() -> None:
    """The directory was absent at the start, and the node has never seen it."""
    node = Node()
    node.disk("/d1", 1)
    dead = node.dead("/d1", 1)
    dead.directory_id = LOST_DIR
    back = await node.attacher.reopen(dead)
    assert back.directory_id == directory_id(1)
    back.close()


async def test_reopen_refuses_an_unformatted_disk() -> None:
    node = Node()
    node.disk("/d1")
    dead = node.dead("/d1", 1)
    dead.directory_id = LOST_DIR
    with pytest.raises(OperatingError, match="holds no directory of this node: take it in with"):
        await node.attacher.reopen(dead)


async def test_reopen_refuses_a_disk_with_another_known_id() -> None:
    node = Node()
    node.disk("/d1", 5)
    known = KnownDirs(ids={"/d1": directory_id(1), "/d5": directory_id(5)})
    write_known_dirs(node.meta, "/meta", known)
    with pytest.raises(OperatingError, match="the disk there is directory") as caught:
        await node.attacher.reopen(node.dead("/d1", 1))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert str(directory_id(1)) in caught.value.message
    assert str(directory_id(5)) in caught.value.message


async def test_reopen_is_refused_while_an_old_operation_hangs() -> None:
    node = Node()
    vfs = node.disk("/d1", 1)
    dead = open_dir(vfs, "/d1", 1)
    vfs.inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"exists"})))
    waits = asyncio.ensure_future(dead.read_text(OpKind.READ, "/d1/x"))
    await until(lambda: dead.is_busy)
    with capture_logs():
        dead.go_offline("hung")
    with pytest.raises(OperatingError, match="offline"):
        await waits
    with pytest.raises(OperatingError, match="still hangs"):
        await node.attacher.reopen(dead)
    vfs.clear()
    await until(lambda: not dead.is_busy)
    (await node.attacher.reopen(dead)).close()


async def test_open_new_is_refused_while_an_earlier_attempt_hangs() -> None:
    node = Node(timeout_ms=50)
    vfs = node.disk("/d1")
    vfs.inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"exists"})))
    assert "did not answer" in await reason_for_refusal(node, "/d1")
    with pytest.raises(OperatingError, match="still hangs"):
        await node.attacher.open_new("/d1", [])
    vfs.clear()


async def test_open_new_refused_for_lack_of_space_releases_the_lock() -> None:
    node = Node(reserve_bytes=4096)
    vfs = node.disk("/d1")
    assert isinstance(vfs.inner, MemVfs)
    vfs.inner.usable_bytes = 1000
    with capture_logs(), pytest.raises(OperatingError, match="no space for its reserve"):
        await node.attacher.open_new("/d1", [])
    await until(lambda: vfs.inner.try_lock("/d1/.lock") is not None)


async def test_open_new_succeeds_directly_after_the_cause_of_a_refusal_is_removed() -> None:
    node = Node(reserve_bytes=4096)
    vfs = node.disk("/d1")
    assert isinstance(vfs.inner, MemVfs)
    enough, vfs.inner.usable_bytes = vfs.inner.usable_bytes, 1000
    let_go = vfs.let_go
    vfs.let_go = lambda root: (time.sleep(0.05), let_go(root))[1]
    with capture_logs(), pytest.raises(OperatingError, match="no space for its reserve"):
        await node.attacher.open_new("/d1", [])
    vfs.inner.usable_bytes = enough
    (await node.attacher.open_new("/d1", [])).close()


async def test_reopen_of_a_full_disk_is_saturated() -> None:
    node = Node(reserve_bytes=4096)
    vfs = node.disk("/d1", 1)
    assert isinstance(vfs.inner, MemVfs)
    vfs.inner.usable_bytes = 1000
    with capture_logs():
        back = await node.attacher.reopen(node.dead("/d1", 1))
    assert back.state is LogDirState.SATURATED
    back.close()


async def test_open_new_refuses_a_disk_with_a_metadata_log() -> None:
    node = Node()
    node.disk("/d1").inner.make_dirs("/d1/__cluster_metadata-0")
    assert "holds the metadata log of a cluster" in await reason_for_refusal(node, "/d1")


async def test_open_new_refuses_a_file() -> None:
    node = Node()
    vfs = node.disk("/d1")
    vfs.inner.open("/d1/file", OpenMode.CREATE)
    node.disks["/d1/file"] = vfs
    assert "/d1/file is no directory" in await reason_for_refusal(node, "/d1/file")


async def test_open_new_ignores_lost_and_found_and_remember_lasts_until_forget() -> None:
    node = Node()
    node.disk("/d1").inner.make_dirs("/d1/lost+found")
    log_dir = await node.attacher.open_new("/d1", [])
    await node.attacher.remember(log_dir, is_added=True)
    assert node.known().ids == {"/d1": log_dir.directory_id}
    assert node.known().added == {"/d1"}
    await node.attacher.remember(log_dir, is_added=False)
    assert node.known().added == {"/d1"}
    await node.attacher.forget(log_dir.directory_id)
    assert node.known() == KnownDirs()
    log_dir.close()


async def test_reopen_with_a_damaged_known_dirs_file_raises_operating_error() -> None:
    node = Node()
    node.meta.open("/meta/known-log-dirs.json", OpenMode.CREATE).write_at(0, [b"{"])
    node.disk("/d1", 1)
    with pytest.raises(OperatingError, match=r"known-log-dirs\.json is damaged"):
        await node.attacher.reopen(node.dead("/d1", 1))
