"""``BrokerConnector`` opens connections between brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.core.errors import ConnectionLostError
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.metadata.records import Listener, RegisterBrokerRecord
from tests.unit.broker.broker_rig import TIMEOUT_MS, brokers, fetch, partition, topic


async def test_broker_connector_uses_the_named_listener() -> None:
    async with brokers() as (rig,):
        closed = Listener(name="PLAINTEXT", host="127.0.0.1", port=9)
        inner = replace(closed, name="INNER", port=rig.listener.port)
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


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(lambda r: replace(r, fenced=True), id="fenced"),
        pytest.param(lambda r: replace(r, broker_epoch=BrokerEpoch(9)), id="restarted"),
    ],
)
async def test_connection_to_a_fenced_or_restarted_broker_is_closed(
    after: Callable[[RegisterBrokerRecord], RegisterBrokerRecord],
) -> None:
    """The host of such a broker lost power: it neither closes connections nor answers."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        connection = await rig.parts.connector.connect(
            rig.broker_id, purpose="test", timeout_ms=TIMEOUT_MS
        )
        asked = asyncio.ensure_future(
            connection.request(fetch(max_wait_ms=60_000), timeout_ms=60_000)
        )
        rig.replay(rig.registration())
        assert connection.is_open, "the registration did not change"
        rig.replay(after(rig.registration()))
        with pytest.raises(ConnectionLostError):
            await asked
