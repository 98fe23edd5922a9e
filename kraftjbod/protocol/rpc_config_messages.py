"""PURE. Bodies of the RPC for an operator's orders: configurations, moves, leaders, brokers.

Brokers forward them, and tools may send them.

The rules are those of rpc_messages.py.
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
    """Where a value stands; Kafka's numbers. What is set for one node goes before that for all."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class ConfigChange(RpcBody):
    """``operation`` is Kafka's: 0 set, 1 delete, 2 append, 3 subtract (KIP-339).

    ``base`` is what a list is appended to or subtracted from while nothing is committed for it.
    """

    name: str
    operation: int = Field(ge=0, le=3)
    value: str | None = None
    base: str | None = None


class AlteredResource(RpcBody):
    """One topic or broker to be configured; ``name`` is empty for all brokers."""

    resource_type: int
    name: str
    changes: tuple[ConfigChange, ...]


class ResourceOutcome(RpcBody):
    resource_type: int
    name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


class IncrementalAlterConfigsResponse(RpcResponse):
    resources: tuple[ResourceOutcome, ...]


class IncrementalAlterConfigsRequest(RpcRequest):
    """``validated_by`` is the broker that checked its own resource, or that of all brokers."""

    api = "IncrementalAlterConfigs"
    version = 1
    first_levels: ClassVar[Mapping[int, MetadataVersion]] = {
        0: MetadataVersion.IV_3_6_IV2,
        1: MetadataVersion.IV_4_3_IV0,
    }
    Response = IncrementalAlterConfigsResponse

    resources: tuple[AlteredResource, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)
    validate_only: bool = False
    validated_by: Annotated[WireBrokerId | None, Since(1)] = None


class DescribedResource(RpcBody):
    """What was set for one topic or broker while it ran; ``name`` is empty for all brokers."""

    name: str
    values: dict[str, str]


class DescribeDynamicConfigsResponse(RpcResponse):
    resources: tuple[DescribedResource, ...]


class DescribeDynamicConfigsRequest(RpcRequest):
    """What is committed for every topic (type 2) or broker (type 4) that has values of its own."""

    api = "DescribeDynamicConfigs"
    Response = DescribeDynamicConfigsResponse

    resource_type: int
    names: tuple[str, ...] | None = Field(default=None, max_length=MAX_PARTITIONS_PER_REQUEST)
    """None asks for all."""


# --- moves between brokers ----------------------------------------------------------------------


class ReassignedPartition(RpcBody):
    """Where the replicas of one partition shall be; ``replicas`` None cancels what is under way.

    ``target_dirs`` runs parallel to ``replicas`` or is empty: for each replica ``"any"``, the
    absolute path of one of that broker's directories, or ``"dirid:"`` and a directory id. It
    counts for replicas that the partition does not have yet.
    ``was_under_way`` says of a reassignment to be cancelled that it was found.
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


class AlterPartitionReassignmentsResponse(RpcResponse):
    """One outcome per asked partition, in the same order."""

    partitions: tuple[ReassignmentOutcome, ...]


class AlterPartitionReassignmentsRequest(OnceOnlyRequest):
    """Move replicas between brokers (KIP-455), each to a directory if wanted."""

    api = "AlterPartitionReassignments"
    Response = AlterPartitionReassignmentsResponse

    partitions: tuple[ReassignedPartition, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)
    allow_replication_factor_change: bool = True


class OngoingReassignment(RpcBody):
    topic: str
    partition: int
    replicas: tuple[BrokerId, ...]
    adding_replicas: tuple[BrokerId, ...]
    removing_replicas: tuple[BrokerId, ...]


class ListPartitionReassignmentsResponse(RpcResponse):
    """Only partitions that are being reassigned."""

    partitions: tuple[OngoingReassignment, ...]


class ListPartitionReassignmentsRequest(RpcRequest):
    """``partitions`` maps topics to partitions; None asks for all."""

    api = "ListPartitionReassignments"
    Response = ListPartitionReassignmentsResponse

    partitions: dict[str, tuple[int, ...]] | None = None


# --- leaders and brokers -------------------------------------------------------------------------


class ElectionType(IntEnum):
    """Kafka's numbers (KIP-460)."""

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


class ElectLeadersResponse(RpcResponse):
    """One outcome per asked partition, in the same order."""

    partitions: tuple[ElectionOutcome, ...]


class ElectLeadersRequest(RpcRequest):
    """Each partition by itself gets its preferred leader, or any that can lead."""

    api = "ElectLeaders"
    Response = ElectLeadersResponse

    election_type: ElectionType
    partitions: tuple[ElectedPartition, ...] = Field(max_length=MAX_PARTITIONS_PER_REQUEST)


class UnregisterBrokerResponse(RpcResponse):
    """The broker is not registered any more."""


class UnregisterBrokerRequest(OnceOnlyRequest):
    """Forget a broker that is stopped for good (KIP-631); its replicas stay assigned to it.

    ``found_epoch`` is the one that it was found with, -1 if it was not.
    """

    api = "UnregisterBroker"
    Response = UnregisterBrokerResponse

    broker_id: WireBrokerId
    found_epoch: BrokerEpoch = BrokerEpoch(-1)
