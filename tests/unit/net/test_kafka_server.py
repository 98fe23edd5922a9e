"""The Kafka server over real sockets: order, limits, bad clients, stop."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ConnectionLostError, StartupError
from kraftjbod.net.connection import ConnectionLimits
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.net.connection_quotas import QuotaLimits
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.net.kafka_server import kafka_server
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.request_session import SessionLimits
from kraftjbod.protocol.kafka_codec import (
    ApiFeatures,
    ApiKey,
    Message,
    RequestHeader,
    encode_request,
)
from kraftjbod.protocol.messages import (
    ApiVersionsRequest,
    MetadataRequest,
    MetadataResponse,
    ProduceRequest,
    ProduceResponse,
)


async def echo_name(
    header: RequestHeader, body: Message, info: ConnectionContext
) -> Message | None:
    """Answer a Metadata request for ``t`` with cluster id ``t``; a Produce gets an empty body."""
    if header.api_key == ApiKey.PRODUCE:
        return ProduceResponse() if body.acks else None
    return MetadataResponse(cluster_id=body.topics[0].name)  # type: ignore[no-any-return]  # generated


def ask(name: str) -> Any:
    return MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])


def framed_ask(name: str, correlation_id: int) -> bytes:
    return b"".join(
        encode_request(ask(name), version=9, correlation_id=correlation_id, client_id="test")
    )


def framed_write(name: str, correlation_id: int) -> bytes:
    """Encode a Produce; several of a connection are handled concurrently."""
    topic = ProduceRequest.TopicProduceData(name=name, partition_data=[])
    write = ProduceRequest(acks=1, timeout_ms=0, topic_data=[topic])
    return b"".join(
        encode_request(write, version=9, correlation_id=correlation_id, client_id="test")
    )


@asynccontextmanager
async def serving(
    handler: Callable[..., Awaitable[Message | None]] = echo_name, **parameters: Any
) -> AsyncIterator[Listener]:
    server = kafka_server(host="127.0.0.1", port=0, handler=handler, **parameters)
    await server.start()
    try:
        yield server
    finally:
        await server.close(timeout_ms=0)


async def connected(server: Listener) -> KafkaConnection:
    return await KafkaConnection.connect(
        "127.0.0.1", server.port, client_id="test", timeout_ms=5000
    )


async def answer_of(reader: asyncio.StreamReader) -> int:
    """Return the correlation id of the next response."""
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return int(struct.unpack(">i", (await reader.readexactly(length))[:4])[0])


class Gates:
    """A handler whose responses wait for the test's signal, by topic name."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.cancelled: list[str] = []
        self.changed = asyncio.Event()

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    async def until_started(self, count: int) -> None:
        while len(self.started) < count:
            self.changed.clear()
            await self.changed.wait()

    async def __call__(
        self, header: RequestHeader, body: Message, info: ConnectionContext
    ) -> Message | None:
        is_write = header.api_key == ApiKey.PRODUCE
        name = body.topic_data[0].name if is_write else body.topics[0].name
        self.started.append(name)
        self.changed.set()
        try:
            await self.gate(name).wait()
        except asyncio.CancelledError:
            self.cancelled.append(name)
            self.changed.set()
            raise
        return await echo_name(header, body, info)


async def test_kafka_server_responses_leave_in_the_order_of_requests() -> None:
    gates = Gates()
    async with serving(gates) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(framed_write("a", 1) + framed_write("b", 2) + framed_write("c", 3))
        await gates.until_started(3)
        assert gates.started == ["a", "b", "c"]
        for name in "cba":
            gates.gate(name).set()
        assert [await answer_of(reader) for _ in range(3)] == [1, 2, 3]
        writer.close()


async def test_kafka_server_handles_other_requests_than_produce_one_at_a_time() -> None:
    """Only produce requests of one connection are handled concurrently."""
    gates = Gates()
    async with serving(gates) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(framed_write("a", 1) + framed_ask("b", 2) + framed_ask("c", 3))
        for count, name in enumerate("abc", start=1):
            await gates.until_started(count)
            for _ in range(20):
                await asyncio.sleep(0)
            assert gates.started == list("abc")[:count]
            gates.gate(name).set()
            assert await answer_of(reader) == count
        writer.close()


