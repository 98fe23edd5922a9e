"""``AppendOutcome`` and ``PendingAppend``: the result of a produce for one partition."""

from __future__ import annotations

from kraftjbod.broker.replicas.pending_append import AppendOutcome, PendingAppend
from kraftjbod.core.errors import ErrorCode, InvalidRecordsError, NotLeaderOrFollowerError
from kraftjbod.core.ids import TopicPartition


def test_append_outcome_of_an_error_has_code_message_and_record_errors() -> None:
    bad = ((1, "a"), (4, "b"))
    code = ErrorCode.INVALID_RECORD
    refused = AppendOutcome.of_error(InvalidRecordsError("two are bad", code=code, records=bad))
    assert (refused.code, refused.message) == (code, "two are bad")
    assert refused.record_errors == bad
    assert AppendOutcome.of_error(NotLeaderOrFollowerError("another leads")).record_errors == ()


def test_refused_pending_append_is_done() -> None:
    outcome = AppendOutcome(ErrorCode.REQUEST_TIMED_OUT)
    pending = PendingAppend.refused(TopicPartition("t", 0), outcome)
    assert pending.done() and pending.result() is outcome
