from __future__ import annotations

from tests.sim.search.ledgers.ledger import Ledger, Stream
from tests.sim.search.offset_invariants import (
    EARLIEST,
    EARLIEST_LOCAL,
    LATEST,
    MAX_TIMESTAMP,
    Answer,
    OffsetInvariants,
    Question,
)

#: Timestamps of the acknowledged records, by offset.
_STAMPS = (100, 400, 200)


def _invariants() -> tuple[OffsetInvariants, Ledger]:
    ledger = Ledger()
    stream = ledger.add(Stream(name="t-0-0", topic="t", partition=0))
    for number, stamped_ms in enumerate(_STAMPS):
        stream.take_ack(number, number, at_ms=number, stamped_ms=stamped_ms)
    return OffsetInvariants(ledger), ledger


def _judge(
    invariants: OffsetInvariants,
    timestamp: int,
    answer: int,
    found_ms: int = -1,
    *,
    epoch: int = 7,
    start: int | None = 0,
    is_newest: bool = True,
    is_settled: bool = True,
) -> str:
    question = Question("t", 0, epoch, timestamp)
    known = invariants.before(question, is_newest=is_newest)
    wrong = invariants.judge(known, Answer(answer, found_ms), start, is_settled=is_settled)
    return wrong.partition(": ")[2] if wrong else ""


def test_judge_without_offset_finds_earliest_and_latest() -> None:
    for timestamp in (EARLIEST, EARLIEST_LOCAL):
        assert _judge(_invariants()[0], timestamp, -1) == "a log always has a start"
    assert _judge(_invariants()[0], LATEST, -1, is_newest=False) == "a log always has an end"
    question = Question("t", 0, 7, LATEST, is_committed_only=True)
    known = _invariants()[0].before(question, is_newest=True)
    assert _invariants()[0].judge(known, Answer(-1, -1)) == (
        "ListOffsets answered -1 for the latest offset of t-0 in epoch 7 (read_committed): "
        "a log always has an end"
    )


def test_judge_finds_earliest_that_goes_back_in_one_epoch_or_below_a_deletion() -> None:
    invariants, ledger = _invariants()
    assert _judge(invariants, EARLIEST, 2) == "no DeleteRecords request named more than 0"
    ledger.asks_start("t", 0, 2)
    assert _judge(invariants, EARLIEST, 2) == ""
    assert _judge(invariants, EARLIEST, 1) == "2 was answered before"
    assert _judge(invariants, EARLIEST_LOCAL, 1, epoch=8) == ""
    ledger.take_start("t", 0, asked=2, start=2)
    assert _judge(invariants, EARLIEST, 1, epoch=9) == "the deletion up to 2 was acknowledged"
    assert _judge(invariants, EARLIEST, 1, epoch=9, is_newest=False) == ""


def test_judge_finds_latest_that_goes_back_or_below_committed_records() -> None:
    invariants, ledger = _invariants()
    assert _judge(invariants, LATEST, 2, is_newest=False) == ""
    assert _judge(invariants, LATEST, 2) == "records up to 3 are committed"
    assert _judge(invariants, LATEST, 5) == ""
    assert _judge(invariants, LATEST, 4, epoch=8) == "5 was answered before, as earliest or latest"
    ledger.asks_start("t", 0, 6)
    assert _judge(invariants, EARLIEST, 6) == ""
    assert _judge(invariants, LATEST, 5) == "6 was answered before, as earliest or latest"


def test_judge_of_max_timestamp_requires_the_newest_record_that_was_not_deleted() -> None:
    invariants, _ = _invariants()
    assert (
        _judge(invariants, MAX_TIMESTAMP, -1) == "the record at 1 was acknowledged and not deleted"
    )
    assert _judge(invariants, MAX_TIMESTAMP, -1, is_newest=False) == ""
    assert _judge(invariants, MAX_TIMESTAMP, -1, is_settled=False) == ""
    assert _judge(invariants, MAX_TIMESTAMP, -1, start=3) == ""
    assert _judge(invariants, MAX_TIMESTAMP, -1, start=None) == ""
    assert (
        _judge(invariants, MAX_TIMESTAMP, 1, 400) == _judge(invariants, MAX_TIMESTAMP, 5, 900) == ""
    )
    assert _judge(invariants, MAX_TIMESTAMP, 2, 200, is_settled=False) == (
        "its timestamp is 200, and the acknowledged record at 1 has 400"
    )
    assert _judge(invariants, MAX_TIMESTAMP, 2, 200, start=2) == ""


def test_judge_by_time_finds_acknowledged_record_before_the_answer() -> None:
    invariants, _ = _invariants()
    assert _judge(invariants, 150, 1, 400) == _judge(invariants, 401, -1) == ""
    assert _judge(invariants, 150, 0, 100) == "its timestamp is 100"
    skipped = "the acknowledged record at 1 has timestamp 400"
    assert _judge(invariants, 150, 2, 200) == _judge(invariants, 150, -1) == skipped
    assert _judge(invariants, 150, 2, 200, is_newest=False) == skipped
    assert _judge(invariants, 150, -1, is_newest=False) == ""
    assert _judge(invariants, 150, 2, 200, start=2) == _judge(invariants, 150, -1, start=None) == ""


def test_offset_question_needs_log_start_only_for_searches_among_acknowledged_records() -> None:
    for invariants, is_needed in ((_invariants()[0], True), (OffsetInvariants(Ledger()), False)):
        for timestamp in (EARLIEST, EARLIEST_LOCAL, LATEST, MAX_TIMESTAMP, 5):
            known = invariants.before(Question("t", 0, 7, timestamp), is_newest=True)
            assert known.needs_start is (is_needed and timestamp in (MAX_TIMESTAMP, 5))
