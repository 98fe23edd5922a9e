"""Dumps of producer snapshots, checkpoints and metadata snapshots, and errors for damaged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.cli.dump import state_dump
from kraftjbod.cli.dump.segment_dump import DamagedFileError
from kraftjbod.core.ids import TopicId
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION
from kraftjbod.metadata.record_codec import encode_entry
from kraftjbod.metadata.records import TopicRecord
from kraftjbod.raft.log.snapshot_files import SnapshotPart
from kraftjbod.storage.checkpoints import CorruptCheckpointError
from kraftjbod.storage.vfs import RealVfs
from tests.checkout import ROOT

GOLDEN = ROOT / "tests/golden/kafka_transactions"


def test_dump_producers_reads_kafkas_snapshot_and_rejects_truncated_one(tmp_path: Path) -> None:
    theirs = next(GOLDEN.rglob("*.snapshot"))
    lines = [str(one.line) for one in state_dump.dump_producers(str(theirs))]
    assert any("currentTxnFirstOffset: OptionalLong[" in line for line in lines)
    assert all(line.startswith("producerId: ") for line in lines)
    spoilt = tmp_path / theirs.name
    spoilt.write_bytes(theirs.read_bytes()[:-1])
    with pytest.raises(DamagedFileError, match="damaged"):
        list(state_dump.dump_producers(str(spoilt)))


def test_dump_checkpoints_print_entries_and_reject_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_text("0\n1\nt 3 7\n")
    (one,) = state_dump.dump_offset_checkpoint(str(path))
    assert one.line == "topic: t partition: 3 offset: 7"
    path.write_text("0\n1\n2 9\n")
    (one,) = state_dump.dump_leader_epochs(str(path))
    assert one.line == "epoch: 2 startOffset: 9"
    with pytest.raises(CorruptCheckpointError):
        list(state_dump.dump_offset_checkpoint(str(path)))
    path.write_bytes(b"\xff")
    with pytest.raises(DamagedFileError):
        list(state_dump.dump_text(str(path)))


def test_dump_metadata_snapshot_prints_records_and_rejects_damaged_file(tmp_path: Path) -> None:
    record = TopicRecord(name="t", topic_id=TopicId(bytes(16)))
    path = tmp_path / "00000000000000000005-0000000002.checkpoint"
    part = SnapshotPart(RealVfs(), str(path) + ".part", 4, 2)
    part.append_piece(encode_entry([record], LATEST_METADATA_VERSION))
    part.finish()
    Path(f"{path}.part").rename(path)
    lines = [str(one.line) for one in state_dump.dump_metadata_snapshot(str(path))]
    assert lines[0] == "Snapshot end offset: 5, epoch: 2"
    assert lines[1].startswith('| payload: {"type":"TOPIC_RECORD"')
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.raises(DamagedFileError):
        list(state_dump.dump_metadata_snapshot(str(path)))
