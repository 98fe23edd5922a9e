"""``LogDir``: judged errors, state changes, watches, limits and cached reads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from collections.abc import Callable
from errno import EIO, EMFILE, ENFILE, ENOENT, ENOSPC, EOPNOTSUPP
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import (
    CorruptRecordError,
    KafkaStorageError,
    LogDirImpairedError,
    LogFlushError,
    OverloadedError,
)
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.log_dirs.outside_operations import run_copy
from kraftjbod.storage.vfs import OpenMode, RealVfs
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TP, ManualClock, directory_id, format_dir, open_dir
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.gates import PATIENCE_S, Gate, no_bugs, settle


def fail_with(number: int) -> None:
    raise OSError(number, "on demand")


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def make(**more: Any) -> tuple[LogDir, LogDirFailureChannel, FaultVfs]:
    mem = MemVfs()
    format_dir(mem, "/d1", 1)
    vfs, channel = FaultVfs(mem), LogDirFailureChannel(max_dirs=1)
    return open_dir(vfs, channel=channel, **more), channel, vfs


async def test_run_operation_returns_the_result_of_the_operation() -> None:
    log_dir, _, _ = make()
    assert await log_dir.run_operation(OpKind.READ, lambda: 42) == 42


async def test_io_error_takes_the_directory_offline_once() -> None:
    log_dir, channel, _ = make()
    with capture_logs() as logs:
        for _ in range(2):
            with pytest.raises(KafkaStorageError, match="offline: append") as caught:
                await log_dir.run_operation(OpKind.APPEND, lambda: fail_with(EIO))
            assert caught.value.directory_id == directory_id(1)
    assert [entry["event"] for entry in logs] == ["log_dir_offline"]
    assert await channel.take() is log_dir
    assert not log_dir.is_online


async def test_full_disk_saturates_the_directory() -> None:
    log_dir, channel, _ = make()
    with capture_logs() as logs, pytest.raises(LogDirImpairedError) as caught:
        await log_dir.run_operation(OpKind.APPEND, lambda: fail_with(ENOSPC))
    assert caught.value.state == "saturated"
    assert caught.value.directory_id == directory_id(1)
    assert [entry["event"] for entry in logs] == ["log_dir_saturated"]
    assert await channel.take() is log_dir
    assert (log_dir.state, log_dir.is_online) == (LogDirState.SATURATED, True)
    with pytest.raises(LogDirImpairedError):
        log_dir.submit(OpKind.APPEND, lambda: 1)
    assert await log_dir.run_operation(OpKind.READ, lambda: 1) == 1


async def test_full_disk_in_a_flush_takes_the_directory_offline() -> None:
    log_dir, _, _ = make()
    with pytest.raises(LogFlushError):
        await log_dir.run_operation(OpKind.FLUSH, lambda: fail_with(ENOSPC))
    assert not log_dir.is_online


async def test_replace_file_with_a_slow_fsync_delays_no_append() -> None:
    log_dir, _, vfs = make()
    with Gate(vfs, "sync", "/d1/points*") as gate:
        replacing = asyncio.ensure_future(log_dir.replace_file("/d1/points", b"1"))
        await gate.reached()
        async with asyncio.timeout(PATIENCE_S / 2):
            assert await log_dir.run_operation(OpKind.APPEND, lambda: 42) == 42
        assert not vfs.exists("/d1/points")
        gate.open()
        await replacing
    assert [entry.name for entry in vfs.list_dir("/d1") if "points" in entry.name] == ["points"]


async def test_replace_file_whose_caller_is_cancelled_takes_effect_before_the_next() -> None:
    log_dir, _, vfs = make()
    with Gate(vfs, "sync", "/d1/points*") as gate:
        first = asyncio.ensure_future(log_dir.replace_file("/d1/points", b"1"))
        await gate.reached()
        first.cancel()
        second = asyncio.ensure_future(log_dir.replace_file("/d1/points", b"2"))
        await settle()
        assert not vfs.exists("/d1/points")
        gate.open()
        await second
    assert await log_dir.read_text(OpKind.LOAD, "/d1/points") == "2"
    assert not vfs.exists("/d1/points.tmp")


async def test_replace_file_whose_caller_is_cancelled_fails_without_a_bug_report() -> None:
    log_dir, _, vfs = make()
    vfs.inject(Fault(errno=EIO, kinds=frozenset({"sync_dir"})))
    with no_bugs():
        with Gate(vfs, "sync", "/d1/points*") as gate:
            cancelled = asyncio.ensure_future(log_dir.replace_file("/d1/points", b"1"))
            await gate.reached()
            cancelled.cancel()
            await settle()
        await log_dir.gone()
        await settle()
        del cancelled  # Its traceback refers to the replacement.
        gc.collect()


@pytest.mark.parametrize("step", ["write_at", "sync"])
async def test_replace_file_on_a_full_disk_saturates_and_keeps_the_old_content(step: str) -> None:
    log_dir, _, vfs = make()
    await log_dir.replace_file("/d1/points", b"1")
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({step}), path="/d1/points*", sticky=False))
    with pytest.raises(LogDirImpairedError):
        await log_dir.replace_file("/d1/points", b"2")
    assert log_dir.state is LogDirState.SATURATED
    assert await log_dir.read_text(OpKind.LOAD, "/d1/points") == "1"
    assert not vfs.exists("/d1/points.tmp")


async def test_failure_channel_holds_a_directory_once() -> None:
    log_dir, channel, _ = make()
    with pytest.raises(LogDirImpairedError):
        await log_dir.run_operation(OpKind.APPEND, lambda: fail_with(ENOSPC))
    log_dir.go_offline("pulled out")
    assert await channel.take() is log_dir
    assert (log_dir.state, log_dir.impaired_reason) == (LogDirState.OFFLINE, "")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await channel.take()


async def test_read_without_a_free_descriptor_keeps_the_directory_online() -> None:
    log_dir, _, _ = make()
    with capture_logs() as logs, pytest.raises(OverloadedError):
        await log_dir.run_operation(OpKind.READ, lambda: fail_with(EMFILE))
    assert [entry["event"] for entry in logs] == ["log_dir_operation_lacked_resources"]
    assert log_dir.is_online


@pytest.mark.parametrize("number", [EMFILE, ENFILE])
@pytest.mark.parametrize("kind", [OpKind.FLUSH, OpKind.PROBE])
async def test_flush_or_probe_without_a_descriptor_keeps_the_directory_online(
    kind: OpKind, number: int
) -> None:
    """Probes run every 500 ms, so all directories of a broker went offline within a second."""
    log_dir, _, _ = make()
    with capture_logs(), pytest.raises(OverloadedError):
        await log_dir.run_operation(kind, lambda: fail_with(number))
    assert log_dir.state is LogDirState.ONLINE


async def test_lack_of_resources_is_logged_at_intervals_with_a_count() -> None:
    clock = ManualClock()
    log_dir, _, _ = make(clock=clock)
    with capture_logs() as logs:
        for ms in (0, 1, 9_999, 10_000):
            clock.ms = 1_000_000 + ms
            with pytest.raises(OverloadedError):
                await log_dir.run_operation(OpKind.PROBE, lambda: fail_with(EMFILE))
    assert [entry["times"] for entry in logs] == [1, 3]


def open_below(path: str) -> set[int]:
    """Return descriptors of this process below ``path``, or replaced with "/" after a close."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith(path) or target == "/":
                found.add(int(name))
    return found


