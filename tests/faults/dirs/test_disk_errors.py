"""Class, directory, replica and operation of each kind of storage error (KIP-18).

``LogDir`` judges each error and takes the directory offline. The caller of the operation gets an
error of its class; in Kafka's protocol each class is error 56.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from errno import EINVAL, EIO, ESTALE

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import (
    ErrorCode,
    KafkaStorageError,
    LogAppendError,
    LogCheckpointError,
    LogFlushError,
    LogIndexError,
    LogReadError,
    LogRenameError,
)
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.manager.closing import close_logs
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    TOPIC_ID,
    TP,
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
CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=0)
OTHER = TopicPartition("t", 1)


@dataclass
class StorageFixture:
    vfs: FaultVfs
    manager: LogManager
    handle: LogHandle


Act = Callable[[StorageFixture], Awaitable[object]]


async def append(fixture: StorageFixture) -> None:
    data = batch(2, body=bytes(250))
    await fixture.handle.append_as_leader(data, headers_of(data), 0)


async def roll(fixture: StorageFixture) -> None:
    await fixture.handle.roll()


async def read(fixture: StorageFixture) -> None:
    await read_log(fixture.handle, 0, 1 << 20, NO_LIMIT, True)


async def read_checked(fixture: StorageFixture) -> None:
    await fixture.handle.read_checked(0, 1 << 20, NO_LIMIT, True)


async def truncate(fixture: StorageFixture) -> None:
    await fixture.handle.truncate_to(2)


async def flush(fixture: StorageFixture) -> None:
    await fixture.handle.flush()


async def flush_as_part_of_an_append(fixture: StorageFixture) -> None:
    fixture.handle.set_config(CONFIG.model_copy(update={"flush_messages": 1}))
    await append(fixture)


async def new_epoch_flushed(fixture: StorageFixture) -> None:
    data = batch(2)
    await fixture.handle.append_as_leader(data, headers_of(data), 5)
    await fixture.handle.flush()


async def checkpoint(fixture: StorageFixture) -> None:
    await fixture.manager.checkpoint_offsets(fixture.handle.log_dir)


async def create(fixture: StorageFixture) -> None:
    await fixture.manager.create(OTHER, TOPIC_ID)


async def delete(fixture: StorageFixture) -> None:
    await fixture.manager.delete(TP)


async def close(fixture: StorageFixture) -> None:
    if (error := await close_logs(fixture.handle.log_dir, [fixture.handle])) is not None:
        raise error


async def read_after_reload(fixture: StorageFixture) -> None:
    """Read with indexes and files that are not open yet."""
    await fixture.manager.close(1)
    log_dir = open_dir(fixture.vfs)
    manager = manager_of([log_dir], CONFIG)
    await manager.load()
    handle = manager.get(TP)
    assert handle is not None
    await read_log(handle, 0, 1 << 20, NO_LIMIT, True)


@dataclass(frozen=True, kw_only=True)
class Case:
    act: Act
    kinds: str
    path: str
    error: type[KafkaStorageError]
    operation: str
    replica: str | None = str(TP)
    errno: int = EIO


CASES = {
    "append": Case(
        act=append, kinds="write_at", path="*.log", error=LogAppendError, operation="append"
    ),
    "truncate": Case(
        act=truncate, kinds="truncate", path="*.log", error=LogAppendError, operation="truncate"
    ),
    "fsync of a truncation": Case(
        act=truncate, kinds="sync", path="*.log", error=LogFlushError, operation="flush"
    ),
    "read from the page cache (KAFKA-16304)": Case(
        act=read, kinds="read_cached_at", path="*.log", error=LogReadError, operation="read"
    ),
    "stale handle in the page cache (KAFKA-16304)": Case(
        act=read,
        kinds="read_cached_at",
        path="*.log",
        error=LogReadError,
        operation="read",
        errno=ESTALE,
    ),
    "read from the disk (KAFKA-16304)": Case(
        act=read_checked, kinds="read_at", path="*.log", error=LogReadError, operation="read"
    ),
    "flush": Case(act=flush, kinds="sync", path="*.log", error=LogFlushError, operation="flush"),
    "flush within an append": Case(
        act=flush_as_part_of_an_append,
        kinds="sync",
        path="*.log",
        error=LogFlushError,
        operation="flush",
    ),
    # As an append, EINVAL would count as a bug of the caller.
    "flush within an append, whatever its number": Case(
        act=flush_as_part_of_an_append,
        kinds="sync",
        path="*.log",
        error=LogFlushError,
        operation="flush",
        errno=EINVAL,
    ),
    "checkpoint of offsets": Case(
        act=checkpoint,
        kinds="write_at",
        path="*recovery-point*",
        error=LogCheckpointError,
        operation="checkpoint",
        replica=None,
    ),
    "checkpoint of leader epochs": Case(
        act=new_epoch_flushed,
        kinds="write_at",
        path="*leader-epoch*",
        error=LogCheckpointError,
        operation="checkpoint",
    ),
    "snapshot of producers": Case(
        act=roll,
        kinds="write_at",
        path="*.snapshot.tmp",
        error=LogCheckpointError,
        operation="checkpoint",
    ),
    "index written": Case(
        act=roll, kinds="write_at", path="*.index.tmp", error=LogIndexError, operation="index"
    ),
    "index read": Case(
        act=read_after_reload,
        kinds="read_if_exists",
        path="*.index",
        error=LogIndexError,
        operation="index",
    ),
    "segment created": Case(
        act=roll, kinds="open", path="*.log", error=LogRenameError, operation="create"
    ),
    "replica created": Case(
        act=create,
        kinds="make_dirs",
        path="*",
        error=LogRenameError,
        operation="create",
        replica=str(OTHER),
    ),
    "replica renamed": Case(
        act=delete, kinds="rename", path="*", error=LogRenameError, operation="rename"
    ),
    "close": Case(act=close, kinds="close", path="*.log", error=LogFlushError, operation="close"),
}


async def make_fixture() -> StorageFixture:
    mem = MemVfs()
    format_dir(mem, "/d1", 1)
    vfs = FaultVfs(mem)
    manager = manager_of([open_dir(vfs)], CONFIG)
    await manager.load()
    fixture = StorageFixture(vfs, manager, await manager.create(TP, TOPIC_ID))
    await append(fixture)
    await append(fixture)
    return fixture


@pytest.mark.parametrize("name", CASES)
async def test_storage_error_has_the_class_directory_replica_and_operation_of_its_cause(
    name: str,
) -> None:
    case, fixture = CASES[name], await make_fixture()
    kinds = frozenset({case.kinds})
    fixture.vfs.inject(Fault(errno=case.errno, kinds=kinds, path=case.path))
    with capture_logs() as logged, pytest.raises(KafkaStorageError) as caught:
        await case.act(fixture)
    error = caught.value
    assert type(error) is case.error
    assert error.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert error.retriable
    assert (error.directory_id, error.path) == (directory_id(1), "/d1")
    assert (error.operation, error.replica) == (case.operation, case.replica)
    (offline,) = [line for line in logged if line["event"] == "log_dir_offline"]
    assert (offline["operation"], offline.get("replica")) == (case.operation, case.replica)
    assert offline["directory_id"] == str(directory_id(1))


async def test_error_of_an_append_queued_behind_a_failure_states_its_directory_only() -> None:
    fixture = await make_fixture()
    fixture.vfs.inject(Fault(kinds=frozenset({"write_at"}), path="*.log"))
    data = batch()
    first = fixture.handle.append_as_leader(data, headers_of(data), 0)
    second = fixture.handle.append_as_leader(data, headers_of(data), 0)
    with pytest.raises(LogAppendError):
        await first
    with pytest.raises(KafkaStorageError) as caught:
        await second
    assert type(caught.value) is KafkaStorageError
    assert (caught.value.directory_id, caught.value.path) == (directory_id(1), "/d1")
    assert (caught.value.operation, caught.value.replica) == (None, None)


async def test_failed_purge_is_logged_with_operation_delete() -> None:
    fixture = await make_fixture()
    fixture.vfs.inject(Fault(kinds=frozenset({"remove_tree"})))
    await fixture.manager.delete(TP)
    with capture_logs() as logged:
        await chores(fixture.manager).purge_due()
    (offline,) = [line for line in logged if line["event"] == "log_dir_offline"]
    assert offline["operation"] == "delete"
