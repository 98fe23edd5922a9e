"""What makes the metadata grow, so that a full disk does not take it."""

from __future__ import annotations

import pytest

from kraftjbod.controller.decision_rules import grows
from kraftjbod.protocol import rpc_config_messages as c
from kraftjbod.protocol import rpc_messages as m

WISH = c.ReassignedPartition(topic="t", partition=0, replicas=None)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (c.AlterPartitionReassignmentsRequest(partitions=(WISH,)), False),
        (m.UpdateFeaturesRequest(updates=()), True),
        (m.DeleteTopicsRequest(topics=()), False),
    ],
)
def test_what_grows(request_: m.RpcRequest, expected: bool) -> None:
    assert grows(request_) is expected
