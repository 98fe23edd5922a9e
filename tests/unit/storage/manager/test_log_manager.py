"""``LogManager`` on memory file systems: create, restart, delete, duplicates, checkpoints."""

from __future__ import annotations

import asyncio
from errno import EINVAL, EIO, EISDIR, EMFILE, ENOENT, ENOSPC
from os import strerror
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import (
    KafkaStorageError,
    LogDirImpairedError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import TopicPartition, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.replicas import dir_loading
from kraftjbod.storage.replicas.dir_loading import LoadProgress
from kraftjbod.storage.replicas.stray_mark import StrayReason
from kraftjbod.storage.vfs import OpenMode, RealVfs
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    TOPIC_ID,
    TP,
    ManualClock,
    batch,
    chores,
    directory_id,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    read_log,
)
from tests.faults.vfs_fault import Fault, FaultVfs

NO_LIMIT = 2**62


async def start(
    *vfss: MemVfs | FaultVfs, config: TopicConfig | None = None, clock: ManualClock | None = None
) -> LogManager:
    dirs = []
    for i, vfs in enumerate(vfss, 1):
        if not vfs.exists(f"/d{i}/meta.properties"):
            format_dir(vfs, f"/d{i}", i)
        dirs.append(open_dir(vfs, f"/d{i}", i, clock=clock))
    manager = manager_of(dirs, config, clock)
    await manager.load()
    return manager


def only_dir(manager: LogManager) -> LogDir:
    (log_dir,) = manager.dirs()
    return log_dir


async def test_log_manager_serves_appended_records_after_a_clean_restart() -> None:
    vfs = MemVfs()
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    records = batch(3) + batch(2)
    result = await handle.append_as_leader(records, headers_of(records), 5)
    assert (result.base_offset, result.last_offset, result.duplicate) == (0, 4, False)
    assert (handle.log_end_offset, handle.latest_epoch) == (5, 5)
    read = await read_log(handle, 0, 1 << 20, NO_LIMIT, True)
    assert [(h.base_offset, h.partition_leader_epoch) for h in headers_of(read.records)] == [
        (0, 5),
        (3, 5),
    ]
    await manager.close(broker_epoch=9)
    assert vfs.exists("/d1/.kafka_cleanshutdown")

    manager = await start(vfs)
    assert not vfs.exists("/d1/.kafka_cleanshutdown")
    handle = manager.get(TP)
    assert handle is not None
    assert handle.topic_id == TOPIC_ID
    assert (handle.log_start_offset, handle.log_end_offset) == (0, 5)
    assert handle.recovery_point == 5
    again = await read_log(handle, 0, 1 << 20, NO_LIMIT, True)
    assert again.records == read.records
    records = batch(1)
    await handle.append_as_leader(records, headers_of(records), 6)
    assert handle.end_offset_for_epoch(5) == (5, 5)


def refuse_listing(kind: str, path: str) -> None:
    """Raise an error that no file system raises."""
    if kind == "list_dir":
        raise RuntimeError("an unexpected error")


@pytest.mark.parametrize("errno", [ENOENT, EISDIR, EINVAL, EIO, None])
async def test_load_that_fails_for_any_reason_takes_the_directory_offline(
    errno: int | None,
) -> None:
    """The directory may hold the last copy of a log, which an empty log must not replace."""
    broken, healthy = MemVfs(), MemVfs()
    manager = await start(broken, healthy)
    handle = await manager.create(TP, TOPIC_ID, directory_id(2))
    await manager.close(broker_epoch=1)
    vfs = FaultVfs(broken)
    if errno is None:
        vfs.on_operation = refuse_listing
    else:
        vfs.inject(Fault(errno=errno, kinds=frozenset({"list_dir"})))
    with capture_logs() as events:
        manager = await start(vfs, healthy)
    failed, other = manager.dirs()
    assert (failed.state, other.state) == (LogDirState.OFFLINE, LogDirState.ONLINE)
    (event,) = [e for e in events if e["event"] == "log_dir_offline"]
    said = "an unexpected error" if errno is None else strerror(errno)
    assert said in event["reason"]
    assert manager.get(handle.topic_partition) is not None
    with pytest.raises(KafkaStorageError):
        await manager.create(TopicPartition("t", 1), TOPIC_ID, failed.directory_id)


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("exists", "*/.kafka_cleanshutdown"),
        ("open_stream", "*"),
        ("list_dir", "*"),
        ("open", "*.log"),
        ("read_if_exists", "*.snapshot"),
    ],
)
async def test_load_without_a_free_descriptor_is_repeated(kind: str, path: str) -> None:
    disk = MemVfs()
    manager = await start(disk)
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(batch(3), headers_of(batch(3)), 5)
    await manager.close(broker_epoch=1)
    vfs = FaultVfs(disk)
    faults = [
        vfs.inject(Fault(errno=EMFILE, kinds=frozenset({kind}), path=path, nth=n, sticky=False))
        for n in (1, 2, 3)
    ]
    manager = await start(vfs)
    loaded = manager.get(TP)
    assert loaded is not None
    assert loaded.log_end_offset == 3
    assert [fault.hits for fault in faults] == [1, 1, 1]


