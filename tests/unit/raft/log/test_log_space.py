"""``LogSpace``: proposals that are still accepted while a disk fills up."""

from __future__ import annotations

import asyncio
from errno import ENOSPC

import pytest

from kraftjbod.core.errors import ErrorCode, LogDirImpairedError
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.raft.log.log_space import LogSpace
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir, open_dir

LAST = 1000


@pytest.fixture
def memory() -> MemVfs:
    made = MemVfs()
    format_dir(made, "/d1", 1)
    return made


@pytest.fixture
async def log_dir(memory: MemVfs) -> LogDir:
    return open_dir(memory, reserve_bytes=5000)


async def _check(memory: MemVfs, log_dir: LogDir, usable_bytes: int) -> None:
    """Let the next check of the disk find ``usable_bytes``."""
    before = log_dir.space
    memory.usable_bytes = usable_bytes
    log_dir.check_disk()
    while log_dir.space is before:
        await asyncio.sleep(0)


async def _fill(log_dir: LogDir) -> None:
    def write() -> None:
        raise OSError(ENOSPC, "no space")

    with pytest.raises(LogDirImpairedError):
        await log_dir.run_operation(OpKind.APPEND, write)
    assert log_dir.state is LogDirState.SATURATED


async def test_log_space_of_a_directory_that_is_not_full_accepts_all_proposals(
    memory: MemVfs, log_dir: LogDir
) -> None:
    space = LogSpace(log_dir=log_dir, last_bytes=LAST)
    assert space.left_bytes is None
    assert space.has(1 << 40), "the limit is not known yet"
    await _check(memory, log_dir, 1500)
    assert space.left_bytes == 500
    assert not space.has(501)
    space.require(1 << 40, grows=True)


async def test_log_space_refuses_growing_proposals_first(memory: MemVfs, log_dir: LogDir) -> None:
    space = LogSpace(log_dir=log_dir, last_bytes=LAST)
    await _fill(log_dir)
    with pytest.raises(LogDirImpairedError, match="grow") as refused:
        space.require(1, grows=True)
    assert refused.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert refused.value.retriable
    assert refused.value.path == "/d1"
    space.require(400, grows=False)
    await _check(memory, log_dir, 1500)
    space.require(500, grows=False)
    space.note_proposed(400)
    with pytest.raises(LogDirImpairedError, match=r"/d1 is full \(1500 bytes free\)"):
        space.require(101, grows=False)
    space.require(100, grows=False)


async def test_log_space_subtracts_proposals_not_written_before_the_last_check(
    memory: MemVfs, log_dir: LogDir
) -> None:
    space = LogSpace(log_dir=log_dir, last_bytes=LAST)
    await _check(memory, log_dir, 2000)
    space.note_proposed(300)
    space.note_proposed(200)
    space.note_written(300)
    assert space.left_bytes == 500, "whether the disk knows of it is not known"
    await _check(memory, log_dir, 1700)
    assert space.left_bytes == 500, "the other 200 are to come"


async def test_log_space_includes_a_held_reserve(memory: MemVfs, log_dir: LogDir) -> None:
    space = LogSpace(log_dir=log_dir, last_bytes=LAST)
    await log_dir.secure_reserve()
    await _check(memory, log_dir, 10)
    assert space.left_bytes == 10 + 5000 - LAST


async def test_log_space_ignores_a_check_from_before_the_release_of_the_reserve(
    memory: MemVfs, log_dir: LogDir
) -> None:
    space = LogSpace(log_dir=log_dir, last_bytes=LAST)
    await log_dir.secure_reserve()
    memory.usable_bytes = 0
    await _fill(log_dir)
    space.require(100, grows=False)
    await _check(memory, log_dir, 5000)
    assert space.left_bytes == 4000


async def test_log_space_refuses_proposals_while_an_entry_waits_for_space(
    memory: MemVfs, log_dir: LogDir
) -> None:
    space = LogSpace(log_dir=log_dir, last_bytes=LAST)
    await _fill(log_dir)
    await _check(memory, log_dir, 1 << 20)
    space.is_waiting = True
    with pytest.raises(LogDirImpairedError, match="has to be written"):
        space.require(1, grows=False)
