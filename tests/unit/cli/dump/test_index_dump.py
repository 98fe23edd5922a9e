"""Dumps of index files, compared with the log of the segment."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from kraftjbod.cli.dump.index_dump import (
    IndexStyle,
    dump_offset_index,
    dump_time_index,
    dump_transaction_index,
)
from kraftjbod.cli.dump.segment_dump import DamagedFileError
from tests.unit.cli.dump.test_segment_dump import segment

BASE = "00000000000000000000"
ALL = IndexStyle()


def index(log: str, suffix: str, data: bytes) -> str:
    path = Path(log).with_name(BASE + suffix)
    path.write_bytes(data)
    return str(path)


def test_dump_offset_index_reports_mismatches_with_the_log(tmp_path: Path) -> None:
    log = segment(tmp_path)
    size = Path(log).stat().st_size
    path = index(log, ".index", struct.pack(">IIII", 1, 0, 2, size))
    lines = [(one.line, one.is_problem) for one in dump_offset_index(path, ALL)]
    assert lines == [
        ("offset: 1 position: 0", False),
        (f"offset: 2 position: {size}", False),
        (f"Mismatches in :{path}", True),
        ("  Index offset: 2, log offset: -1", True),
    ]
    (sane,) = dump_offset_index(path, IndexStyle(sanity_only=True))
    assert sane.line == f"{path} passed sanity check."
    path = index(log, ".index", struct.pack(">IIII", 2, 9, 1, 0))
    (mad,) = dump_offset_index(path, IndexStyle(sanity_only=True))
    assert mad.is_problem
    (empty,) = dump_offset_index(index(log, ".index", b""), ALL)
    assert empty.line == f"{path} is empty."
    with pytest.raises(DamagedFileError, match="no multiple of 8"):
        list(dump_offset_index(index(log, ".index", b"torn"), ALL))


def test_dump_time_index_reports_mismatches_with_batch_timestamps(tmp_path: Path) -> None:
    log = segment(tmp_path)
    path = index(log, ".timeindex", struct.pack(">qIqI", 9, 1, 8, 2))
    items = list(dump_time_index(path, ALL))
    assert [one.line for one in items] == [
        "timestamp: 9 offset: 1",
        "timestamp: 8 offset: 2",
        "Index timestamp: 8, log timestamp: 9",
        "Index timestamp: 8, Previously indexed timestamp: 9",
    ]
    path = index(log, ".timeindex", struct.pack(">qI", 9, 0))
    verified = list(dump_time_index(path, IndexStyle(verify_only=True)))
    assert [one.line for one in verified][-1] == "Indexed offset: 0"


def test_dump_transaction_index_prints_entries_and_rejects_duplicates(tmp_path: Path) -> None:
    log = segment(tmp_path)
    good = struct.pack(">hqqqq", 0, 5, 0, 2, 3)
    (one,) = dump_transaction_index(index(log, ".txnindex", good))
    assert one.line == "version: 0 producerId: 5 firstOffset: 0 lastOffset: 2 lastStableOffset: 3"
    with pytest.raises(DamagedFileError):
        list(dump_transaction_index(index(log, ".txnindex", good + good)))