async def test_load_without_a_free_descriptor_for_too_long_takes_the_directory_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dir_loading, "LACK_LIMIT_MS", 50)
    vfs = FaultVfs(MemVfs())
    fault = vfs.inject(Fault(errno=EMFILE, kinds=frozenset({"list_dir"})))
    manager = await start(vfs)
    assert manager.dirs()[0].state is LogDirState.OFFLINE
    assert fault.hits > 1


async def test_load_ignores_a_dangling_link(tmp_path: Path) -> None:
    vfs, path = RealVfs(), f"{tmp_path}/d1"
    format_dir(vfs, path, 1)
    manager = manager_of([open_dir(vfs, path)])
    await manager.load()
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(batch(3), headers_of(batch(3)), 5)
    await manager.close(broker_epoch=1)
    for name in ("dangling", f"{TP}/dangling"):
        Path(path, name).symlink_to("nowhere")
    manager = manager_of([open_dir(vfs, path)])
    await manager.load()
    loaded = manager.get(TP)
    assert loaded is not None
    assert loaded.log_end_offset == 3


@pytest.mark.parametrize("name", [f"{TP}", f"{TP}/00000000000000000000.log"])
async def test_load_of_a_replica_behind_a_link_takes_the_directory_offline(
    tmp_path: Path, name: str
) -> None:
    """The checks of the directory do not cover the disk that the link points to."""
    vfs, path = RealVfs(), f"{tmp_path}/d1"
    format_dir(vfs, path, 1)
    manager = manager_of([open_dir(vfs, path)])
    await manager.load()
    await manager.create(TP, TOPIC_ID)
    await manager.close(broker_epoch=1)
    Path(path, name).rename(tmp_path / "elsewhere")
    Path(path, name).symlink_to(tmp_path / "elsewhere")
    manager = manager_of([open_dir(vfs, path)])
    await manager.load()
    assert only_dir(manager).offline_reason.endswith(
        f"{path}/{name} is a symbolic link: move what it leads to here"
    )


async def test_delete_removes_the_replica_at_once_and_its_files_later() -> None:
    clock, vfs = ManualClock(), MemVfs()
    manager = await start(vfs, clock=clock)
    handle = await manager.create(TP, TOPIC_ID)
    await manager.delete(TP)
    assert manager.get(TP) is None
    with pytest.raises(UnknownTopicOrPartitionError):
        handle.append_as_leader(batch(), headers_of(batch()), 0)
    with pytest.raises(UnknownTopicOrPartitionError):
        await manager.delete(TP)
    housekeeping = chores(manager)
    await housekeeping.purge_due()
    assert [e.name for e in vfs.list_dir("/d1") if e.name.endswith("-delete")]
    clock.ms += 60_000
    await housekeeping.purge_due()
    assert not [e.name for e in vfs.list_dir("/d1") if e.is_dir]


async def test_deleted_replica_is_kept_after_a_crash_until_discard_deleted() -> None:
    clock, vfs = ManualClock(), MemVfs()
    manager = await start(vfs)
    await manager.create(TP, TOPIC_ID)
    await manager.delete(TP)
    manager = await start(vfs, clock=clock)
    assert manager.handles() == []
    (orphan,) = manager.orphans
    assert (orphan.topic_partition, orphan.topic_id) == (TP, TOPIC_ID)
    clock.ms += 60_000
    await chores(manager).purge_due()
    # The files are kept until the metadata shows whether the replica is needed again.
    assert [e.name for e in vfs.list_dir("/d1") if e.is_dir]
    await manager.discard_deleted(orphan)
    clock.ms += 60_000
    await chores(manager).purge_due()
    assert not [e.name for e in vfs.list_dir("/d1") if e.is_dir]


