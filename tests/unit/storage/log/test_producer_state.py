"""Sequences, duplicates, epochs, and Kafka's snapshot bytes."""

from __future__ import annotations

import random
import struct

import crc32c
import pytest

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.control_records import TransactionMarker
from kraftjbod.protocol.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from kraftjbod.storage.log.producer_state import RETRIES_END_AFTER_MS, ProducerLimits, ProducerState
from kraftjbod.storage.log.verification_guards import ProducerTerms
from tests.faults.rig import batch, headers_of

LARGEST = 2**31 - 1
NOW_MS = 9
LIMITS = ProducerLimits(expiration_ms=1000, max_producers=3)


def header(sequence: int, records: int = 1, *, epoch: int = 0, timestamp: int = 9) -> BatchHeader:
    (found,) = headers_of(batch(records, producer=(7, epoch, sequence), timestamp=timestamp))
    return found


def state_after(*sent: BatchHeader) -> ProducerState:
    state, offset = ProducerState(), 100
    for one in sent:
        assert state.check(one, NOW_MS, LIMITS) is None
        state.record(one, offset, NOW_MS, LIMITS)
        offset += one.record_count
    return state


def refused(state: ProducerState, one: BatchHeader) -> ErrorCode:
    with pytest.raises(OperatingError) as caught:
        state.check(one, NOW_MS, LIMITS)
    return caught.value.code


