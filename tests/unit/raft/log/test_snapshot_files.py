"""Snapshots as files."""

from __future__ import annotations

from kraftjbod.raft.log.snapshot_files import SnapshotPart, read_payload, sound_payload_bytes
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs


def test_a_part_is_sound_once_it_is_finished_and_not_when_a_bit_fell() -> None:
    vfs = MemVfs()
    part = SnapshotPart(vfs, "/part", 7, 2)
    part.append(b"some ")
    part.append(b"state")
    file = vfs.open("/part", OpenMode.READ_WRITE)
    assert sound_payload_bytes(file) is None
    assert part.finish().size_bytes == len(b"some state")
    assert sound_payload_bytes(file) == len(b"some state")
    assert read_payload(vfs, "/part", 5, 5) == b"state"
    file.write_at(file.size() - 1, [b"E"])
    assert sound_payload_bytes(file) is None