async def test_rename_stray_keeps_the_files_over_a_restart() -> None:
    vfs = MemVfs()
    manager = await start(vfs)
    await manager.create(TP, TOPIC_ID)
    await manager.rename_stray(TP, StrayReason.TOPIC_UNKNOWN)
    await manager.close(1)
    manager = await start(vfs)
    assert manager.handles() == []
    assert [e.name for e in vfs.list_dir("/d1") if e.name.endswith("-stray")]


async def test_load_renames_a_replica_without_partition_metadata_to_stray() -> None:
    vfs = MemVfs()
    manager = await start(vfs)
    await manager.create(TP, TOPIC_ID)
    vfs.unlink_if_exists("/d1/t-0/partition.metadata")
    with capture_logs() as logs:
        manager = await start(vfs)
    assert manager.handles() == []
    assert "replica_set_aside_as_stray" in [entry["event"] for entry in logs]


async def test_load_ignores_unknown_names_with_one_warning() -> None:
    vfs = MemVfs()
    format_dir(vfs, "/d1", 1)
    vfs.make_dirs("/d1/lost+found")
    vfs.make_dirs("/d1/no partition")
    with capture_logs() as logs:
        await start(vfs)
    (warning,) = [entry for entry in logs if entry["event"] == "unknown_names_in_log_dir"]
    assert warning["names"] == ["lost+found", "no partition"]
    assert vfs.exists("/d1/lost+found")


async def test_load_sets_two_copies_aside_until_resolved() -> None:
    one, two = MemVfs(), MemVfs()
    for i, vfs in enumerate([one, two], 1):
        format_dir(vfs, f"/d{i}", i)
        manager = manager_of([open_dir(vfs, f"/d{i}", i)])
        await manager.load()
        await manager.create(TP, TOPIC_ID)
        await manager.close(1)
    with capture_logs() as logs:
        manager = await start(one, two)
    (warning,) = [entry for entry in logs if entry["event"] == "replica_found_twice"]
    assert warning["log_dirs"] == ["/d1", "/d2"]
    assert manager.get(TP) is None
    with pytest.raises(KafkaStorageError, match="several copies"):
        await manager.create(TP, TOPIC_ID)
    winner = manager.duplicates[TP][1]
    await manager.resolve(TP, winner)
    assert manager.get(TP) is winner
    assert not one.exists("/d1/t-0")
    assert manager.duplicates == {}


async def test_resolve_of_three_copies_delays_a_move_to_the_last_copys_directory() -> None:
    """A move into the directory took the name, and removing the copy took the directory offline."""
    disks = [FaultVfs(MemVfs()) for _ in range(3)]
    for i, vfs in enumerate(disks, 1):
        format_dir(vfs.inner, f"/d{i}", i)
        manager = manager_of([open_dir(vfs, f"/d{i}", i)])
        await manager.load()
        await manager.create(TP, TOPIC_ID)
        await manager.close(1)
    with capture_logs():
        manager = await start(*disks)
    disks[1].inject(Fault(effect=DiskFault.HANG, kinds=frozenset({"rename"})))
    resolving = asyncio.create_task(manager.resolve(TP, manager.duplicates[TP][0]))
    while manager.get(TP) is None:
        await asyncio.sleep(0)
    target = manager.dirs()[2]
    moving = asyncio.create_task(manager.create_future(TP, target, Uuid(b"m" * 16)))
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not moving.done()
    disks[1].release()
    await resolving
    await moving
    assert target.is_online
    assert not [e.name for e in disks[2].list_dir("/d3") if e.name.endswith("-stray")]


async def test_load_failure_of_one_directory_keeps_the_others_running() -> None:
    good, bad = MemVfs(), FaultVfs(MemVfs())
    format_dir(bad.inner, "/d2", 2)
    bad.inject(Fault(kinds=frozenset({"list_dir"})))
    with capture_logs() as logs:
        manager = await start(good, bad)
    assert [d.path for d in manager.offline_dirs()] == ["/d2"]
    assert "log_dir_offline" in [entry["event"] for entry in logs]
    assert (await manager.create(TP, TOPIC_ID)).log_dir.path == "/d1"