@pytest.mark.parametrize("where", ["its own thread", "a mover's thread"])
async def test_offline_directory_closes_its_files_once_no_thread_uses_them(
    tmp_path: Path, where: str
) -> None:
    """A hung thread may still hold the number of a descriptor."""
    RealVfs()  # Opens the descriptors that the process keeps.
    path, before = f"{tmp_path}/d1", open_below(f"{tmp_path}")
    vfs = RealVfs()
    format_dir(vfs, path, 1)
    log_dir, other = open_dir(vfs, path, 1), open_dir(MemVfs(), "/d2", 2)
    await log_dir.run_operation(
        OpKind.CREATE, lambda: [vfs.open(f"{path}/{n}", OpenMode.CREATE) for n in range(5)]
    )
    begun, released = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        released.wait()

    mover = LogDirExecutor(name="mover", clock=ManualClock())
    hanging: asyncio.Future[None]
    if where == "its own thread":
        hanging = log_dir.submit(OpKind.READ, hang)
    else:
        hanging = asyncio.ensure_future(
            run_copy(
                log_dir,
                other,
                mover,
                lambda _: hang(),
                read_again=lambda: None,
                settle=lambda result: result,
                replica=TP,
            )
        )
    await until(begun.is_set)
    with capture_logs():
        log_dir.go_offline("pulled out")
    with pytest.raises(KafkaStorageError):
        await hanging
    assert await log_dir.unlocked()
    assert log_dir.is_busy
    assert len(open_below(f"{tmp_path}") - before) == 5
    released.set()
    await until(lambda: open_below(f"{tmp_path}") == before)
    assert not log_dir.is_busy


