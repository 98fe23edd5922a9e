"""PURE. RPC messages for requests of operators: configurations, moves, elections, brokers.

Brokers forward these requests, and tools may send them. The rules of rpc_messages.py apply.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Annotated, ClassVar

from pydantic import Field

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.core.metadata_version import MetadataVersion
from kraftjbod.protocol.rpc_messages import (
    MAX_PARTITIONS_PER_REQUEST,
    OnceOnlyRequest,
    RpcBody,
    RpcRequest,
    RpcResponse,
    Since,
    WireBrokerId,
)


class ConfigSource(IntEnum):
    """Source of a configuration value, with Kafka's numbers.

    A value for one node overrides the value for all nodes.
    """

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class ConfigChange(RpcBody):
    """A change of one configuration key (KIP-339).

    ``operation`` has Kafka's numbers: 0 set, 1 delete, 2 append, 3 subtract. ``base`` is the list
    to append to or subtract from if no value is committed.
    """

    name: str
    operation: int = Field(ge=0, le=3)
    value: str | None = None
    base: str | None = None


class AlteredResource(RpcBody):
    """The changes of one topic, broker or group.

    ``resource_type`` has Kafka's numbers (ConfigResource.Type). ``name`` may be empty only for
    brokers; it then means all of them.
    """

    resource_type: int
    name: str
    changes: tuple[ConfigChange, ...]


class ResourceOutcome(RpcBody):
    resource_type: int
    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class IncrementalAlterConfigsResponseRpc(RpcResponse):
    resources: tuple[ResourceOutcome, ...]


class IncrementalAlterConfigsRequestRpc(RpcRequest):
    """Change dynamic configurations; each resource gets its own result.

    ``validated_by`` is the broker that has validated the changes of its own configuration, or of
    the configuration for all brokers. None means that no broker has.
    """

    api = "IncrementalAlterConfigs"
    version = 1
    first_levels: ClassVar[Mapping[int, MetadataVersion]] = {
        0: MetadataVersion.IV_3_6_IV2,
        1: MetadataVersion.IV_4_3_IV0,
    }
    Response = IncrementalAlterConfigsResponseRpc

    resources: tuple[AlteredResource, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)
    validate_only: bool = False
    validated_by: Annotated[WireBrokerId | None, Since(1)] = None


class DescribedResource(RpcBody):
    """The dynamic values of one topic, broker or group. An empty ``name`` means all brokers."""

    name: str
    values: dict[str, str]


class DescribeDynamicConfigsResponse(RpcResponse):
    resources: tuple[DescribedResource, ...]


class DescribeDynamicConfigsRequest(RpcRequest):
    """Request the committed values of the topics (type 2), brokers (4) or groups (32) that have
    any.
    """

    api = "DescribeDynamicConfigs"
    Response = DescribeDynamicConfigsResponse

    resource_type: int
    names: tuple[str, ...] | None = Field(default=None, max_length=MAX_PARTITIONS_PER_REQUEST)
    """None asks for all."""


# --- moves between brokers ----------------------------------------------------------------------


class ReassignedPartition(RpcBody):
    """The target replicas of a partition; None in ``replicas`` cancels its reassignment.

    ``target_dirs`` is empty or has one item per item of ``replicas``: ``"any"``, the absolute path
    of a directory of that broker, or ``"dirid:"`` and a directory id. Items for existing replicas
    are ignored.

    ``was_under_way``: the sender found the reassignment that it cancels before its first attempt.
    """

    topic: str
    partition: int
    replicas: tuple[BrokerId, ...] | None
    target_dirs: tuple[str, ...] = ()
    was_under_way: bool = False


class ReassignmentOutcome(RpcBody):
    topic: str
    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class AlterPartitionReassignmentsResponseRpc(RpcResponse):
    """One result per requested partition, in the same order."""

    partitions: tuple[ReassignmentOutcome, ...]


class AlterPartitionReassignmentsRequestRpc(OnceOnlyRequest):
    """Move replicas between brokers (KIP-455), optionally to given directories."""

    api = "AlterPartitionReassignments"
    Response = AlterPartitionReassignmentsResponseRpc

    partitions: tuple[ReassignedPartition, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)
    allow_replication_factor_change: bool = True


class OngoingReassignment(RpcBody):
    topic: str
    partition: int
    replicas: tuple[BrokerId, ...]
    adding_replicas: tuple[BrokerId, ...]
    removing_replicas: tuple[BrokerId, ...]


class ListPartitionReassignmentsResponseRpc(RpcResponse):
    """The partitions that are being reassigned."""

    partitions: tuple[OngoingReassignment, ...]


class ListPartitionReassignmentsRequestRpc(RpcRequest):
    """Request the ongoing reassignments. ``partitions`` is a list per topic; None requests all."""

    api = "ListPartitionReassignments"
    Response = ListPartitionReassignmentsResponseRpc

    partitions: dict[str, tuple[int, ...]] | None = None


# --- leaders and brokers -------------------------------------------------------------------------


class ElectionType(IntEnum):
    """Type of a leader election, with Kafka's numbers (KIP-460)."""

    PREFERRED = 0
    UNCLEAN = 1


class ElectedPartition(RpcBody):
    topic: str
    partition: int


class ElectionOutcome(RpcBody):
    topic: str
    partition: int
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class ElectLeadersResponseRpc(RpcResponse):
    """One result per requested partition, in the same order."""

    partitions: tuple[ElectionOutcome, ...]


class ElectLeadersRequestRpc(RpcRequest):
    """Elect a leader per partition: the preferred replica, or with UNCLEAN any live replica.

    UNCLEAN applies only to partitions without a leader.
    """

    api = "ElectLeaders"
    Response = ElectLeadersResponseRpc

    election_type: ElectionType
    partitions: tuple[ElectedPartition, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)


class UnregisterBrokerResponseRpc(RpcResponse):
    """The broker is no longer registered."""


class UnregisterBrokerRequestRpc(OnceOnlyRequest):
    """Remove the registration of a permanently stopped broker (KIP-631). Its replicas stay
    assigned.

    ``found_epoch`` is the broker epoch of the registration that the sender found; -1 for none.
    """

    api = "UnregisterBroker"
    Response = UnregisterBrokerResponseRpc

    broker_id: WireBrokerId
    found_epoch: BrokerEpoch = BrokerEpoch(-1)
