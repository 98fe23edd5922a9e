"""``LineStream``: an endless reproducible stream without repeated keys."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from kraftjbod.tour.source_lines import LineStream, SourceLine, deal_standard_library


def test_line_stream_repeats_with_round_in_its_keys() -> None:
    stream = LineStream([SourceLine(place="a:1", text=b"x"), SourceLine(place="a:2", text=b"y")])
    records = stream.records(1, 2, timestamp_ms=7)
    assert [(r.key, r.value) for r in records] == [(b"1:a:2", b"y"), (b"2:a:1", b"x")]
    assert len(stream) == 2


def test_deal_standard_library_deals_every_line_once_in_nearly_equal_shares(tmp_path: Path) -> None:
    library = Path(json.__file__).parents[1]
    for name in ("json", "asyncio"):
        shutil.copytree(library / name, tmp_path / name)
    shutil.copytree(library / "json", tmp_path / "site-packages")
    files = [path.read_bytes().splitlines() for path in tmp_path.glob("[aj]*/*.py")]
    streams = deal_standard_library(4, tmp_path)
    sizes = [len(stream) for stream in streams]
    assert sum(sizes) == sum(map(len, files)) > 10_000
    assert max(sizes) - min(sizes) <= max(map(len, files))
    keys = {stream.key(i): stream.value(i) for stream in streams for i in range(len(stream))}
    assert len(keys) == sum(sizes)
    source = Path(json.decoder.__file__).read_bytes().splitlines()
    assert [keys[b"1:json/decoder.py:%d" % n] for n in range(1, len(source) + 1)] == source
