"""LOOP. ``BrokerConnector``: the way of all connections from this broker to another one.

Brokers talk to each other under the one listener that ``inter.broker.listener.name`` names.
"""

from __future__ import annotations

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.errors import ConnectionLostError
from kraftjbod.core.ids import BrokerId
from kraftjbod.net.kafka_client import KafkaConnection


class BrokerConnector:
    def __init__(self, *, broker_id: BrokerId, cache: MetadataCache, listener_name: str) -> None:
        self._broker_id = broker_id
        self._cache = cache
        self._listener_name = listener_name

    async def connect(self, peer: BrokerId, *, purpose: str, timeout_ms: int) -> KafkaConnection:
        """A connection of one's own to ``peer``, whose log calls it ``broker-<id>-<purpose>``.

        :raises ConnectionLostError: if metadata does not say where it listens, or nobody does.
        :raises RequestTimedOutError: if it accepts but does not answer.
        """
        endpoint = self._cache.endpoint(peer, self._listener_name)
        if endpoint is None:
            raise ConnectionLostError(f"broker {peer} is not in the metadata")
        return await KafkaConnection.connect(
            endpoint.host,
            endpoint.port,
            client_id=f"broker-{self._broker_id}-{purpose}",
            timeout_ms=timeout_ms,
        )
