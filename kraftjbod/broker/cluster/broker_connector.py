"""LOOP. ``BrokerConnector``: the way of all connections from this broker to another one.

Brokers talk to each other under the one listener that ``inter.broker.listener.name`` names.

A host that lost power closes no connection: whoever has asked it something would wait until the
request's own time is over. Metadata knows sooner, and what it calls dead is hung up on.
"""

from __future__ import annotations

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.errors import ConnectionLostError
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.net.kafka_client import KafkaConnection


class BrokerConnector:
    def __init__(self, *, broker_id: BrokerId, cache: MetadataCache, listener_name: str) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._listener_name = listener_name
        #: Open ones, with the epoch of the broker that they lead to.
        self._connections: dict[KafkaConnection, tuple[BrokerId, BrokerEpoch]] = {}

    async def connect(self, peer: BrokerId, *, purpose: str, timeout_ms: int) -> KafkaConnection:
        """A connection of one's own to ``peer``, whose log calls it ``broker-<id>-<purpose>``.

        :raises ConnectionLostError: if metadata does not say where it listens, or nobody does.
        :raises RequestTimedOutError: if it accepts but does not answer.
        """
        endpoint = self._cache.endpoint(peer, self._listener_name)
        if endpoint is None:
            raise ConnectionLostError(f"broker {peer} is not in the metadata")
        epoch = self._cache.state.brokers[peer].epoch
        connection = await KafkaConnection.connect(
            endpoint.host,
            endpoint.port,
            client_id=f"broker-{self._broker_id}-{purpose}",
            timeout_ms=timeout_ms,
        )
        self._connections = {one: led for one, led in self._connections.items() if one.is_open}
        self._connections[connection] = peer, epoch
        self.hang_up()
        return connection

    def hang_up(self) -> None:
        """Close what leads to brokers that metadata calls fenced, gone, or restarted since."""
        for connection, (peer, epoch) in list(self._connections.items()):
            known = self._cache.state.brokers.get(peer)
            if known is None or known.fenced or known.epoch != epoch:
                del self._connections[connection]
                connection.close()