def test_sequences_follow_one_another() -> None:
    state = state_after(header(0, 3), header(3, 2))
    assert state.check(header(5), NOW_MS, LIMITS) is None
    assert refused(state, header(6)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_the_last_five_batches_are_remembered() -> None:
    state = state_after(*(header(i) for i in range(6)))
    found = state.check(header(1), NOW_MS, LIMITS)
    assert found is not None
    assert (found.base_offset, found.last_offset) == (101, 101)
    assert refused(state, header(0)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap() -> None:
    state = state_after(header(LARGEST - 1, 2))
    assert state.check(header(0), NOW_MS, LIMITS) is None
    state = state_after(header(LARGEST, 3))
    assert state.check(header(2), NOW_MS, LIMITS) is None


def test_newer_epoch_begins_anew_and_older_is_refused() -> None:
    state = state_after(header(0, epoch=1))
    assert refused(state, header(1, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(state, header(1, epoch=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(0, epoch=2), NOW_MS, LIMITS) is None


def test_unknown_producer_may_begin_anywhere() -> None:
    assert ProducerState().check(header(77), NOW_MS, LIMITS) is None


def test_expired_producers_are_forgotten() -> None:
    state = state_after(header(0, timestamp=50))
    state.expire(NOW_MS + 1000, LIMITS)
    assert len(state) == 1
    state.expire(NOW_MS + 1001, LIMITS)
    assert len(state) == 0


def test_snapshot_bytes_are_kafkas() -> None:
    state = state_after(header(0, 3))
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 7, 0, 2, 102, 2, 9, -1, -1)
    assert state.to_snapshot() == struct.pack(">hI", 1, crc32c.crc32c(body)) + body


def test_snapshot_comes_back_with_every_remembered_batch() -> None:
    """What was in flight at an orderly stop is sent again after it."""
    back = ProducerState.from_snapshot(state_after(header(0, 3), header(3, 2)).to_snapshot())
    assert back is not None
    assert back.check(header(5), NOW_MS, LIMITS) is None
    for sent, offsets in [(header(0, 3), (100, 102)), (header(3, 2), (103, 104))]:
        found = back.check(sent, NOW_MS, LIMITS)
        assert found is not None
        assert (found.base_offset, found.last_offset) == offsets


def test_the_last_entry_of_a_producer_is_its_last_batch() -> None:
    """Kafka's reader keeps the last one, and so finds what it would have written."""
    data = state_after(header(0, 3), header(3, 2)).to_snapshot()
    last = struct.pack(">qhiqiqiq", 7, 0, 4, 104, 1, 9, -1, -1)
    assert data.endswith(last)


def test_damaged_snapshot_is_no_state() -> None:
    data = state_after(header(0)).to_snapshot()
    for at in range(len(data)):
        spoiled = bytearray(data)
        spoiled[at] ^= 1
        assert ProducerState.from_snapshot(bytes(spoiled)) is None
        assert ProducerState.from_snapshot(data[:at]) is None


def sent_by(producer_id: int, sequence: int) -> BatchHeader:
    return header(sequence)._replace(producer_id=producer_id)


def test_one_producer_too_many_is_refused_while_the_others_may_send_again() -> None:
    state = ProducerState()
    for producer_id in (1, 2, 3):
        state.record(sent_by(producer_id, 0), producer_id, NOW_MS + producer_id, LIMITS)
    state.record(sent_by(1, 1), 9, NOW_MS + 4, LIMITS)
    first_free_ms = NOW_MS + 2 + RETRIES_END_AFTER_MS
    with pytest.raises(OperatingError) as caught:
        state.check(sent_by(4, 0), first_free_ms - 1, LIMITS)
    assert caught.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    assert state.check(sent_by(4, 0), first_free_ms, LIMITS) is None
    state.record(sent_by(4, 0), 10, first_free_ms, LIMITS)
    # The one that sent something least recently gave way, and may go on wherever it was.
    assert len(state) == 3
    assert state.check(sent_by(1, 1), first_free_ms, LIMITS) is not None
    with pytest.raises(OperatingError):
        state.check(sent_by(2, 1), first_free_ms, LIMITS)


def test_coordinator_log_forgets_idle_producer_but_no_open_transaction() -> None:
    """A coordinator counts no sequences, so that no retry of its batches can be recognised."""
    terms = ProducerTerms(is_guarded=False, checks_sequence=False)
    state = ProducerState()
    for producer_id in (1, 2, 3):
        batch = sent_by(producer_id, 0)._replace(attributes=TRANSACTIONAL_BIT)
        state.record(batch, producer_id, NOW_MS, LIMITS)
    newest = sent_by(4, 0)._replace(attributes=TRANSACTIONAL_BIT)
    with pytest.raises(OperatingError) as caught:
        state.check(newest, NOW_MS, LIMITS, terms)
    assert caught.value.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
    marker = sent_by(2, 0)._replace(attributes=TRANSACTIONAL_BIT | CONTROL_BIT)
    state.record(marker, 4, NOW_MS, LIMITS, TransactionMarker(True, 0))
    assert state.check(newest, NOW_MS, LIMITS, terms) is None
    state.record(newest, 5, NOW_MS, LIMITS)
    assert {one.producer_id for one in state.known()} == {1, 3, 4}


def test_what_the_records_say_of_time_lets_nobody_be_forgotten_or_kept() -> None:
    """Who copies old records is a producer of today; and nobody stays for a thousand years."""
    for timestamp in (0, 2**62):
        state = state_after(header(0, timestamp=timestamp))
        state.expire(NOW_MS + 1000, LIMITS)
        assert len(state) == 1
        state.expire(NOW_MS + 1001, LIMITS)
        assert len(state) == 0


def test_a_clock_that_was_ahead_keeps_nobody_for_longer() -> None:
    state = state_after(header(0))
    state.expire(NOW_MS - 5, LIMITS)
    state.expire(NOW_MS - 5 + 1001, LIMITS)
    assert len(state) == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_retry_is_stored_twice_however_many_producers_come(seed: int) -> None:
    """Honest producers, each sending its last batches again, among ids that come once."""
    dice = random.Random(seed)
    leader, follower, limits = ProducerState(), ProducerState(), ProducerLimits(10**9, 8)
    now_ms, offset, refusals = 0, 0, 0
    #: Of each honest producer: sequence, offset and instant of what it sent last.
    sent: dict[int, list[tuple[int, int, int]]] = {id_: [] for id_ in range(4)}

    def offer(one: BatchHeader) -> tuple[bool, int | None]:
        nonlocal offset, refusals
        try:
            twin = leader.check(one, now_ms, limits)
        except OperatingError as e:
            assert e.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED
            refusals += 1
            return False, None
        if twin is None:
            leader.record(one, offset, now_ms, limits)
            follower.record(one, offset, now_ms + dice.randrange(1000), limits)
            offset += 1
        return True, None if twin is None else twin.base_offset

    for _ in range(2000):
        now_ms += dice.randrange(1, 60_000)
        honest = dice.randrange(4)
        batches = sent[honest]
        match dice.randrange(3):
            case 0:
                offer(sent_by(dice.randrange(100, 10**6), dice.randrange(100)))
            case 1:
                sequence = batches[-1][0] + 1 if batches else 0
                at = offset
                taken, twin = offer(sent_by(honest, sequence))
                assert twin is None
                if taken:
                    batches.append((sequence, at, now_ms))
                else:
                    recent_ms = batches[-1][2] if batches else -RETRIES_END_AFTER_MS
                    assert now_ms - recent_ms >= RETRIES_END_AFTER_MS
            case 2:
                for sequence, at, since_ms in batches[-5:]:
                    if now_ms - since_ms < RETRIES_END_AFTER_MS:
                        assert offer(sent_by(honest, sequence)) == (True, at)
        assert len(leader) <= 8
        assert leader.kept_batches() == follower.kept_batches()
    assert refusals > 0
