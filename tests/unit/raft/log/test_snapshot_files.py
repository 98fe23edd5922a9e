"""Files of snapshots of the metadata."""

from __future__ import annotations

import random

import pytest

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.raft.log.snapshot_files import (
    BLOCK_BYTES,
    SnapshotPart,
    load_snapshot,
    read_payload,
)
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs


@pytest.mark.parametrize("voters", [b"", b"who votes"])
def test_snapshot_file_is_valid_once_finished_and_invalid_with_any_changed_byte(
    voters: bytes,
) -> None:
    vfs = MemVfs()
    part = SnapshotPart(vfs, "/part", 7, 2, voters)
    part.append_piece(b"some ")
    part.append_piece(b"state")
    file = vfs.open("/part", OpenMode.READ_WRITE)
    assert load_snapshot(file, 7, 2) is None
    snapshot = part.finish()
    assert load_snapshot(file, 7, 2) == snapshot
    assert snapshot.voters == voters
    assert read_payload(vfs, "/part", snapshot, 5, 5) == b"state"
    whole = bytes(file.read_at(0, file.size()))
    for position in range(len(whole)):
        file.write_at(position, [bytes([whole[position] ^ 1])])
        assert load_snapshot(file, 7, 2) is None, position
        file.write_at(position, [whole[position : position + 1]])
    assert load_snapshot(file, 7, 2) is not None


@pytest.mark.parametrize("is_restarted", [False, True])
def test_read_payload_returns_no_byte_that_changed_on_the_disk(is_restarted: bool) -> None:
    """The file's CRC covers the whole file, and single pieces were sent without a check."""
    vfs, rng = MemVfs(), random.Random(1)
    payload = rng.randbytes(3 * BLOCK_BYTES + 77)
    part = SnapshotPart(vfs, "/part", 7, 2, b"who votes")
    for begin in range(0, len(payload), 50_000):
        part.append_piece(payload[begin : begin + 50_000])
    snapshot = part.finish()
    file = vfs.open("/part", OpenMode.READ)
    if is_restarted:
        loaded = load_snapshot(file, 7, 2)
        assert loaded == snapshot
        snapshot = loaded
    pieces = [(rng.randrange(len(payload) + 9), rng.randrange(2 * BLOCK_BYTES)) for _ in range(50)]
    for position, size in pieces:
        read = read_payload(vfs, "/part", snapshot, position, size)
        assert read == payload[position : position + size]
    head = file.size() - len(payload)
    for position in (0, BLOCK_BYTES - 1, BLOCK_BYTES, len(payload) - 1):
        file.rot(head + position)
        with pytest.raises(CorruptRecordError, match="/part is damaged"):
            read_payload(vfs, "/part", snapshot, position, 1)
        file.rot(head + position)
    file.truncate(file.size() - 1)
    with pytest.raises(CorruptRecordError):
        read_payload(vfs, "/part", snapshot, len(payload) - 1, 1)
