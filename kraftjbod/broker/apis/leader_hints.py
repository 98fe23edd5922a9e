"""PURE. The current leader in error responses, for clients with outdated metadata (KIP-951).

A client that gets the leader with the error can go there without a metadata request. The leader is
included only if the metadata has one on another broker, it has the client's listener, and the
version has the fields. Otherwise the client requests metadata.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.metadata.records import Listener

#: KIP-951, "Broker": errors after which a client looks for another leader.
_ASKS_ELSEWHERE: Final = frozenset(
    {ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH}
)


L = TypeVar("L")
E = TypeVar("E")


class LeaderHints(Generic[L, E]):
    """The hints of one response: for partitions that this broker does not lead, the leader, and the
    endpoints of these leaders, so that clients need no Metadata request (KIP-951).

    ``leader`` and ``endpoint`` create its ``CurrentLeader`` and ``NodeEndpoint`` objects.
    ``has_leaders`` and ``has_endpoints`` are whether the response's version has these fields.
    """

    def __init__(
        self,
        leader: Callable[..., L],
        endpoint: Callable[..., E],
        *,
        cache: MetadataCache,
        broker_id: BrokerId,
        listener_name: str,
        has_leaders: bool,
        has_endpoints: bool,
    ) -> None:
        self._leader = leader
        self._endpoint = endpoint
        self._cache = cache
        self._broker_id = broker_id
        self._listener_name = listener_name
        self._has_leaders = has_leaders
        self._has_endpoints = has_endpoints
        self._reported: dict[BrokerId, Listener] = {}

    def leader_of(self, topic_partition: TopicPartition, code: int) -> L | None:
        """Return the ``CurrentLeader`` of a partition with the error ``code``, else None: after
        other errors, or if no leader on another broker is known with the client's listener.

        :meth:`endpoints` then includes the endpoint of that leader.
        """
        if not self._has_leaders or code not in _ASKS_ELSEWHERE:
            return None
        partition = self._cache.state.partition_named(topic_partition)
        if partition is None or partition.leader == self._broker_id:
            return None
        listener = self._cache.endpoint(partition.leader, self._listener_name)
        if listener is None:
            return None
        self._reported[partition.leader] = listener
        return self._leader(leader_id=partition.leader, leader_epoch=partition.leader_epoch)

    def endpoints(self) -> list[E]:
        """Return the endpoints of the leaders in the hints so far, for the field ``NodeEndpoints``;
        none if the version of the response lacks that field."""
        if not self._has_endpoints:
            return []
        brokers = self._cache.state.brokers
        return [
            self._endpoint(
                node_id=broker_id,
                host=listener.host,
                port=listener.port,
                rack=brokers[broker_id].rack,
            )
            for broker_id, listener in sorted(self._reported.items())
        ]
