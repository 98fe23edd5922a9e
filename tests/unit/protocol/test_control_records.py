"""Transaction markers: Kafka's bytes, and other control records."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.protocol.control_records import TransactionMarker, build_marker, read_marker
from kraftjbod.protocol.raw_records import empty_batch
from kraftjbod.protocol.record_batch import batches, read_header
from kraftjbod.protocol.records import Record, build_batch

KAFKAS = Path(__file__).parents[2] / "golden" / "kafka_transactions" / "00000000000000000004.log"


def test_build_marker_produces_kafkas_bytes() -> None:
    data, found = KAFKAS.read_bytes(), []
    for position, header in batches(data):
        if not header.is_control:
            continue
        marker = read_marker(data, position, header)
        assert marker is not None
        found.append((header.base_offset, marker.is_commit))
        built = build_marker(
            marker,
            producer_id=header.producer_id,
            producer_epoch=header.producer_epoch,
            timestamp_ms=header.base_timestamp,
        )
        # The CRC covers these bytes; the log assigns the others.
        assert built[17:] == data[position + 17 : position + header.size_bytes]
    assert found == [(4, False), (8, True), (9, False), (11, False), (13, True)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"\0\0\0\2", bytes(6)),
        (b"\0\0\0", bytes(6)),
        (None, bytes(6)),
        (b"\0\0\0\1", b"\0\0"),
        (b"\xff\xff\0\1", bytes(6)),
    ],
)
def test_read_marker_of_other_control_records_is_none(key: bytes | None, value: bytes) -> None:
    data = build_batch([Record(key=key, value=value)], producer_id=1, is_control=True)
    assert read_marker(data, 0, read_header(data)) is None


def test_read_marker_of_emptied_batch_is_none() -> None:
    marker = build_marker(
        TransactionMarker(True, 3), producer_id=1, producer_epoch=0, timestamp_ms=0
    )
    emptied = empty_batch(read_header(marker))
    assert read_marker(emptied, 0, read_header(emptied)) is None
