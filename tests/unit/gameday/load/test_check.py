"""``PartitionCheck`` finds each kind of wrong record, and accepts correct ones."""

from __future__ import annotations

from dataclasses import replace

from kraftjbod.gameday.load.acknowledgements import Ack, Acknowledgements
from kraftjbod.gameday.load.check import Findings, PartitionCheck
from kraftjbod.gameday.load.numbered_stream import NumberedStream
from kraftjbod.protocol.records import Record
from kraftjbod.tour.source_lines import LineStream, SourceLine

STREAM = LineStream([SourceLine(place=f"f:{n}", text=b"%d" % n) for n in range(6)])


def check(records: list[Record], acked: int = 6, in_doubt: int = 0) -> Findings:
    load = Acknowledgements(0, STREAM)
    load.acks = [Ack(at_s=0.0, offset=0, count=acked)]
    load.acked, load.in_doubt = acked, in_doubt
    checking = PartitionCheck(load)
    for record in records:
        checking.feed(record)
    return checking.findings()


def stored() -> list[Record]:
    records = STREAM.records(0, 6, 0)
    return [replace(record, offset=offset) for offset, record in enumerate(records)]


def wrong(findings: Findings) -> dict[str, int]:
    names = ("lost", "twice", "out_of_order", "changed", "misplaced")
    return {name: getattr(findings, name) for name in names if getattr(findings, name)}


def test_check_accepts_all_records() -> None:
    findings = check(stored())
    assert findings.is_good
    assert (findings.acknowledged, findings.found) == (6, 6)


def test_check_finds_missing_record() -> None:
    assert wrong(check([r for r in stored() if r.offset != 3])) == {"lost": 1}


def test_check_finds_repeated_record() -> None:
    again = replace(stored()[5], offset=5)
    assert wrong(check([*stored(), again])) == {"twice": 1}


def test_check_finds_swapped_records() -> None:
    records = stored()
    records[2], records[3] = replace(records[3], offset=2), replace(records[2], offset=3)
    assert wrong(check(records)) == {"out_of_order": 1, "misplaced": 2}


def test_check_finds_changed_and_foreign_records() -> None:
    records = stored()
    records[1] = replace(records[1], value=b"?")
    assert wrong(check(records)) == {"changed": 1, "lost": 1}
    foreign = replace(records[0], key=b"who")
    assert wrong(check([*stored(), foreign])) == {"changed": 1}


def test_check_allows_records_in_doubt_to_be_missing() -> None:
    assert check(stored(), acked=4, in_doubt=2).is_good
    assert check(stored()[:4], acked=4, in_doubt=2).is_good
    assert wrong(check(stored()[:3], acked=4, in_doubt=2)) == {"lost": 1}


def test_check_ignores_records_of_other_producers() -> None:
    stream = NumberedStream("run", size_bytes=64)
    load = Acknowledgements(0, stream)
    load.acks, load.acked = [Ack(at_s=0.0, offset=10, count=2)], 2
    checking = PartitionCheck(load)
    ours = [replace(record, offset=10 + n) for n, record in enumerate(stream.records(0, 2, 0))]
    for record in (ours[0], Record(key=b"theirs", value=b"", timestamp_ms=0), ours[1]):
        checking.feed(record)
    assert checking.findings().is_good
    assert checking.findings().found == 2
    for record in stream.records(7, 1, 0):
        checking.feed(record)
    assert wrong(checking.findings()) == {"changed": 1}, "an own record that was never sent"
