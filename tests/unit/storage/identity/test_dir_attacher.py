"""Opening dirs at run time: who may come, what is written, what is let go of."""

from __future__ import annotations

import asyncio
import time
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
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    CLUSTER_ID,
    NODE_ID,
    directory_id,
    format_dir,
    open_dir,
    random_bytes_of,
)
from tests.faults.vfs_fault import Effect, Fault, FaultVfs


class Place:
    """A node with its metadata at /meta, and disks at other paths."""

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


async def reason_not_to_take(place: Place, path: str) -> str:
    """Why it is not taken, as it is logged; who asks hears the same for every path."""
    with capture_logs() as logs, pytest.raises(OperatingError) as caught:
        await place.attacher.open_new(path, [])
    (logged,) = (e for e in logs if e["event"] == "new_log_dir_not_taken")
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert caught.value.message.startswith(f"{path} is not taken: name a directory below ")
    reason: str = logged["reason"]
    assert reason not in caught.value.message
    return reason


async def test_a_link_leads_nowhere_that_its_place_does_not_allow(tmp_path: Path) -> None:
    """Nor does a root that is a link itself lead anybody astray."""
    inside, outside = tmp_path / "disks", tmp_path / "elsewhere"
    for path in (inside / "d1", outside / "d1"):
        path.mkdir(parents=True)
    (inside / "out").symlink_to(outside / "d1")
    (inside / "in").symlink_to(inside / "d1")
    (tmp_path / "root").symlink_to(inside)
    for roots in ([str(inside)], [str(tmp_path / "root")]):
        place = Place(allowed_roots=roots)
        place.disks = dict.fromkeys((f"{inside}/out", f"{inside}/in"), RealVfs())
        reason = await reason_not_to_take(place, f"{inside}/out")
        assert reason == f"{inside}/out is {outside}/d1, which is not below log.dirs.allowed.roots"
        assert list((outside / "d1").iterdir()) == []
        (await place.attacher.open_new(f"{inside}/in", [])).close()


async def test_what_was_tried_in_vain_is_not_kept_for_ever() -> None:
    place = Place()
    for number in range(50):
        place.disks[f"/none-{number}"] = MemVfs()
        await reason_not_to_take(place, f"/none-{number}")
        await until(lambda: not any(d.is_busy for d in place.attacher._failed.values()))
    assert len(place.attacher._failed) == 1


async def test_a_dead_dir_comes_back_cordoned_as_it_was() -> None:
    place = Place()
    place.disk("/d1", 1)
    dead = place.dead("/d1", 1)
    dead.is_cordoned = True
    back = await place.attacher.reopen(dead)
    assert (back.directory_id, back.state, back.is_cordoned) == (
        directory_id(1),
        LogDirState.ONLINE,
        True,
    )
    back.close()


async def test_dir_attacher_dismissal_of_a_cancelled_reopen_says_why() -> None:
    place = Place()
    place.disk("/d1", 1)
    back = await place.attacher.reopen(place.dead("/d1", 1))
    with capture_logs() as logs:
        place.attacher.dismiss(back, asyncio.CancelledError())
    assert [(e["event"], e["reason"]) for e in logs] == [
        ("log_dir_not_opened", "cancelled, because the broker stops")
    ]


async def test_what_becomes_of_a_dir_on_trial_is_reported_when_it_is_taken_into_service() -> None:
    place = Place()
    place.disk("/d1", 1)
    back = await place.attacher.reopen(place.dead("/d1", 1))
    with capture_logs() as logs:
        back.go_offline("dead again")
    assert [(e["event"], e["log_level"]) for e in logs] == [("log_dir_not_opened", "info")]
    assert place.news._changed.empty()
    back.take_into_service()
    assert await place.news.take() is back


async def test_a_dir_whose_id_nobody_knew_may_say_who_it_is() -> None:
    """Absent at the start, and never seen by this node: it is what it says."""
    place = Place()
    place.disk("/d1", 1)
    dead = place.dead("/d1", 1)
    dead.directory_id = LOST_DIR
    back = await place.attacher.reopen(dead)
    assert back.directory_id == directory_id(1)
    back.close()


async def test_a_new_disk_is_no_return_of_one_that_had_no_name() -> None:
    place = Place()
    place.disk("/d1")
    dead = place.dead("/d1", 1)
    dead.directory_id = LOST_DIR
    with pytest.raises(OperatingError, match="holds no directory of this node: take it in with"):
        await place.attacher.reopen(dead)


