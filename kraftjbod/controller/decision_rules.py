"""PURE. Which decisions need disk space, their intervals, and errors of impossible decisions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Final

from kraftjbod.controller.configuration_control import ConfigOperation
from kraftjbod.controller.result import ControllerResult
from kraftjbod.core.config import DynamicControllerConfig
from kraftjbod.core.errors import ErrorCode, InconsistentStorageError, OperatingError
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION
from kraftjbod.metadata.record_codec import MAX_ENTRY_BYTES, encode_entry
from kraftjbod.metadata.records import ResourceType
from kraftjbod.protocol.rpc_acl_messages import CreateAclsRequestRpc
from kraftjbod.protocol.rpc_config_messages import (
    AlterPartitionReassignmentsRequestRpc,
    IncrementalAlterConfigsRequestRpc,
)
from kraftjbod.protocol.rpc_messages import (
    BrokerHeartbeatRequest,
    CreatePartitionsRequestRpc,
    CreateTopicsRequestRpc,
    RpcRequest,
    RpcResponse,
    UpdateFeaturesRequestRpc,
)
from kraftjbod.protocol.rpc_quota_messages import AlterClientQuotasRequestRpc
from kraftjbod.protocol.rpc_scram_messages import AlterUserScramCredentialsRequestRpc

_SECOND_MS: Final = 1000
_ADDING_OPERATIONS: Final = frozenset({ConfigOperation.SET, ConfigOperation.APPEND})
NO_RECORDS: Final = encode_entry((), LATEST_METADATA_VERSION)
"""Payload of an entry without effect."""


def grows(request: RpcRequest) -> bool:
    """Return whether the request makes the metadata grow permanently, so that it needs free disk
    space.

    Configuration values of topics and brokers are exempt: an operator lowers a retention or cordons
    a directory because a disk is full, and existing topics and brokers bound their number. A group
    that gets a value need not exist.
    """
    if isinstance(request, AlterPartitionReassignmentsRequestRpc):
        return any(requested.replicas is not None for requested in request.partitions)
    if isinstance(request, IncrementalAlterConfigsRequestRpc):
        return any(
            resource.resource_type == ResourceType.GROUP
            and any(change.operation in _ADDING_OPERATIONS for change in resource.changes)
            for resource in request.resources
        )
    return isinstance(
        request,
        CreateTopicsRequestRpc
        | CreatePartitionsRequestRpc
        | UpdateFeaturesRequestRpc
        | CreateAclsRequestRpc
        | AlterUserScramCredentialsRequestRpc
        | AlterClientQuotasRequestRpc,
    )


def needs_no_write(request: BrokerHeartbeatRequest, result: ControllerResult[RpcResponse]) -> bool:
    """Return whether a heartbeat can be answered without writing: nothing changes, and no shutdown
    is asked."""
    return not result.records and not request.want_shut_down


IntervalOf = Callable[[DynamicControllerConfig], float]
"""Return an interval in milliseconds; infinite for never."""


def preferred_interval_ms(settings: DynamicControllerConfig) -> float:
    if not settings.auto_leader_rebalance_enable:
        return math.inf
    return settings.leader_imbalance_check_interval_seconds * _SECOND_MS


def unclean_interval_ms(settings: DynamicControllerConfig) -> float:
    return settings.unclean_leader_election_interval_ms


def too_large(size_bytes: int) -> OperatingError:
    return OperatingError(
        f"This would be a change of the metadata of {size_bytes} bytes, and none may have more "
        f"than {MAX_ENTRY_BYTES}; ask for less at once.",
        code=ErrorCode.POLICY_VIOLATION,
    )


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """Convert errors of the replay in this context.

    :param what: the content that is replayed, for the message.
    :raises InconsistentStorageError: the content of the log cannot be replayed.
    """
    try:
        yield
    except Exception as e:
        raise InconsistentStorageError(
            f"{what} cannot be replayed ({e!r}); start the version that wrote it, or restore the "
            "metadata directory from a backup"
        ) from e