async def test_load_of_a_directory_that_fails_before_the_others_are_loaded_has_no_replicas() -> (
    None
):
    """Otherwise its replicas would stay registered, and no copy could be installed later."""
    mem, slow = MemVfs(), FaultVfs(MemVfs())
    await (await start(mem, slow)).create(TP, TOPIC_ID, open_dir(mem, "/d1", 1).directory_id)
    slow.inject(Fault(effect=DiskFault.HANG, kinds=frozenset({"list_dir"})))
    manager = manager_of([open_dir(mem, "/d1", 1), open_dir(slow, "/d2", 2)])

    def die_when_loaded(progress: LoadProgress) -> None:
        if progress.log_dir.path == "/d1" and progress.logs_done == progress.logs_total:
            asyncio.get_running_loop().call_soon(die, progress.log_dir)

    def die(log_dir: LogDir) -> None:
        log_dir.go_offline("no more")
        assert manager.drop(log_dir) == []
        slow.release()

    await manager.load(die_when_loaded)
    assert [d.path for d in manager.offline_dirs()] == ["/d1"]
    assert manager.get(TP) is None
    back = await manager.arrivals.load(open_dir(mem, "/d1", 1), lambda _: None)
    manager.arrivals.install(back, replaces=manager.dirs()[0], is_taken=lambda _: False)
    handle = manager.get(TP)
    assert handle is not None
    assert handle.log_dir is back.log_dir


async def test_close_that_fails_writes_no_clean_shutdown_mark() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(batch(), headers_of(batch()), 0)
    vfs.inject(Fault(kinds=frozenset({"sync"}), path="*.log"))
    with capture_logs() as logs:
        await manager.close(1)
    assert "log_dir_not_closed_cleanly" in [entry["event"] for entry in logs]
    assert not vfs.exists("/d1/.kafka_cleanshutdown")


async def test_high_watermark_checkpoint_survives_a_restart() -> None:
    vfs = MemVfs()
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    records = batch(10)
    await handle.append_as_leader(records, headers_of(records), 0)
    await manager.checkpoint_high_watermarks({TP: 7, TopicPartition("gone", 1): 3})
    await manager.close(1)
    handle = (await start(vfs)).get(TP)
    assert handle is not None
    assert handle.checkpointed_high_watermark == 7
    assert handle.high_watermark == 7


async def test_load_ignores_a_damaged_checkpoint() -> None:
    vfs = MemVfs()
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    records = batch(10)
    await handle.append_as_leader(records, headers_of(records), 0)
    await manager.close(1)
    vfs.open("/d1/recovery-point-offset-checkpoint", OpenMode.CREATE).write_at(0, [b"9"])
    with capture_logs() as logs:
        handle = (await start(vfs)).get(TP)
    assert "checkpoint_unreadable" in [entry["event"] for entry in logs]
    assert handle is not None
    assert handle.log_end_offset == 10


async def test_load_truncates_a_torn_tail_with_a_warning_and_reports_progress() -> None:
    vfs = MemVfs()
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    records = batch(10)
    await handle.append_as_leader(records, headers_of(records), 0)
    file = vfs.open("/d1/t-0/00000000000000000000.log", OpenMode.CREATE)
    file.write_at(file.size(), [batch(1, base_offset=10)[:-3]])
    progress: list[LoadProgress] = []
    with capture_logs() as logs:
        manager = manager_of([open_dir(vfs)])
        await manager.load(progress.append)
    (warning,) = [entry for entry in logs if entry["event"] == "log_tail_truncated"]
    assert warning["truncated_bytes"] == len(batch(1)) - 3
    assert [(p.logs_done, p.logs_total) for p in progress] == [(0, 1), (1, 1)]
    assert progress[-1].scanned_bytes > 0
    handle = manager.get(TP)
    assert handle is not None
    assert handle.log_end_offset == 10


async def test_drop_removes_the_replicas_of_an_offline_directory() -> None:
    vfs = FaultVfs(MemVfs())
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    only_dir(manager).go_offline("on demand")
    assert manager.drop(only_dir(manager)) == [handle]
    assert manager.handles() == []
    with pytest.raises(KafkaStorageError, match="every log dir is offline"):
        await manager.create(TP, TOPIC_ID)


async def test_update_config_applies_to_present_and_later_created_replicas() -> None:
    manager = await start(MemVfs())
    handle = await manager.create(TP, TOPIC_ID)
    manager.update_config("t", TopicConfig(retention_ms=5), [0])
    other = await manager.create(TopicPartition("t", 1), TOPIC_ID)
    assert (handle.config.retention_ms, other.config.retention_ms) == (5, 5)


async def test_update_config_of_a_topic_visits_no_log_of_other_topics() -> None:
    """A changed default of all topics would otherwise visit each log once per topic."""
    manager = await start(MemVfs())
    handle = await manager.create(TP, TOPIC_ID)

    class Unscanned(dict[TopicPartition, LogHandle]):
        def values(self) -> Any:
            raise AssertionError("every log was asked")

    manager._registry.handles = Unscanned(manager._registry.handles)
    manager.update_config("t", TopicConfig(retention_ms=5), [TP.partition, 7])
    assert handle.config.retention_ms == 5
    manager._registry.handles = dict(manager._registry.handles)