async def test_close_with_a_full_queue_releases_the_lock_after_the_queued_operations() -> None:
    log_dir, _, vfs = make(max_queued_ops=2)
    assert log_dir.try_lock()
    gate, done = threading.Event(), list[int]()
    queued = [log_dir.submit(OpKind.APPEND, gate.wait)]
    queued.append(log_dir.submit(OpKind.APPEND, lambda: done.append(1)))
    with pytest.raises(OverloadedError):
        log_dir.submit(OpKind.APPEND, lambda: done.append(2))
    log_dir.close()
    again = open_dir(vfs)
    assert not again.try_lock(), "the queued operations still use the directory"
    gate.set()
    await asyncio.gather(*queued)
    assert await log_dir.unlocked()
    assert (again.try_lock(), done) == (True, [1])


async def test_absent_file_takes_the_directory_offline_only_after_a_failed_check() -> None:
    log_dir, _, vfs = make()
    with capture_logs() as logs:
        with pytest.raises(KafkaStorageError):
            await log_dir.run_operation(OpKind.DELETE, lambda: fail_with(ENOENT))
        await log_dir.run_operation(OpKind.READ, lambda: None)
    assert "log_dir_operation_made_no_sense" in [entry["event"] for entry in logs]
    assert log_dir.is_online
    vfs.inner.unlink_if_exists("/d1/meta.properties")
    with capture_logs() as logs:
        with pytest.raises(KafkaStorageError):
            await log_dir.run_operation(OpKind.DELETE, lambda: fail_with(ENOENT))
        await until(lambda: not log_dir.is_online)
        await asyncio.sleep(0)
    assert [entry["event"] for entry in logs] == ["log_dir_offline"], "no bug"


async def test_expected_error_is_raised_unchanged() -> None:
    log_dir, _, _ = make()

    def corrupt() -> None:
        raise CorruptRecordError("no")

    with pytest.raises(CorruptRecordError):
        await log_dir.run_operation(OpKind.READ, corrupt)
    assert log_dir.is_online


async def test_settle_callback_runs_although_its_caller_was_cancelled() -> None:
    log_dir, _, _ = make()
    seen: list[int] = []
    future = log_dir.submit(OpKind.APPEND, lambda: 5, settle=seen.append)
    future.cancel()
    await log_dir.run_operation(OpKind.READ, lambda: None)
    assert seen == [5]


async def test_disk_error_is_reported_to_the_channel_although_its_caller_was_cancelled() -> None:
    log_dir, channel, _ = make()
    log_dir.submit(OpKind.APPEND, lambda: fail_with(EIO)).cancel()
    assert await channel.take() is log_dir


async def test_hung_operation_takes_the_directory_offline_and_fails_all_waiters() -> None:
    clock = ManualClock()
    log_dir, channel, vfs = make(clock=clock, io_timeout_ms=1000)
    vfs.inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"list_dir"})))
    log_dir.start_watches()
    hung = log_dir.submit(OpKind.READ, lambda: vfs.list_dir("/d1"))
    queued = log_dir.submit(OpKind.READ, lambda: 1)
    await until(lambda: log_dir.running_ms == 0 and vfs.faults[0].hits == 1)
    clock.ms += 1001
    assert await channel.take() is log_dir
    for future in (hung, queued):
        with pytest.raises(KafkaStorageError, match="running for 1001 ms"):
            await future
    vfs.clear()


