"""The stream of a partition: endless, always the same, no key twice."""

from __future__ import annotations

import json
from pathlib import Path

from kraftjbod.tour.source_lines import LineStream, SourceLine, deal_standard_library


def test_a_stream_goes_round_and_says_so_in_its_keys() -> None:
    stream = LineStream([SourceLine(place="a:1", text=b"x"), SourceLine(place="a:2", text=b"y")])
    records = stream.records(1, 2, timestamp_ms=7)
    assert [(r.key, r.value) for r in records] == [(b"1:a:2", b"y"), (b"2:a:1", b"x")]
    assert len(stream) == 2


def test_every_line_of_the_library_is_dealt_once_in_equal_shares() -> None:
    streams = deal_standard_library(4)
    sizes = [len(stream) for stream in streams]
    assert sum(sizes) > 100_000
    assert max(sizes) < 1.2 * min(sizes)
    keys = {stream.key(i): stream.value(i) for stream in streams for i in range(len(stream))}
    assert len(keys) == sum(sizes)
    source = Path(json.decoder.__file__).read_bytes().splitlines()
    assert [keys[b"1:json/decoder.py:%d" % n] for n in range(1, len(source) + 1)] == source
