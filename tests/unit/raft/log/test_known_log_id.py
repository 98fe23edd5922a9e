"""``KnownLogId``: the id of a controller's metadata log, over restarts and on a full disk."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.core.errors import InconsistentStorageError
from kraftjbod.core.ids import Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.raft.log.known_log_id import METADATA_LOG_ID, KnownLogId
from kraftjbod.storage.vfs import write_atomically
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import ManualClock, format_dir, open_dir

OURS, LATER = Uuid(b"o" * 16), Uuid(b"l" * 16)
PATH = f"/d1/{METADATA_LOG_ID}"


async def written(memory: MemVfs, log_id: Uuid) -> None:
    while bytes(memory.read_if_exists(PATH) or b"") != str(log_id).encode():
        await asyncio.sleep(0.001)


async def test_known_log_id_is_effective_at_once_and_written_when_the_disk_has_space() -> None:
    memory = MemVfs()
    format_dir(memory, "/d1", 1)
    log_dir = open_dir(memory, clock=ManualClock())
    known = KnownLogId(log_dir=log_dir, directory="/d1", retry_interval_ms=1)
    await known.load()
    assert known.value is None
    memory.capacity_bytes = 0
    known.note(None)
    known.note(OURS)
    assert known.value == OURS
    while log_dir.state is LogDirState.ONLINE:
        await asyncio.sleep(0.001)
    assert not memory.exists(PATH)
    memory.capacity_bytes = None
    await written(memory, OURS)
    known.note(LATER)  # The log was forked.
    await written(memory, LATER)
    await known.stop()
    again = KnownLogId(log_dir=log_dir, directory="/d1", retry_interval_ms=1)
    await again.load()
    assert again.value == LATER
    log_dir.close()


async def test_known_log_id_damaged_file_names_the_remedy() -> None:
    memory = MemVfs()
    format_dir(memory, "/d1", 1)
    write_atomically(memory, PATH, b"\xffrot")
    log_dir = open_dir(memory)
    with pytest.raises(InconsistentStorageError, match="remove it"):
        await KnownLogId(log_dir=log_dir, directory="/d1", retry_interval_ms=1).load()
    log_dir.close()