async def test_beat_restarts_the_time_of_a_slow_operation() -> None:
    clock = ManualClock()
    log_dir, _, _ = make(clock=clock, io_timeout_ms=1000)

    def slow() -> int:
        for _ in range(5):
            clock.ms += 900
            log_dir.beat()
        return log_dir.running_ms

    assert await log_dir.run_operation(OpKind.LOAD, slow) == 0


@pytest.mark.parametrize("how", ["unmounted", "other disk", "no writing", "other id"])
async def test_check_takes_the_directory_offline_if_the_disk_changed(how: str) -> None:
    log_dir, channel, vfs = make(check_interval_ms=5)
    log_dir.start_watches()
    await until(lambda: log_dir.space.usable_bytes > 0)
    match how:
        case "unmounted":
            vfs.inner.unlink_if_exists("/d1/meta.properties")
        case "other disk":
            vfs.inner.device_number = 2
        case "no writing":
            vfs.inject(Fault(kinds=frozenset({"open"}), path="*.probe"))
        case _:
            format_dir(vfs.inner, "/d1", 2)
    assert await channel.take() is log_dir
    assert log_dir.offline_reason.startswith("probe: ")


async def test_full_queue_refuses_operations_at_once() -> None:
    mem = MemVfs()
    log_dir = LogDir(
        path="/d1",
        vfs=mem,
        clock=ManualClock(),
        failure_channel=LogDirFailureChannel(max_dirs=1),
        max_queued_ops=2,
        max_queued_bytes=100,
    )
    first = log_dir.submit_operation(OpKind.APPEND, lambda: 1, size_bytes=1000)
    with pytest.raises(OverloadedError):
        log_dir.submit_operation(OpKind.APPEND, lambda: 1, size_bytes=1)
    log_dir.submit(OpKind.APPEND, lambda: 2)
    with pytest.raises(OverloadedError):
        log_dir.submit(OpKind.APPEND, lambda: 3)
    assert await first == 1


async def test_read_cached_is_disabled_if_the_file_system_does_not_support_it() -> None:
    log_dir, _, vfs = make()
    file = await log_dir.run_operation(OpKind.READ, lambda: vfs.open("/d1/x", OpenMode.CREATE))
    await log_dir.run_operation(OpKind.APPEND, lambda: file.write_at(0, [b"abc"]))
    assert log_dir.read_cached(file, 1, 2) == b"bc"
    vfs.inject(Fault(errno=EOPNOTSUPP, kinds=frozenset({"read_cached_at"}), sticky=False))
    assert log_dir.read_cached(file, 1, 2) is None
    assert log_dir.read_cached(file, 1, 2) is None
    assert log_dir.is_online


async def test_read_cached_error_takes_the_directory_offline() -> None:
    log_dir, channel, vfs = make()
    file = await log_dir.run_operation(OpKind.READ, lambda: vfs.open("/d1/x", OpenMode.CREATE))
    vfs.inject(Fault(kinds=frozenset({"read_cached_at"})))
    with pytest.raises(KafkaStorageError):
        log_dir.read_cached(file, 0, 1)
    assert await channel.take() is log_dir
    with pytest.raises(KafkaStorageError):
        log_dir.read_cached(file, 0, 1)


async def test_read_text_returns_content_or_none_and_raises_storage_error() -> None:
    log_dir, _, vfs = make()
    assert "node.id=1" in (await log_dir.read_text(OpKind.LOAD, "/d1/meta.properties") or "")
    assert await log_dir.read_text(OpKind.LOAD, "/d1/nothing") is None
    vfs.inject(Fault(kinds=frozenset({"open_stream"})))
    with pytest.raises(KafkaStorageError):
        await log_dir.read_text(OpKind.LOAD, "/d1/meta.properties")
