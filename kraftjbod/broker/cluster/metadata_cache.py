"""PURE. ``MetadataCache``: the committed metadata as this broker's doors and fetchers ask for it.

* Holds the one current :class:`MetadataState`; a snapshot replaces it, replay changes it in place.
* Answers what the state alone does not say: where a broker is reached, which replicas are offline.
* ``version`` grows with every change, so that encoded answers can be cached beside it.

Decides nothing and changes nothing in the state.
"""

from __future__ import annotations

from kraftjbod.core.ids import NO_LEADER, BrokerId
from kraftjbod.metadata.records import Listener
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration
from kraftjbod.metadata.state import MetadataState


class MetadataCache:
    """Owned by the metadata loader; everybody else reads."""

    def __init__(self, *, cluster_id: str) -> None:
        self.cluster_id = cluster_id
        #: Only the metadata loader replays on it or replaces it.
        self.state = MetadataState()

    def __repr__(self) -> str:
        return f"<MetadataCache {self.state!r}>"

    @property
    def version(self) -> int:
        """Two equal versions mean equal metadata."""
        return self.state.offset

    def replace(self, state: MetadataState) -> None:
        """Continue with ``state``, which a snapshot built."""
        self.state = state

    def alive_brokers(self) -> list[BrokerRegistration]:
        """Unfenced brokers by id."""
        brokers = self.state.brokers
        return [
            brokers[broker_id] for broker_id in sorted(brokers) if not brokers[broker_id].fenced
        ]

    def endpoint(self, broker_id: BrokerId, listener_name: str) -> Listener | None:
        """Where ``broker_id`` listens under ``listener_name``; None if unknown or fenced."""
        broker = self.state.brokers.get(broker_id)
        if broker is None or broker.fenced:
            return None
        return listener_of(broker, listener_name)

    def leader_for(self, partition: PartitionRegistration, listener_name: str) -> BrokerId:
        """The leader that a client can reach, or ``NO_LEADER``."""
        if self.endpoint(partition.leader, listener_name) is None:
            return NO_LEADER
        return partition.leader

    def offline_replicas(
        self, partition: PartitionRegistration, listener_name: str
    ) -> list[BrokerId]:
        """Replicas that do not count now (KIP-858, "Metadata caching").

        Their broker is unknown, fenced or not reachable under the listener, or the directory they
        are assigned to is not online.
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
    """The listener of that name, or None."""
    for listener in broker.listeners:
        if listener.name == listener_name:
            return listener
    return None
