"""``write_acknowledged``: the tour's record of acknowledgements for the audit."""

from __future__ import annotations

import json
from pathlib import Path
from zlib import crc32

from kraftjbod.gameday.load.acknowledgements import Ack, Acknowledgements
from kraftjbod.tour.acknowledged import write_acknowledged
from kraftjbod.tour.source_lines import LineStream, SourceLine


def load(partition: int, acks: list[Ack]) -> Acknowledgements:
    lines = [SourceLine(place=f"a.py:{n}", text=b"line %d" % n) for n in (1, 2)]
    made = Acknowledgements(partition, LineStream(lines))
    made.acks, made.acked = acks, sum(ack.count for ack in acks)
    return made


def test_write_acknowledged_writes_each_batch_with_crcs_of_its_records(tmp_path: Path) -> None:
    path = tmp_path / "acknowledged.jsonl"
    loads = [
        load(0, [Ack(at_s=0, offset=10, count=2), Ack(at_s=0, offset=14, count=1)]),
        load(1, []),
    ]
    assert write_acknowledged(path, "lines", loads) == 3
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == {
        "topic": "lines",
        "partition": 0,
        "offset": 10,
        "count": 2,
        "producer": "tour-0",
        "sequence": 0,
        "key_crcs": [crc32(b"1:a.py:1"), crc32(b"1:a.py:2")],
        "value_crcs": [crc32(b"line 1"), crc32(b"line 2")],
    }
    assert (second["offset"], second["sequence"]) == (14, 2)
    assert second["key_crcs"] == [crc32(b"2:a.py:1")]
