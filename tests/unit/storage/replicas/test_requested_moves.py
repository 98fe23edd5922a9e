"""``RequestedMoves``: durability of notes about requested moves, and their removal."""

from __future__ import annotations

import asyncio
from errno import ENOSPC

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import LogDirImpairedError
from kraftjbod.core.ids import TopicIdPartition
from kraftjbod.storage.replicas.requested_moves import RequestedMoves
from kraftjbod.storage.vfs import OpenMode, Vfs
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, directory_id, format_dir, open_dir
from tests.faults.vfs_fault import Fault, FaultVfs

A, B, C = (directory_id(n) for n in (1, 2, 3))
KEYS = [TopicIdPartition(TOPIC_ID, n) for n in range(5)]


def disk() -> MemVfs:
    mem = MemVfs()
    format_dir(mem, "/d1", 1)
    mem.sync_dir("/d1")
    return mem


async def loaded(vfs: Vfs) -> RequestedMoves:
    moves = RequestedMoves(open_dir(vfs))
    await moves.load(lambda key, move: True)
    return moves


async def test_requested_moves_notes_and_removals_survive_a_power_cut() -> None:
    mem = disk()
    moves = await loaded(mem)
    await asyncio.gather(*(moves.note(key, A, B) for key in KEYS))
    for seed in range(20):
        after = await loaded(mem.crash_clone(seed))
        assert all(after.source_of(key, B) == A for key in KEYS)
        assert after.source_of(KEYS[0], C) is None
    await moves.note(KEYS[1], B, C)
    await moves.forget(KEYS[0])
    for seed in range(20):
        after = await loaded(mem.crash_clone(seed))
        assert after.source_of(KEYS[0], B) is None and after.source_of(KEYS[1], C) == B
        assert after.source_of(KEYS[2], B) == A


async def test_requested_moves_forget_that_failed_can_be_repeated() -> None:
    vfs = FaultVfs(disk())
    moves = await loaded(vfs)
    await moves.note(KEYS[0], A, B)
    vfs.inject(Fault(errno=ENOSPC, kinds=frozenset({"write_at"})))
    for _ in range(2):  # The second call finds no note in memory, but the disk still has one.
        with pytest.raises(LogDirImpairedError):
            await moves.forget(KEYS[0])
    vfs.clear()
    await moves.forget(KEYS[0])
    assert (await loaded(vfs)).source_of(KEYS[0], B) is None


async def test_requested_moves_damaged_file_is_logged_and_read_as_empty() -> None:
    for damaged in (b"", b"{}", b'{"version": 2, "moves": []}', b'{"version": 1, "moves": [{}]}'):
        mem = disk()
        file = mem.open("/d1/asked-moves.json", mode=OpenMode.CREATE)
        file.write_at(0, [damaged])
        with capture_logs() as logged:
            moves = await loaded(mem)
        assert [line["event"] for line in logged] == ["asked_moves_unreadable"]
        assert moves.source_of(KEYS[0], B) is None
        await moves.note(KEYS[0], A, B)
        assert (await loaded(mem)).source_of(KEYS[0], B) == A


async def test_requested_moves_load_drops_notes_that_the_filter_rejects() -> None:
    mem = disk()
    moves = await loaded(mem)
    await moves.note(KEYS[0], A, B)
    await moves.note(KEYS[1], A, C)
    again = RequestedMoves(open_dir(mem))
    await again.load(lambda key, move: move.target == C)
    assert again.source_of(KEYS[0], B) is None and again.source_of(KEYS[1], C) == A