async def test_close_of_a_log_that_fails_closes_the_other_logs() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    manager = await start(vfs)
    for tp in (TP, TopicPartition("u", 0)):
        handle = await manager.create(tp, TOPIC_ID)
        await handle.append_as_leader(batch(), headers_of(batch()), 0)
    vfs.inject(Fault(errno=ENOSPC, path="*t-0/*.index.tmp"))
    with capture_logs() as logged:
        await manager.close(1)
    assert "log_dir_not_closed_cleanly" in [line["event"] for line in logged]
    assert not mem.exists("/d1/.kafka_cleanshutdown")
    assert mem.exists("/d1/u-0/00000000000000000000.index")
    points = (mem.read_if_exists("/d1/recovery-point-offset-checkpoint") or b"").decode()
    assert points.split("\n")[2:4] == ["t 0 0", "u 0 1"]


@pytest.mark.parametrize(
    "path",
    [
        "*.index.tmp",
        "*.timeindex.tmp",
        "*.snapshot.tmp",
        "*leader-epoch-checkpoint.tmp",
        "*recovery-point-offset*",
        "*log-start-offset*",
        "*.kafka_cleanshutdown*",
    ],
)
@pytest.mark.parametrize("kind", ["write_at", "rename"])
async def test_close_that_finds_no_space_once_still_marks_a_clean_shutdown(
    path: str, kind: str
) -> None:
    """Without the mark the replicas would not be eligible to lead (ADR 57)."""
    mem = MemVfs()
    vfs = FaultVfs(mem)
    manager = await start(vfs)
    other = TopicPartition("u", 0)
    for tp in (TP, other):
        handle = await manager.create(tp, TOPIC_ID)
        await handle.append_as_leader(batch(), headers_of(batch()), 4)
    fault = vfs.inject(Fault(errno=ENOSPC, path=path, kinds=frozenset({kind}), sticky=False))
    await manager.close(1)
    assert fault.hits == 1
    assert mem.exists("/d1/.kafka_cleanshutdown")
    points = (mem.read_if_exists("/d1/recovery-point-offset-checkpoint") or b"").decode()
    assert points.split("\n")[2:4] == ["t 0 1", "u 0 1"]
    again = await start(mem.crash_clone(1))
    for tp in (TP, other):
        handle = again.get(tp)
        assert handle is not None
        assert (handle.log_end_offset, handle.latest_epoch) == (1, 4)


async def test_delete_that_found_no_space_can_be_repeated() -> None:
    mem = MemVfs()
    vfs = FaultVfs(mem)
    manager = await start(vfs)
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(batch(), headers_of(batch()), 0)
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"rename"}), sticky=False))
    with pytest.raises(LogDirImpairedError):
        await manager.delete(TP)
    assert manager.get(TP) is handle
    read = await read_log(handle, 0, 1 << 20, NO_LIMIT, True)
    assert len(headers_of(read.records)) == 1
    await manager.delete(TP)
    assert manager.get(TP) is None


async def test_load_of_a_full_directory_skips_only_an_incomplete_replica() -> None:
    mem = MemVfs()
    manager = await start(mem)
    handle = await manager.create(TP, TOPIC_ID)
    await handle.append_as_leader(batch(3), headers_of(batch(3)), 0)
    await manager.create(TopicPartition("u", 0), TOPIC_ID)
    mem.unlink_if_exists("/d1/u-0/00000000000000000000.log")
    mem.capacity_bytes, mem.capacity_inodes = 0, 0
    with capture_logs() as logged:
        manager = await start(mem)
    (left_out,) = [line for line in logged if line["event"] == "replica_not_loaded"]
    assert left_out["partition"] == "u-0"
    log_dir = only_dir(manager)
    assert (log_dir.is_online, log_dir.is_impaired) == (True, True)
    loaded = manager.get(TP)
    assert loaded is not None
    assert loaded.log_end_offset == 3
    assert manager.get(TopicPartition("u", 0)) is None


async def test_load_that_finds_no_space_takes_the_directory_offline() -> None:
    mem = MemVfs()
    manager = await start(mem)
    await manager.create(TP, TOPIC_ID)
    vfs = FaultVfs(mem)
    vfs.inject(Fault(errno=ENOSPC, path="*.kafka_cleanshutdown"))
    await manager.close(1)
    manager = await start(vfs)
    log_dir = only_dir(manager)
    assert not log_dir.is_online
    assert "could not be loaded" in log_dir.offline_reason
