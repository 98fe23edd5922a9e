"""``MetadataRefusals``: which failure a call reports when controllers have another metadata log."""

from __future__ import annotations

import pytest

from kraftjbod.broker.cluster.metadata_refusals import MetadataRefusals
from kraftjbod.core.errors import (
    ConnectionLostError,
    ErrorCode,
    ForeignMetadataError,
    NotControllerError,
    OperatingError,
    RequestTimedOutError,
)

REFUSED, STANDBY, DEAD, LATE = (
    ErrorCode.FOREIGN_METADATA,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT,
)
NOT_ALLOWED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
#: The error of a call that fails at once, which is the last refusal.
AT_ONCE = None

_ERRORS = {
    REFUSED: ForeignMetadataError("another log"),
    STANDBY: NotControllerError("not active"),
    DEAD: ConnectionLostError("connection refused"),
    LATE: RequestTimedOutError("not answered in time"),
    NOT_ALLOWED: OperatingError("not from here", code=NOT_ALLOWED),
}


@pytest.mark.parametrize(
    ("rounds", "client_gets", "broker_gets"),
    [
        # One round in which all refuse.
        ([REFUSED, REFUSED, REFUSED], AT_ONCE, AT_ONCE),
        ([REFUSED], AT_ONCE, AT_ONCE),
        # The first two controllers were not reached in the first round.
        ([DEAD, DEAD, REFUSED, REFUSED, REFUSED], AT_ONCE, AT_ONCE),
        # A standalone controller by mistake, and two voters that elect a leader.
        ([REFUSED, STANDBY, STANDBY] * 3, STANDBY, REFUSED),
        ([STANDBY, STANDBY, REFUSED] * 3, STANDBY, REFUSED),
        # The same with a dead voter, or with two of them.
        ([REFUSED, STANDBY, DEAD] * 3, DEAD, REFUSED),
        ([REFUSED, DEAD, DEAD] * 3, DEAD, REFUSED),
        # Two wiped disks: one controller leads, the other follows it, and the third voter is dead,
        # or was restarted and finds no leader.
        ([REFUSED, REFUSED, DEAD] * 3, DEAD, REFUSED),
        ([REFUSED, REFUSED, STANDBY] * 3, STANDBY, REFUSED),
        # A controller that refuses this host says nothing about its log.
        ([REFUSED, NOT_ALLOWED, NOT_ALLOWED] * 3, NOT_ALLOWED, REFUSED),
        # One refusal may come from a controller that is being replaced.
        ([REFUSED, STANDBY, STANDBY], STANDBY, STANDBY),
        ([STANDBY, STANDBY, REFUSED], STANDBY, STANDBY),
        # The deadline comes after the first answer.
        ([REFUSED, None, None], REFUSED, REFUSED),
        # A controller that got its disk back does not count any more.
        ([REFUSED, DEAD, DEAD, DEAD, REFUSED, REFUSED], DEAD, REFUSED),
        # The last attempt begins shortly before the deadline and is not answered in time.
        ([REFUSED, STANDBY, STANDBY, REFUSED, LATE], LATE, REFUSED),
        # No refusals.
        ([STANDBY, STANDBY, LATE], LATE, LATE),
        ([STANDBY, DEAD, STANDBY] * 2, STANDBY, STANDBY),
        ([STANDBY, STANDBY, DEAD] * 2, DEAD, DEAD),
    ],
)
def test_metadata_refusals_fail_a_call_at_once_or_at_its_deadline(
    rounds: list[ErrorCode | None], client_gets: ErrorCode | None, broker_gets: ErrorCode | None
) -> None:
    """``rounds`` has the answers of one to three controllers, which are asked in turn."""
    controllers = range(min(3, len(rounds)))
    for is_for_client, expected in ((True, client_gets), (False, broker_gets)):
        refusals = MetadataRefusals(is_for_client=is_for_client)
        certain, last = [], NotControllerError("")
        for number, code in enumerate(rounds):
            if code is not None:
                last = _ERRORS[code]
                refusals.note_failure(number % 3, last)
                certain.append(refusals.is_certain(controllers))
        assert certain == [False] * (len(certain) - 1) + [expected is AT_ONCE]
        if expected is not AT_ONCE:
            assert refusals.failure_at_deadline(last).code is expected