async def test_kafka_server_sends_no_response_if_the_handler_returns_none() -> None:
    async with serving() as server:
        client = await connected(server)
        assert await client.request(ProduceRequest(acks=0), timeout_ms=5000) is None
        answer = await client.request(ask("t"), timeout_ms=5000)
        assert answer.cluster_id == "t"
        client.close()


async def test_kafka_server_answers_api_versions_without_the_handler() -> None:
    async def never(*_: object) -> Message | None:
        raise AssertionError("not asked")

    async with serving(never) as server:
        client = await connected(server)
        assert (client.version_of(3), client.version_of(0)) == (13, 13)
        # APIs of this software only are advertised to clients of this software.
        assert client.version_of(ApiKey.ALTER_LOG_DIRS) == 0
        stranger = ApiVersionsRequest(client_software_name="some-client")
        answered = await client.request(stranger, timeout_ms=5000)
        assert ApiKey.ALTER_LOG_DIRS not in {entry.api_key for entry in answered.api_keys}
        client.close()


async def test_kafka_server_api_versions_contains_the_current_features() -> None:
    features = [ApiFeatures({"f": (1, 3)})]
    async with serving(features=lambda: features[-1]) as server:
        client = await connected(server)
        before = await client.request(ApiVersionsRequest(), timeout_ms=5000)
        features.append(ApiFeatures({"f": (1, 3)}, {"f": 2}, epoch=7))
        after = await client.request(ApiVersionsRequest(), timeout_ms=5000)
        client.close()
    found = [(f.name, f.min_version, f.max_version) for f in before.supported_features]
    assert found == [("f", 1, 3)]
    assert (before.finalized_features_epoch, list(before.finalized_features)) == (-1, [])
    assert after.finalized_features_epoch == 7
    (level,) = after.finalized_features
    assert (level.name, level.max_version_level, level.min_version_level) == ("f", 2, 2)


@pytest.mark.parametrize(
    "limits",
    [
        SessionLimits(max_in_flight_requests=2, max_in_flight_bytes=1 << 20),
        SessionLimits(max_in_flight_requests=9, max_in_flight_bytes=len(framed_write("a", 1)) + 1),
    ],
)
async def test_kafka_server_limits_requests_in_flight(limits: SessionLimits) -> None:
    gates = Gates()
    async with serving(gates, limits=ListenerLimits(session=limits)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"".join(framed_write(f"{i}", i) for i in range(6)))
        for i in range(6):
            await gates.until_started(min(6, i + 2))
            assert len(gates.started) == min(6, i + 2)
            gates.gate(f"{i}").set()
            assert await answer_of(reader) == i
        writer.close()


async def test_kafka_server_client_that_does_not_read_gets_no_further_requests_handled() -> None:
    """With a write buffer of 64 KiB, few of 2,000 requests with 30 kB responses start."""
    started = 0

    async def large(header: RequestHeader, *_: object) -> Message | None:
        nonlocal started
        started += 1
        return MetadataResponse(cluster_id="x" * 30_000, topics=[])  # type: ignore[no-any-return]  # generated

    limits = ConnectionLimits(max_frame_bytes=1 << 20, write_pause_bytes=1 << 16)
    async with serving(large, limits=ListenerLimits(connection=limits)) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 16)
        count = 2000
        writer.write(b"".join(framed_ask("t", i) for i in range(count)))
        before = -1
        while started != before:
            before = started
            await asyncio.sleep(0.05)
        assert started < count
        assert [await answer_of(reader) for _ in range(count)] == list(range(count))
        writer.close()


