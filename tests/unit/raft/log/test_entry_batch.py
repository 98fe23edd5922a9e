"""Entries of the metadata log as record batches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.raft.log.entry_batch import decode_entry_batch, encode_entry_batch
from kraftjbod.raft.machine.messages import Entry


@given(
    st.builds(Entry, st.integers(0, 2**40), st.integers(0, 2**31 - 1), st.binary(max_size=300)),
    st.binary(max_size=50),
)
def test_entry_batch_is_decoded_as_encoded(entry: Entry, before: bytes) -> None:
    start, committed = entry.offset // 2, entry.offset // 3
    batch = encode_entry_batch(entry, append_start=start, committed_offset=committed, wall_ms=17)
    stored = decode_entry_batch(before + batch, len(before), entry.offset)
    assert stored == (entry, start, len(batch), committed)


def test_entry_batch_of_older_software_without_headers_is_read() -> None:
    record = Record(key=(2).to_bytes(8, "big"), value=b"payload")
    batch = build_batch([record], base_offset=3, leader_epoch=7)
    assert decode_entry_batch(batch, 0, 3) == (Entry(3, 7, b"payload"), 2, len(batch), -1)


@given(st.data())
def test_decode_entry_batch_rejects_any_flipped_bit_and_any_missing_end(
    data: st.DataObject,
) -> None:
    batch = _some_batch()
    at = data.draw(st.integers(0, len(batch) - 1))
    flipped = bytearray(batch)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    for damaged in (bytes(flipped), batch[:at]):
        with pytest.raises(CorruptRecordError):
            decode_entry_batch(damaged, 0, 3)


def test_decode_entry_batch_rejects_an_unexpected_offset() -> None:
    batch = _some_batch()
    with pytest.raises(CorruptRecordError, match="expected entry 4, found entry 3"):
        decode_entry_batch(batch, 0, 4)


def _some_batch() -> bytes:
    entry = Entry(3, 1, b"payload")
    return encode_entry_batch(entry, append_start=3, committed_offset=2, wall_ms=17)


def test_decode_entry_batch_rejects_an_ordinary_record_batch() -> None:
    batch = build_batch([Record(key=b"k", value=b"v")], base_offset=0, leader_epoch=0)
    with pytest.raises(CorruptRecordError, match="no entry of a metadata log"):
        decode_entry_batch(batch, 0, 0)
