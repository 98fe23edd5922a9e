"""Verification guards of KIP-890: which batches may begin, continue or end a transaction."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.control_records import TransactionMarker, build_marker
from kraftjbod.protocol.record_batch import BatchHeader, read_header
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.log.producer_state import DEFAULT_PRODUCER_LIMITS, ProducerState
from kraftjbod.storage.log.verification_guards import (
    NotVerifiedError,
    ProducerTerms,
    VerificationGuard,
)

NOW_MS = 1_000_000
PID = 7


def header(
    sequence: int = 0, *, epoch: int = 0, transactional: bool = True, records: int = 1
) -> BatchHeader:
    data = build_batch(
        [Record(value=b"x")] * records,
        producer_id=PID,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=transactional,
    )
    return read_header(data)


class Leader:
    """The log state of a leader, for one producer."""

    def __init__(self) -> None:
        self.state = ProducerState()
        self.end_offset = 0

    def ask(self, one: BatchHeader, *, bumps: bool = False) -> VerificationGuard:
        with pytest.raises(NotVerifiedError) as raised:
            self.append(one, ProducerTerms(supports_epoch_bump=bumps))
        return raised.value.guard

    def append(self, one: BatchHeader, terms: ProducerTerms) -> None:
        twin = self.state.check(one, NOW_MS, DEFAULT_PRODUCER_LIMITS, terms)
        if twin is None:
            self.state.record(one, self.end_offset, NOW_MS)
            self.end_offset += 1

    def end(
        self, *, epoch: int = 0, commits: bool = True, coordinator: int = 0, version: int = 0
    ) -> None:
        marker = TransactionMarker(commits, coordinator)
        self.state.check_marker(PID, epoch, marker, version)
        data = build_marker(marker, producer_id=PID, producer_epoch=epoch, timestamp_ms=0)
        self.state.record(read_header(data), self.end_offset, NOW_MS, marker=marker)
        self.end_offset += 1

    def refusal(self, one: BatchHeader, terms: ProducerTerms) -> ErrorCode:
        with pytest.raises(OperatingError) as raised:
            self.append(one, terms)
        return raised.value.code

    def refused_end(self, **how: int) -> ErrorCode:
        with pytest.raises(OperatingError) as raised:
            self.end(**how)
        return raised.value.code


def test_verification_guard_is_required_for_the_first_batch_only() -> None:
    leader = Leader()
    guard = leader.ask(header())
    assert leader.ask(header(1)) is guard, "one question at a time"
    leader.append(header(), ProducerTerms(guard))
    # The second batch was verified as well, while the first was still pending.
    leader.append(header(1), ProducerTerms(guard))
    leader.append(header(2), ProducerTerms())
    assert leader.state.transactions.first_offset(PID) == 0


def test_verification_guard_is_invalid_after_a_marker() -> None:
    leader = Leader()
    guard = leader.ask(header())
    leader.end()
    assert leader.refusal(header(), ProducerTerms(guard)) is ErrorCode.INVALID_TXN_STATE


def test_verification_guard_of_another_log_is_requested_again() -> None:
    guard = Leader().ask(header())
    moved = Leader()
    with pytest.raises(NotVerifiedError) as raised:
        moved.append(header(), ProducerTerms(guard))
    moved.append(header(), ProducerTerms(raised.value.guard))


@pytest.mark.parametrize(("marker_epoch", "survives"), [(1, True), (2, False)])
def test_verification_guard_of_the_next_transaction_survives_the_previous_marker(
    marker_epoch: int, survives: bool
) -> None:
    leader = Leader()
    leader.append(header(), ProducerTerms(leader.ask(header(), bumps=True)))
    # The client knows its next epoch before the marker arrives.
    guard = leader.ask(header(epoch=1), bumps=True)
    leader.end(epoch=marker_epoch, version=2)
    if survives:
        leader.append(header(epoch=1), ProducerTerms(guard))
        assert leader.state.transactions.first_offset(PID) == 2
    else:
        code = leader.refusal(header(epoch=1), ProducerTerms(guard))
        assert code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_append_of_an_older_epoch_is_fenced_before_verification() -> None:
    leader = Leader()
    leader.end(epoch=3)
    code = leader.refusal(header(epoch=2), ProducerTerms())
    assert code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_append_of_the_second_batch_before_the_first_is_refused() -> None:
    leader = Leader()
    guard = leader.ask(header(0))
    leader.ask(header(1))
    code = leader.refusal(header(1), ProducerTerms(guard))
    assert code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize(("bumps", "is_fine"), [(True, False), (False, True)])
def test_transaction_v2_requires_sequence_zero_in_its_first_batch(
    bumps: bool, is_fine: bool
) -> None:
    leader = Leader()
    terms = ProducerTerms(leader.ask(header(5), bumps=bumps))
    if is_fine:
        leader.append(header(5), terms)
    else:
        assert leader.refusal(header(5), terms) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_append_outside_a_transaction_is_refused_while_one_is_open() -> None:
    leader = Leader()
    leader.append(header(), ProducerTerms(leader.ask(header())))
    plain = header(1, transactional=False)
    assert leader.refusal(plain, ProducerTerms()) is ErrorCode.INVALID_TXN_STATE
    leader.end()
    leader.append(plain, ProducerTerms())


def test_check_marker_fences_older_epochs_and_coordinators() -> None:
    leader = Leader()
    leader.append(header(), ProducerTerms(leader.ask(header())))
    # Transaction version 2 bumps the epoch with each marker, so this marker is late.
    assert leader.refused_end(epoch=0, version=2) is ErrorCode.INVALID_PRODUCER_EPOCH
    leader.end(epoch=1, version=2, coordinator=4)
    leader.end(epoch=1, version=2, coordinator=4)  # A retry after a lost response.
    assert leader.refused_end(epoch=0, coordinator=4) is ErrorCode.INVALID_PRODUCER_EPOCH
    fenced = leader.refused_end(epoch=1, coordinator=3)
    assert fenced is ErrorCode.TRANSACTION_COORDINATOR_FENCED


def test_expire_keeps_a_producer_with_an_open_transaction() -> None:
    leader = Leader()
    leader.append(header(), ProducerTerms(leader.ask(header())))
    late_ms = NOW_MS + 2 * DEFAULT_PRODUCER_LIMITS.expiration_ms
    leader.state.expire(late_ms, DEFAULT_PRODUCER_LIMITS)
    assert len(leader.state) == 1
    leader.end()
    leader.state.expire(late_ms, DEFAULT_PRODUCER_LIMITS)
    assert len(leader.state) == 0
