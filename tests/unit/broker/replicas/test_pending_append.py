"""What a producer is answered about one partition."""

from __future__ import annotations

from kraftjbod.broker.replicas.pending_append import AppendOutcome, PendingAppend
from kraftjbod.core.errors import ErrorCode, InvalidRecordsError, NotLeaderOrFollowerError
from kraftjbod.core.ids import TopicPartition


def test_an_outcome_says_what_was_wrong_and_with_which_records() -> None:
    bad = ((1, "a"), (4, "b"))
    code = ErrorCode.INVALID_RECORD
    refused = AppendOutcome.of(InvalidRecordsError("two are bad", code=code, records=bad))
    assert (refused.code, refused.message) == (code, "two are bad")
    assert refused.record_errors == bad
    assert AppendOutcome.of(NotLeaderOrFollowerError("another leads")).record_errors == ()


def test_what_is_refused_is_over() -> None:
    outcome = AppendOutcome(ErrorCode.REQUEST_TIMED_OUT)
    pending = PendingAppend.refused(TopicPartition("t", 0), outcome)
    assert pending.done() and pending.result() is outcome
