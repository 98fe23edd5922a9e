"""``BrokerConnector`` opens connections between brokers."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.core.errors import ConnectionLostError
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.metadata.records import Listener, RegisterBrokerRecord
from kraftjbod.protocol.kafka_codec import api_versions_response, decode_request
from kraftjbod.protocol.messages import ProduceRequest
from tests.unit.broker.broker_rig import (
    LISTENER,
    TIMEOUT_MS,
    BrokerRig,
    brokers,
    fetch,
    partition,
    topic,
)

#: More than the socket buffers of both sides hold.
UNSENT_BYTES = 64 * 1024 * 1024


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


@asynccontextmanager
async def silent_peer(rig: BrokerRig, *, answers: int) -> AsyncIterator[asyncio.Event]:
    """Register a peer that reads and answers ``answers`` requests, and no byte afterwards.

    The event is set when it has accepted a connection.
    """
    accepted, over = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.set()
        for _ in range(answers):
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            header, _ = decode_request(await reader.readexactly(length))
            writer.write(b"".join(api_versions_response(header)))
        await over.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    listener = Listener(name=LISTENER, host="127.0.0.1", port=port)
    rig.replay(replace(rig.registration(), broker_id=BrokerId(2), listeners=(listener,)))
    try:
        yield accepted
    finally:
        over.set()
        server.close()


def fence_peer(rig: BrokerRig) -> None:
    rig.replay(replace(rig.registration(), broker_id=BrokerId(2), fenced=True))


async def test_fencing_ends_a_request_whose_bytes_the_peer_does_not_read() -> None:
    """Closing the connection in order would first wait until the vanished host reads them."""
    async with brokers() as (rig,), silent_peer(rig, answers=1):
        connection = await rig.parts.connector.connect(
            BrokerId(2), purpose="test", timeout_ms=TIMEOUT_MS
        )
        kinds = ProduceRequest
        data = kinds.PartitionProduceData(index=0, records=bytes(UNSENT_BYTES))
        request = kinds(
            acks=-1,
            timeout_ms=60_000,
            topic_data=[kinds.TopicProduceData(name="t", partition_data=[data])],
        )
        asked = asyncio.ensure_future(connection.request(request, timeout_ms=600_000))
        await asyncio.sleep(0)
        fence_peer(rig)
        with pytest.raises(ConnectionLostError):
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                await asked


async def test_fencing_ends_a_connection_attempt() -> None:
    async with brokers() as (rig,), silent_peer(rig, answers=0) as accepted:
        attempt = asyncio.ensure_future(
            rig.parts.connector.connect(BrokerId(2), purpose="test", timeout_ms=600_000)
        )
        await accepted.wait()
        fence_peer(rig)
        with pytest.raises(ConnectionLostError, match="fenced"):
            async with asyncio.timeout(TIMEOUT_MS / 1000):
                await attempt
