"""PURE. ``ClusterActionGuard``: requests that only brokers may make, by the address that they come
from.

The smallest rule that keeps a stranger from speaking as a broker: what Kafka guards with the
CLUSTER_ACTION permission is answered only to the hosts of ``cluster.action.allowed.hosts``.
Without that key everybody may. Forwarded admin requests are not CLUSTER_ACTION.
There are no users here, so this neither knows who asks nor what they may do to a topic.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.rpc_controller_messages import ControllerRegistrationRequest
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    RpcRequest,
)
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest, QuorumMessagesRequest

ALLOWED_HOSTS_KEY: Final = "cluster.action.allowed.hosts"

_CLUSTER_ACTIONS: Final = (
    BrokerRegistrationRequest,
    BrokerHeartbeatRequest,
    AssignReplicasToDirsRequest,
    AlterPartitionRequest,
    AllocateProducerIdsRequest,
    FetchMetadataRequest,
    QuorumMessagesRequest,
    ControllerRegistrationRequest,
)


class ClusterActionGuard:
    """Knows the networks that brokers may speak from; None allows all."""

    def __init__(self, allowed: Sequence[IPv4Network | IPv6Network] | None) -> None:
        self._allowed = allowed

    def admit(self, request: RpcRequest, peer_host: str) -> None:
        """Let the request pass, or refuse it.

        :param peer_host: numeric address of the other side.
        :raises OperatingError: CLUSTER_AUTHORIZATION_FAILED.
        """
        if self._allowed is None or not isinstance(request, _CLUSTER_ACTIONS):
            return
        if not self._is_allowed(peer_host, self._allowed):
            raise OperatingError(
                f"{request.api} from {peer_host} is refused: only brokers may ask that, and "
                f"{peer_host} is not in the controller's {ALLOWED_HOSTS_KEY}.",
                code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            )

    @staticmethod
    def _is_allowed(peer_host: str, allowed: Sequence[IPv4Network | IPv6Network]) -> bool:
        try:
            address: IPv4Address | IPv6Address = ip_address(peer_host)
        except ValueError:
            # The peer was gone before its address could be asked for.
            return False
        if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in allowed)
