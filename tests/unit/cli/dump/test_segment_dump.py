"""``dump_segment``: batches and records in the format of Kafka's tool, intact and damaged."""

from __future__ import annotations

from pathlib import Path

from kraftjbod.cli.dump.segment_dump import DumpItem, DumpStyle, dump_segment
from kraftjbod.protocol.control_records import TransactionMarker, build_marker
from kraftjbod.protocol.record_batch import stamp_header
from kraftjbod.protocol.records import Record, build_batch


def placed(data: bytes, offset: int) -> bytes:
    head = stamp_header(data, 0, base_offset=offset, leader_epoch=3)
    return head + data[len(head) :]


def segment(tmp_path: Path, *, spoil: int | None = None, tail: bytes = b"") -> str:
    first = build_batch(
        [
            Record(key=b"k", value=b"v", timestamp_ms=7, headers=(("h", b"1"), ("i", None))),
            Record(timestamp_ms=9),
        ],
        producer_id=5,
        producer_epoch=1,
        base_sequence=2**31 - 1,
    )
    marker = build_marker(
        TransactionMarker(False, 4), producer_id=5, producer_epoch=1, timestamp_ms=9
    )
    data = bytearray(placed(first, 0) + placed(marker, 2) + tail)
    if spoil is not None:
        data[spoil] ^= 0xFF
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    return str(path)


def dumped(path: str, **style: bool | int) -> list[DumpItem]:
    return list(dump_segment(path, DumpStyle(**style)))  # type: ignore[arg-type] # by name


def test_dump_segment_prints_lines_of_kafkas_tool(tmp_path: Path) -> None:
    lines = [one.line for one in dumped(segment(tmp_path), records=True)]
    assert lines[0] == "Log starting offset: 0"
    assert str(lines[1]).startswith(
        "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: 2147483647 lastSequence: 0 "
        "producerId: 5 producerEpoch: 1 partitionLeaderEpoch: 3 isTransactional: false "
        "isControl: false deleteHorizonMs: OptionalLong.empty position: 0 CreateTime: 9 size: "
    )
    assert str(lines[1]).endswith("isvalid: true")
    assert lines[2] == (
        "| offset: 0 CreateTime: 7 keySize: 1 valueSize: 1 sequence: 2147483647 "
        "headerKeys: [h,i] key: k payload: v"
    )
    assert lines[3] == (
        "| offset: 1 CreateTime: 9 keySize: -1 valueSize: -1 sequence: 0 headerKeys: []"
    )
    assert str(lines[5]).endswith("headerKeys: [] endTxnMarker: ABORT coordinatorEpoch: 4")
    assert len(dumped(segment(tmp_path), max_bytes=1)) == 2


def test_dump_segment_marks_corrupt_batch_and_continues(tmp_path: Path) -> None:
    path = segment(tmp_path, spoil=70)
    items = dumped(path, records=True)
    rotten = [one for one in items if one.is_problem]
    assert str(rotten[0].line).endswith("isvalid: false")
    assert any("endTxnMarker" in str(one.line) for one in items)


def test_dump_segment_counts_invalid_bytes_at_the_end(tmp_path: Path) -> None:
    (torn,) = [one for one in dumped(segment(tmp_path, tail=b"torn")) if one.is_problem]
    assert torn.line == "Found 4 invalid bytes at the end of 00000000000000000000.log"
    sound = Path(segment(tmp_path)).read_bytes()
    (lost,) = [one for one in dumped(segment(tmp_path, spoil=16)) if one.is_problem]
    assert lost.facts["invalidBytes"] == len(sound)


def test_dump_segment_reports_offset_gaps(tmp_path: Path) -> None:
    far = placed(build_batch([Record(value=b"x")]), 9)
    lines = [str(one.line) for one in dumped(segment(tmp_path, tail=far), records=True)]
    assert lines[-1] == "  2 is followed by 9"
