"""``MetadataMemory`` records the applied metadata and rejects other or shorter logs."""

from __future__ import annotations

from errno import ENOSPC

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.cluster.metadata_memory import MetadataMemory
from kraftjbod.core.errors import ForeignMetadataError
from kraftjbod.core.ids import Uuid
from kraftjbod.storage.identity.applied_metadata import (
    AppliedMetadata,
    forget_applied_metadata,
    read_applied_metadata,
)
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir, open_dir
from tests.faults.vfs_fault import Fault, FaultVfs

OURS, OTHER = Uuid(b"l" * 16), Uuid(b"o" * 16)


@pytest.fixture
def vfs() -> FaultVfs:
    inner = MemVfs()
    format_dir(inner, "/d1", 1)
    return FaultVfs(inner)


def memory_on(vfs: FaultVfs | MemVfs) -> MetadataMemory:
    return MetadataMemory(metadata_dir=open_dir(vfs))


async def test_metadata_memory_accepts_the_first_log_and_rejects_others(vfs: FaultVfs) -> None:
    memory = memory_on(vfs)
    await memory.load()
    memory.note_metadata_log_id(None)
    assert memory.metadata_log_id is None, "an older controller sends no log id"
    memory.note_metadata_log_id(OURS)
    memory.require_complete(-1)
    memory.note_applied(7, 1)
    with pytest.raises(ForeignMetadataError, match=f"has log {OTHER}, but this broker"):
        memory.note_metadata_log_id(OTHER)
    with pytest.raises(ForeignMetadataError, match="ends at offset 6, but this broker"):
        memory.require_complete(6)
    memory.note_metadata_log_id(OURS)
    memory.require_complete(7)


@pytest.mark.parametrize("seed", range(5))
async def test_metadata_memory_written_state_survives_a_crash(vfs: FaultVfs, seed: int) -> None:
    memory = memory_on(vfs)
    await memory.load()
    memory.note_metadata_log_id(OURS)
    memory.note_applied(7, 1)
    await memory.write()
    memory.note_applied(9, 2)
    assert memory.followed == (OURS, 9, 2)
    assert isinstance(vfs.inner, MemVfs)
    later = memory_on(vfs.inner.crash_clone(seed))
    await later.load()
    assert later.followed == (OURS, 7, 1)
    with pytest.raises(ForeignMetadataError):
        later.require_complete(6)
    with pytest.raises(ForeignMetadataError):
        later.note_metadata_log_id(OTHER)


async def test_metadata_memory_writes_only_changes_of_a_known_log(vfs: FaultVfs) -> None:
    memory = memory_on(vfs)
    writes: list[str] = []
    vfs.on_operation = lambda kind, path: writes.append(path) if kind == "rename" else None
    memory.note_applied(3, 1)
    await memory.write()
    assert read_applied_metadata(vfs, "/d1") is None
    memory.note_metadata_log_id(OURS)
    await memory.write()
    await memory.write()
    assert len(writes) == 1


async def test_metadata_memory_full_disk_is_logged_once_and_writing_resumes(vfs: FaultVfs) -> None:
    memory = memory_on(vfs)
    memory.note_metadata_log_id(OURS)
    memory.note_applied(3, 1)
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"write_at"})))
    with capture_logs() as events:
        await memory.write()
        await memory.write()
    got = [event for event in events if event["event"] == "applied_metadata_not_written"]
    assert len(got) == 1
    vfs.clear()
    await memory.write()
    found = read_applied_metadata(vfs, "/d1")
    assert found is not None
    assert found.offset == 3


async def test_forgotten_metadata_accepts_another_log_but_no_shorter_own_log(
    vfs: FaultVfs,
) -> None:
    memory = memory_on(vfs)
    memory.note_metadata_log_id(OURS)
    memory.note_applied(7, 1)
    await memory.write()
    forget_applied_metadata(vfs, "/d1")
    later = memory_on(vfs)
    await later.load()
    assert later.followed == (None, None, None), (
        "no controller may reject the broker for forgotten metadata"
    )
    later.note_metadata_log_id(OURS)
    with pytest.raises(ForeignMetadataError):
        later.require_complete(6)
    later.require_complete(7)
    with capture_logs() as events:
        later.note_metadata_log_id(OTHER)
    assert "metadata_log_replaced" in [event["event"] for event in events]
    assert later.followed.metadata_log_id == OTHER
    later.require_complete(0)
    later.note_applied(0, 1)
    await later.write()
    assert read_applied_metadata(vfs, "/d1") == AppliedMetadata(
        metadata_log_id=OTHER, offset=0, epoch=1
    )
    with pytest.raises(ForeignMetadataError):
        later.note_metadata_log_id(OURS)