async def test_kafka_server_failing_handler_closes_only_its_connection() -> None:
    async def fails(
        header: RequestHeader, body: Message, info: ConnectionContext
    ) -> Message | None:
        if body.topics[0].name == "bug":
            raise KeyError("bug")
        return await echo_name(header, body, info)

    async with serving(fails) as server:
        client, other = await connected(server), await connected(server)
        with capture_logs() as logs, pytest.raises(ConnectionLostError):
            await client.request(ask("bug"), timeout_ms=5000)
        events = [(e["event"], e.get("api")) for e in logs]
        assert events == [("request_handler_failed", "Metadata")]
        assert not client.is_open
        assert (await other.request(ask("t"), timeout_ms=5000)).cluster_id == "t"
        other.close()


async def test_kafka_server_bad_client_is_logged_once_and_other_clients_are_served() -> None:
    chance = random.Random(20)
    bad = [
        struct.pack(">i", 1 << 30),
        struct.pack(">i", -5),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">i", 10) + b"\x00\x0a\x00\x00\x00\x00\x00\x01\xff\xff",
        framed_ask("t", 1)[:-4] + b"\xff\xff\xff\xff",
        *(struct.pack(">i", 40) + chance.randbytes(40) for _ in range(30)),
    ]
    async with serving() as server:
        good = await connected(server)
        for stream in bad:
            with capture_logs() as logs:
                reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
                writer.write(stream)
                with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
                    await answer_of(reader)
                writer.close()
            assert [e["event"] for e in logs] == ["connection_broke_protocol"]
            assert (await good.request(ask("t"), timeout_ms=5000)).cluster_id == "t"
        good.close()


async def test_kafka_server_truncated_frame_is_ignored_at_the_end_of_the_stream() -> None:
    async with serving() as server:
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(framed_ask("t", 1) + framed_ask("t", 2)[:-3])
            assert await answer_of(reader) == 1
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        assert logs == []


async def test_kafka_server_cancels_requests_of_a_lost_connection() -> None:
    gates = Gates()
    async with serving(gates) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(framed_ask("a", 1))
        await gates.until_started(1)
        writer.close()
        while not gates.cancelled:
            gates.changed.clear()
            await gates.changed.wait()
        assert gates.cancelled == ["a"]


async def test_kafka_server_close_answers_requests_in_flight() -> None:
    gates = Gates()
    async with serving(gates) as server:
        client = await connected(server)
        asked = asyncio.create_task(client.request(ask("a"), timeout_ms=5000))
        await gates.until_started(1)
        closing = asyncio.create_task(server.close(timeout_ms=60_000))
        await asyncio.sleep(0)
        with pytest.raises(ConnectionLostError):
            await connected(server)
        gates.gate("a").set()
        assert (await asked).cluster_id == "a"
        await closing
        assert server.connection_count == 0


async def test_kafka_server_close_aborts_requests_after_the_timeout() -> None:
    gates = Gates()
    async with serving(gates) as server:
        client = await connected(server)
        asked = asyncio.create_task(client.request(ask("a"), timeout_ms=5000))
        await gates.until_started(1)
        with capture_logs() as logs:
            await server.close(timeout_ms=20)
        assert [(e["event"], e["count"]) for e in logs] == [("connections_aborted_at_stop", 1)]
        with pytest.raises(ConnectionLostError):
            await asked
        assert gates.cancelled == ["a"]


async def test_kafka_server_start_on_a_used_port_fails() -> None:
    async with serving() as server:
        second = kafka_server(host="127.0.0.1", port=server.port, handler=echo_name)
        with pytest.raises(StartupError, match=f"127.0.0.1:{server.port}"):
            await second.start()
        assert f"port={server.port}" in repr(server)


async def test_kafka_server_applies_the_limits_of_the_listener() -> None:
    async with serving(limits=ListenerLimits(quotas=QuotaLimits(max_connections=1))) as server:
        first = await connected(server)
        with capture_logs() as logs, pytest.raises(ConnectionLostError):
            await connected(server)
        assert [e["event"] for e in logs] == ["connection_turned_away"]
        first.close()
