"""Config and reassignment requests for older controllers, and repeated requests."""

from __future__ import annotations

from kraftjbod.core.ids import BrokerId
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.protocol.rpc_codec import decode_request, encode_request
from kraftjbod.protocol.rpc_config_messages import (
    AlteredResource,
    AlterPartitionReassignmentsRequestRpc,
    ConfigChange,
    IncrementalAlterConfigsRequestRpc,
    ListPartitionReassignmentsRequestRpc,
    ReassignedPartition,
)

CHANGE = ConfigChange(name="cordoned.log.dirs", operation=2, value="/a", base="/b")
REQUEST = IncrementalAlterConfigsRequestRpc(
    resources=(AlteredResource(resource_type=4, name="1", changes=(CHANGE,)),),
    validated_by=BrokerId(1),
)


def _through(version: int) -> IncrementalAlterConfigsRequestRpc:
    body = decode_request(encode_request(0, REQUEST, version)[4:]).body
    assert isinstance(body, IncrementalAlterConfigsRequestRpc)
    return body


def test_validated_by_is_sent_since_the_version_with_cordons() -> None:
    assert _through(1) == REQUEST
    assert _through(0).validated_by is None
    assert IncrementalAlterConfigsRequestRpc.version_at(MetadataVersion.IV_3_7_IV2) == 0
    assert IncrementalAlterConfigsRequestRpc.version_at(MetadataVersion.IV_4_3_IV0) == 1


def test_rpc_request_made_by_again_is_marked_as_repeated() -> None:
    cancel = ReassignedPartition(topic="t", partition=0, replicas=None, was_under_way=True)
    move = ReassignedPartition(topic="t", partition=1, replicas=(BrokerId(2),), target_dirs=("/d",))
    request = AlterPartitionReassignmentsRequestRpc(partitions=(cancel, move))
    body = decode_request(encode_request(1, request.again())[4:]).body
    assert isinstance(body, AlterPartitionReassignmentsRequestRpc)
    assert (body.partitions, body.is_repeated) == ((cancel, move), True)
    assert not request.is_repeated
    question = ListPartitionReassignmentsRequestRpc(partitions={"t": (0,)})
    assert question.again() is question
