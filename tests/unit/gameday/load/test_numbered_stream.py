"""``NumberedStream``: reproducible numbered records with their own keys."""

from __future__ import annotations

import pytest

from kraftjbod.gameday.load.numbered_stream import NumberedStream


@pytest.mark.parametrize("size_bytes", [64, 1000])
def test_numbered_stream_records_have_number_as_key_and_fixed_size(size_bytes: int) -> None:
    stream = NumberedStream("run", size_bytes=size_bytes)
    records = stream.records(3, 2, 99)
    assert [record.key for record in records] == [b"run:3", b"run:4"]
    assert [record.value for record in records] == [stream.value(3), stream.value(4)]
    assert {len(stream.value(index)) for index in range(0, 10_000, 999)} == {size_bytes}
    assert stream.value(3) != stream.value(4)


def test_numbered_stream_owns_only_its_keys() -> None:
    stream = NumberedStream("run", size_bytes=64)
    assert stream.owns(b"run:9")
    assert not stream.owns(b"runner:9")
    assert not stream.owns(b"")