async def test_another_s_disk_in_a_path_without_a_name_is_not_taken_for_it() -> None:
    place = Place()
    place.disk("/d1", 5)
    known = KnownDirs(ids={"/d1": directory_id(1), "/d5": directory_id(5)})
    write_known_dirs(place.meta, "/meta", known)
    with pytest.raises(OperatingError, match="the disk there is directory") as caught:
        await place.attacher.reopen(place.dead("/d1", 1))
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert str(directory_id(1)) in caught.value.message
    assert str(directory_id(5)) in caught.value.message


async def test_while_an_old_operation_hangs_nothing_is_opened() -> None:
    place = Place()
    vfs = place.disk("/d1", 1)
    dead = open_dir(vfs, "/d1", 1)
    vfs.inject(Fault(effect=Effect.NEVER, kinds=frozenset({"exists"})))
    waits = asyncio.ensure_future(dead.read_text(OpKind.READ, "/d1/x"))
    await until(lambda: dead.is_busy)
    with capture_logs():
        dead.go_offline("hung")
    with pytest.raises(OperatingError, match="offline"):
        await waits
    with pytest.raises(OperatingError, match="still hangs"):
        await place.attacher.reopen(dead)
    vfs.clear()
    await until(lambda: not dead.is_busy)
    (await place.attacher.reopen(dead)).close()


async def test_a_new_disk_that_hung_is_not_tried_while_it_does() -> None:
    place = Place(timeout_ms=50)
    vfs = place.disk("/d1")
    vfs.inject(Fault(effect=Effect.NEVER, kinds=frozenset({"exists"})))
    assert "did not answer" in await reason_not_to_take(place, "/d1")
    with pytest.raises(OperatingError, match="still hangs"):
        await place.attacher.open_new("/d1", [])
    vfs.clear()


async def test_what_a_new_disk_is_refused_for_is_undone() -> None:
    place = Place(reserve_bytes=4096)
    vfs = place.disk("/d1")
    assert isinstance(vfs.inner, MemVfs)
    vfs.inner.usable_bytes = 1000
    with capture_logs(), pytest.raises(OperatingError, match="no space for its reserve"):
        await place.attacher.open_new("/d1", [])
    await until(lambda: vfs.inner.try_lock("/d1/.lock") is not None)


async def test_a_disk_that_was_refused_is_taken_at_once_when_it_is_in_order() -> None:
    place = Place(reserve_bytes=4096)
    vfs = place.disk("/d1")
    assert isinstance(vfs.inner, MemVfs)
    enough, vfs.inner.usable_bytes = vfs.inner.usable_bytes, 1000
    let_go = vfs.let_go
    vfs.let_go = lambda root: (time.sleep(0.05), let_go(root))[1]
    with capture_logs(), pytest.raises(OperatingError, match="no space for its reserve"):
        await place.attacher.open_new("/d1", [])
    vfs.inner.usable_bytes = enough
    (await place.attacher.open_new("/d1", [])).close()


async def test_a_disk_that_was_full_comes_back_full() -> None:
    place = Place(reserve_bytes=4096)
    vfs = place.disk("/d1", 1)
    assert isinstance(vfs.inner, MemVfs)
    vfs.inner.usable_bytes = 1000
    with capture_logs():
        back = await place.attacher.reopen(place.dead("/d1", 1))
    assert back.state is LogDirState.SATURATED
    back.close()


async def test_a_disk_with_a_metadata_log_is_no_log_dir() -> None:
    place = Place()
    place.disk("/d1").inner.make_dirs("/d1/__cluster_metadata-0")
    assert "holds the metadata log of a cluster" in await reason_not_to_take(place, "/d1")


async def test_a_file_is_no_log_dir() -> None:
    place = Place()
    vfs = place.disk("/d1")
    vfs.inner.open("/d1/file", OpenMode.CREATE)
    place.disks["/d1/file"] = vfs
    assert "/d1/file is no directory" in await reason_not_to_take(place, "/d1/file")


async def test_what_mkfs_left_is_no_content() -> None:
    place = Place()
    place.disk("/d1").inner.make_dirs("/d1/lost+found")
    log_dir = await place.attacher.open_new("/d1", [])
    await place.attacher.remember(log_dir, is_added=True)
    assert place.known().ids == {"/d1": log_dir.directory_id}
    assert place.known().added == {"/d1"}
    await place.attacher.remember(log_dir, is_added=False)
    assert place.known().added == {"/d1"}
    await place.attacher.forget(log_dir.directory_id)
    assert place.known() == KnownDirs()
    log_dir.close()


async def test_a_damaged_memory_is_reported() -> None:
    place = Place()
    place.meta.open("/meta/known-log-dirs.json", OpenMode.CREATE).write_at(0, [b"{"])
    place.disk("/d1", 1)
    with pytest.raises(OperatingError, match=r"known-log-dirs\.json is damaged"):
        await place.attacher.reopen(place.dead("/d1", 1))
