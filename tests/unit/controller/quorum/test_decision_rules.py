"""``grows``: requests that enlarge the metadata, which a full disk refuses."""

from __future__ import annotations

import pytest

from kraftjbod.controller.decision_rules import grows
from kraftjbod.protocol import rpc_config_messages as c
from kraftjbod.protocol import rpc_messages as m

CANCEL = c.ReassignedPartition(topic="t", partition=0, replicas=None)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (c.AlterPartitionReassignmentsRequestRpc(partitions=(CANCEL,)), False),
        (m.UpdateFeaturesRequestRpc(updates=()), True),
        (m.DeleteTopicsRequestRpc(topics=()), False),
    ],
)
def test_grows_is_true_for_feature_updates_but_not_for_cancellations_or_deletions(
    request_: m.RpcRequest, expected: bool
) -> None:
    assert grows(request_) is expected
