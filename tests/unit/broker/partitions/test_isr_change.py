"""``verdict_of`` a refused ISR change; test_partition.py covers the changes themselves."""

from __future__ import annotations

import pytest

from kraftjbod.broker.partitions.isr_change import IsrVerdict, verdict_of
from kraftjbod.core.errors import ErrorCode


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.INELIGIBLE_REPLICA, IsrVerdict.ROLLED_BACK),
        (ErrorCode.INVALID_UPDATE_VERSION, IsrVerdict.AWAIT_METADATA),
        (ErrorCode.FENCED_LEADER_EPOCH, IsrVerdict.AWAIT_METADATA),
        (ErrorCode.NEW_LEADER_ELECTED, IsrVerdict.AWAIT_METADATA),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, IsrVerdict.AWAIT_METADATA),
        (ErrorCode.NOT_CONTROLLER, IsrVerdict.RETRY),
        (ErrorCode.UNKNOWN_SERVER_ERROR, IsrVerdict.RETRY),
    ],
)
def test_verdict_of_a_refused_isr_change_depends_on_its_error_code(
    code: ErrorCode, verdict: IsrVerdict
) -> None:
    assert verdict_of(code) is verdict
