"""PURE. ``MetadataCache``: the committed metadata for the listeners and fetchers of this broker.

* It has the one current :class:`MetadataState`; a snapshot replaces it, replay changes it in place.
* It also answers derived questions: the endpoint of a broker, and the offline replicas.
* ``version`` grows with every change, so that callers can cache encoded responses.

It makes no decisions and does not change the state.
"""

from __future__ import annotations

from kraftjbod.core.ids import NO_LEADER, BrokerId
from kraftjbod.metadata.records import Listener
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration
from kraftjbod.metadata.state import MetadataState


class MetadataCache:
    """The committed metadata of this broker. Only the metadata loader changes it."""

    def __init__(self, *, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        #: Only the metadata loader replays on it or replaces it.
        self.state = MetadataState()

    def __repr__(self) -> str:
        return f"<MetadataCache {self.state!r}>"

    @property
    def version(self) -> int:
        """The offset of the metadata. Equal versions mean equal metadata."""
        return self.state.offset

    def replace(self, state: MetadataState) -> None:
        """Replace the state with ``state`` from a snapshot."""
        self.state = state

    def alive_brokers(self) -> list[BrokerRegistration]:
        """Return the unfenced brokers, sorted by id."""
        brokers = self.state.brokers
        return [
            brokers[broker_id] for broker_id in sorted(brokers) if not brokers[broker_id].fenced
        ]

    def endpoint(self, broker_id: BrokerId, listener_name: str) -> Listener | None:
        """Return the endpoint of ``broker_id`` for ``listener_name``; None if the broker is unknown
        or fenced, or has no such listener.
        """
        broker = self.state.brokers.get(broker_id)
        if broker is None or broker.fenced:
            return None
        return listener_of(broker, listener_name)

    def leader_for(self, partition: PartitionRegistration, listener_name: str) -> BrokerId:
        """Return the leader if a client can reach it by ``listener_name``, else ``NO_LEADER``."""
        if self.endpoint(partition.leader, listener_name) is None:
            return NO_LEADER
        return partition.leader

    def offline_replicas(
        self, partition: PartitionRegistration, listener_name: str
    ) -> list[BrokerId]:
        """Return the brokers whose replica is offline (KIP-858, "Metadata caching").

        A replica is offline if its broker is unknown, fenced or has no such listener, or if the
        directory that the replica is assigned to is not online.
        """
        return [
            broker_id
            for broker_id, directory_id in zip(
                partition.replicas, partition.directories, strict=True
            )
            if self.endpoint(broker_id, listener_name) is None
            or not self.state.is_replica_online(broker_id, directory_id)
        ]


def listener_of(broker: BrokerRegistration, listener_name: str) -> Listener | None:
    """Return the broker's listener with that name, or None."""
    for listener in broker.listeners:
        if listener.name == listener_name:
            return listener
    return None
