"""``KnownVoters``: the directory id by which a voter is recognised."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kraftjbod.core.errors import ErrorCode, InconsistentStorageError, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.raft.log.known_voters import VOTER_DIRECTORIES, KnownVoters
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.vfs import write_atomically
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir, open_dir

TWO = BrokerId(2)
FIRST, OTHER = DirectoryId(b"a" * 16), DirectoryId(b"b" * 16)


@pytest.fixture
async def log_dir() -> AsyncIterator[LogDir]:
    memory = MemVfs()
    format_dir(memory, "/d1", 1)
    made = open_dir(memory)
    yield made
    made.close()


async def _loaded(log_dir: LogDir) -> KnownVoters:
    known = KnownVoters(log_dir=log_dir, directory="/d1")
    await known.load()
    return known


async def test_known_voters_remember_the_first_directory_and_refuse_another(
    log_dir: LogDir,
) -> None:
    known = await _loaded(log_dir)
    assert not known.is_known(TWO, FIRST)
    await known.require(TWO, FIRST)
    again = await _loaded(log_dir)
    assert again.is_known(TWO, FIRST)
    with pytest.raises(OperatingError, match="lacks its votes") as refused:
        await again.require(TWO, OTHER)
    assert refused.value.code is ErrorCode.INVALID_VOTER_KEY
    await again.require(TWO, FIRST)


async def test_known_voters_damaged_file_is_an_error(log_dir: LogDir) -> None:
    write_atomically(log_dir.vfs, f"/d1/{VOTER_DIRECTORIES}", b"[1]")
    with pytest.raises(InconsistentStorageError, match="is damaged"):
        await _loaded(log_dir)
