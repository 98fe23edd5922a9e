"""``grows``: requests that enlarge the metadata, which a full disk refuses."""

from __future__ import annotations

import pytest

from kraftjbod.controller.decision_rules import grows
from kraftjbod.metadata.records import ResourceType
from kraftjbod.protocol import rpc_config_messages as c
from kraftjbod.protocol import rpc_messages as m

_SET, _DELETE = 0, 1


def _altered(kind: ResourceType, operation: int) -> c.IncrementalAlterConfigsRequestRpc:
    change = c.ConfigChange(name="a", operation=operation, value="1")
    resource = c.AlteredResource(resource_type=kind, name="r", changes=(change,))
    return c.IncrementalAlterConfigsRequestRpc(resources=(resource,))


CANCEL = c.ReassignedPartition(topic="t", partition=0, replicas=None)


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (c.AlterPartitionReassignmentsRequestRpc(partitions=(CANCEL,)), False),
        (m.UpdateFeaturesRequestRpc(updates=()), True),
        (m.DeleteTopicsRequestRpc(topics=()), False),
        (_altered(ResourceType.GROUP, _SET), True),
        (_altered(ResourceType.GROUP, _DELETE), False),
        (_altered(ResourceType.TOPIC, _SET), False),
        (_altered(ResourceType.BROKER, _SET), False),
    ],
)
def test_grows_is_false_for_deletions_cancels_and_values_of_topics_and_brokers(
    request_: m.RpcRequest, expected: bool
) -> None:
    assert grows(request_) is expected
