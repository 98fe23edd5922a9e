"""The way from one broker to another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.core.errors import ConnectionLostError
from kraftjbod.core.ids import BrokerId
from kraftjbod.metadata.records import Listener
from tests.unit.broker.broker_rig import TIMEOUT_MS, brokers


async def test_it_leads_through_the_listener_that_is_named():
    async with brokers() as (rig,):
        closed = Listener(name="PLAINTEXT", host="127.0.0.1", port=9)
        inner = replace(closed, name="INNER", port=rig.door.port)
        rig.replay(replace(rig.registration(), listeners=(closed, inner)))

        async def through(name: str, peer: int = 1) -> None:
            connector = BrokerConnector(
                broker_id=rig.broker_id, cache=rig.parts.cache, listener_name=name
            )
            connection = await connector.connect(
                BrokerId(peer), purpose="test", timeout_ms=TIMEOUT_MS
            )
            connection.close()

        await through("INNER")
        with pytest.raises(ConnectionLostError, match="cannot connect"):
            await through("PLAINTEXT")
        for name, peer in (("INNER", 2), ("OUTER", 1)):
            with pytest.raises(ConnectionLostError, match="not in the metadata"):
                await through(name, peer)
