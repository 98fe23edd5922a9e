"""Snapshots as files."""

from __future__ import annotations

import pytest

from kraftjbod.raft.log.snapshot_files import SnapshotPart, read_payload, sound_snapshot
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs


@pytest.mark.parametrize("voters", [b"", b"who votes"])
def test_a_part_is_sound_once_it_is_finished_and_not_when_a_bit_fell(voters: bytes) -> None:
    vfs = MemVfs()
    part = SnapshotPart(vfs, "/part", 7, 2, voters)
    part.append(b"some ")
    part.append(b"state")
    file = vfs.open("/part", OpenMode.READ_WRITE)
    assert sound_snapshot(file) is None
    snapshot = part.finish()
    assert sound_snapshot(file) == (len(b"some state"), voters)
    assert read_payload(vfs, "/part", 5, 5, snapshot.voters) == b"state"
    whole = bytes(file.read_at(0, file.size()))
    for position in range(len(whole)):
        file.write_at(position, [bytes([whole[position] ^ 1])])
        assert sound_snapshot(file) is None, position
        file.write_at(position, [whole[position : position + 1]])
    assert sound_snapshot(file) is not None
