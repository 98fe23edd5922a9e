"""Sequences, duplicates, epochs, and Kafka's snapshot bytes."""

from __future__ import annotations

import struct

import crc32c
import pytest

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.storage.producer_state import ProducerState
from tests.faults.rig import batch, headers_of

LARGEST = 2**31 - 1


def header(sequence: int, records: int = 1, *, epoch: int = 0, timestamp: int = 9) -> BatchHeader:
    (found,) = headers_of(batch(records, producer=(7, epoch, sequence), timestamp=timestamp))
    return found


def state_after(*sent: BatchHeader) -> ProducerState:
    state, offset = ProducerState(), 100
    for one in sent:
        assert state.check(one) is None
        state.record(one, offset)
        offset += one.record_count
    return state


def refused(state: ProducerState, one: BatchHeader) -> ErrorCode:
    with pytest.raises(OperatingError) as caught:
        state.check(one)
    return caught.value.code


def test_sequences_follow_one_another():
    state = state_after(header(0, 3), header(3, 2))
    assert state.check(header(5)) is None
    assert refused(state, header(6)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_last_five_batches_are_remembered():
    state = state_after(*(header(i) for i in range(6)))
    found = state.check(header(1))
    assert found is not None
    assert (found.base_offset, found.last_offset) == (101, 101)
    assert refused(state, header(0)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap():
    state = state_after(header(LARGEST - 1, 2))
    assert state.check(header(0)) is None
    state = state_after(header(LARGEST, 3))
    assert state.check(header(2)) is None


def test_newer_epoch_begins_anew_and_older_is_refused():
    state = state_after(header(0, epoch=1))
    assert refused(state, header(1, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(state, header(1, epoch=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(0, epoch=2)) is None


def test_unknown_producer_may_begin_anywhere():
    assert ProducerState().check(header(77)) is None


def test_expired_producers_are_forgotten():
    state = state_after(header(0, timestamp=50))
    state.expire(50)
    assert len(state) == 1
    state.expire(51)
    assert len(state) == 0


def test_snapshot_bytes_are_kafkas():
    state = state_after(header(0, 3))
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 7, 0, 2, 102, 2, 9, -1, -1)
    assert state.to_snapshot() == struct.pack(">hI", 1, crc32c.crc32c(body)) + body


def test_snapshot_comes_back_with_every_remembered_batch():
    """What was in flight at an orderly stop is sent again after it."""
    back = ProducerState.from_snapshot(state_after(header(0, 3), header(3, 2)).to_snapshot())
    assert back is not None
    assert back.check(header(5)) is None
    for sent, offsets in [(header(0, 3), (100, 102)), (header(3, 2), (103, 104))]:
        found = back.check(sent)
        assert found is not None
        assert (found.base_offset, found.last_offset) == offsets


def test_the_last_entry_of_a_producer_is_its_last_batch():
    """Kafka's reader keeps the last one, and so finds what it would have written."""
    data = state_after(header(0, 3), header(3, 2)).to_snapshot()
    last = struct.pack(">qhiqiqiq", 7, 0, 4, 104, 1, 9, -1, -1)
    assert data.endswith(last)


def test_damaged_snapshot_is_no_state():
    data = state_after(header(0)).to_snapshot()
    for at in range(len(data)):
        spoiled = bytearray(data)
        spoiled[at] ^= 1
        assert ProducerState.from_snapshot(bytes(spoiled)) is None
        assert ProducerState.from_snapshot(data[:at]) is None
