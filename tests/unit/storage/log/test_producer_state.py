"""Producer state: sequences, duplicates, epochs, expiration, and Kafka's snapshot format."""

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
from tests.each_case import each_case
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


def test_producer_state_accepts_consecutive_sequences_only() -> None:
    state = state_after(header(0, 3), header(3, 2))
    assert state.check(header(5), NOW_MS, LIMITS) is None
    assert refused(state, header(6)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producer_state_recognises_the_last_five_batches_as_duplicates() -> None:
    state = state_after(*(header(i) for i in range(6)))
    found = state.check(header(1), NOW_MS, LIMITS)
    assert found is not None
    assert (found.base_offset, found.last_offset) == (101, 101)
    assert refused(state, header(0)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producer_state_sequences_wrap_around() -> None:
    state = state_after(header(LARGEST - 1, 2))
    assert state.check(header(0), NOW_MS, LIMITS) is None
    state = state_after(header(LARGEST, 3))
    assert state.check(header(2), NOW_MS, LIMITS) is None


def test_producer_state_newer_epoch_starts_at_zero_and_older_one_is_refused() -> None:
    state = state_after(header(0, epoch=1))
    assert refused(state, header(1, epoch=0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(state, header(1, epoch=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(0, epoch=2), NOW_MS, LIMITS) is None


def test_producer_state_accepts_any_first_sequence_of_an_unknown_producer() -> None:
    assert ProducerState().check(header(77), NOW_MS, LIMITS) is None


def test_producer_state_expire_forgets_idle_producers() -> None:
    state = state_after(header(0, timestamp=50))
    state.expire(NOW_MS + 1000, LIMITS)
    assert len(state) == 1
    state.expire(NOW_MS + 1001, LIMITS)
    assert len(state) == 0


def test_producer_snapshot_bytes_equal_kafkas() -> None:
    state = state_after(header(0, 3))
    body = struct.pack(">i", 1) + struct.pack(">qhiqiqiq", 7, 0, 2, 102, 2, 9, -1, -1)
    assert state.to_snapshot() == struct.pack(">hI", 1, crc32c.crc32c(body)) + body


def test_producer_snapshot_restores_each_remembered_batch() -> None:
    """Clients resend batches that were in flight at a clean stop."""
    back = ProducerState.from_snapshot(state_after(header(0, 3), header(3, 2)).to_snapshot())
    assert back is not None
    assert back.check(header(5), NOW_MS, LIMITS) is None
    for sent, offsets in [(header(0, 3), (100, 102)), (header(3, 2), (103, 104))]:
        found = back.check(sent, NOW_MS, LIMITS)
        assert found is not None
        assert (found.base_offset, found.last_offset) == offsets


def test_producer_snapshot_ends_with_the_last_batch_of_the_producer() -> None:
    """Kafka's reader keeps the last entry of a producer, which is what Kafka would have written."""
    data = state_after(header(0, 3), header(3, 2)).to_snapshot()
    last = struct.pack(">qhiqiqiq", 7, 0, 4, 104, 1, 9, -1, -1)
    assert data.endswith(last)


def test_producer_snapshot_with_any_changed_byte_or_missing_end_is_rejected() -> None:
    data = state_after(header(0)).to_snapshot()
    for at in range(len(data)):
        spoiled = bytearray(data)
        spoiled[at] ^= 1
        assert ProducerState.from_snapshot(bytes(spoiled)) is None
        assert ProducerState.from_snapshot(data[:at]) is None


def sent_by(producer_id: int, sequence: int) -> BatchHeader:
    return header(sequence)._replace(producer_id=producer_id)


def test_producer_state_full_refuses_new_producers_while_retries_are_possible() -> None:
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
    # The producer that was idle longest was evicted, and may continue with any sequence.
    assert len(state) == 3
    assert state.check(sent_by(1, 1), first_free_ms, LIMITS) is not None
    with pytest.raises(OperatingError):
        state.check(sent_by(2, 1), first_free_ms, LIMITS)


def test_producer_state_of_a_coordinator_evicts_idle_producers_only() -> None:
    """Batches of a coordinator have no checked sequences, so retries are never recognised."""
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


def test_producer_state_expire_ignores_record_timestamps() -> None:
    """A producer of old records is active today, and a far future timestamp keeps no producer."""
    for timestamp in (0, 2**62):
        state = state_after(header(0, timestamp=timestamp))
        state.expire(NOW_MS + 1000, LIMITS)
        assert len(state) == 1
        state.expire(NOW_MS + 1001, LIMITS)
        assert len(state) == 0


def test_producer_state_expire_after_a_clock_step_back_keeps_no_producer_longer() -> None:
    state = state_after(header(0))
    state.expire(NOW_MS - 5, LIMITS)
    state.expire(NOW_MS - 5 + 1001, LIMITS)
    assert len(state) == 0


@each_case("seed", range(20))
def test_producer_state_never_stores_a_retry_twice_with_many_producers(seed: int) -> None:
    """Some producers resend their last batches, among many producer ids that appear once."""
    dice = random.Random(seed)
    leader, follower, limits = ProducerState(), ProducerState(), ProducerLimits(10**9, 8)
    now_ms, offset, refusals = 0, 0, 0
    #: Sequence, offset and time of the batches that each honest producer sent.
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
