"""LOOP. ``BrokerConnector``: opens the connections from this broker to other brokers.

Brokers use the listener that ``inter.broker.listener.name`` names.

A host that lost power does not close its connections, so a request would wait for its full timeout.
The metadata shows earlier that the broker is fenced; then its connections are closed.
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
        #: Open connections, with the id and epoch of their broker.
        self._connections: dict[KafkaConnection, tuple[BrokerId, BrokerEpoch]] = {}

    async def connect(self, peer: BrokerId, *, purpose: str, timeout_ms: int) -> KafkaConnection:
        """Open a dedicated connection to ``peer`` with the client id ``broker-<id>-<purpose>``.

        :raises ConnectionLostError: the metadata has no endpoint of the peer, or it is unreachable.
        :raises RequestTimedOutError: the peer accepts the connection but does not respond.
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
        """Close connections to brokers that the metadata shows as fenced, gone or in another
        epoch."""
        for connection, (peer, epoch) in list(self._connections.items()):
            known = self._cache.state.brokers.get(peer)
            if known is None or known.fenced or known.epoch != epoch:
                del self._connections[connection]
                connection.close()
