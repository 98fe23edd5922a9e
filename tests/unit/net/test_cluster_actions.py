"""Requests that a Kafka listener serves to members of the cluster only, over real sockets.

Each connection comes from 127.0.0.1; the members are either that host or another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.allowed_hosts import AllowedHosts
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.node_principals import NodePrincipals
from kraftjbod.net.cluster_peers import ClusterPeers
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.net.connection_quotas import QuotaLimits
from kraftjbod.net.kafka_server import kafka_server
from kraftjbod.net.listener import Listener, ListenerLimits
from kraftjbod.net.tls_transport import TlsSettings
from kraftjbod.protocol import kafka_codec
from kraftjbod.protocol import messages as m
from kraftjbod.protocol.kafka_codec import ApiKey, Message, RequestHeader
from tests.certificates import Authority

REFUSED = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
MEMBERS = AllowedHosts.parse(["127.0.0.0/8"])
OTHERS = AllowedHosts.parse(["127.0.0.66"])
NO_LIMITS = ListenerLimits()


class Handler:
    """Answer each request with an empty response; ``served`` contains the API keys."""

    def __init__(self) -> None:
        self.served: list[int] = []

    async def __call__(
        self, header: RequestHeader, _body: Message, _context: ConnectionContext
    ) -> Message | None:
        self.served.append(header.api_key)
        name = kafka_codec.api_name(header.api_key)
        return kafka_codec.message(f"{name}Response")()


@asynccontextmanager
async def serving(
    allowed: AllowedHosts, limits: ListenerLimits = NO_LIMITS, **security: Any
) -> AsyncIterator[tuple[Listener, Handler]]:
    handler = Handler()
    server = kafka_server(
        host="127.0.0.1",
        port=0,
        handler=handler,
        peers=ClusterPeers(allowed),
        is_broker=lambda _header, _body: True,
        limits=limits,
        **security,
    )
    await server.start()
    try:
        yield server, handler
    finally:
        await server.close(timeout_ms=0)
        await Client.close_all()


class Client:
    """A connection; :meth:`close_all` closes all connections of a test."""

    _made: ClassVar[list[Client]] = []

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._made.append(self)

    @classmethod
    async def close_all(cls) -> None:
        while cls._made:
            writer = cls._made.pop()._writer
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    @classmethod
    async def to(cls, server: Listener, tls: ssl.SSLContext | None = None) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", server.port, ssl=tls))

    async def send(self, data: bytes) -> bytes:
        """Return the response to a frame without its length, or b"" if the listener closes."""
        self._writer.write(data)
        try:
            (length,) = struct.unpack(">i", await self._reader.readexactly(4))
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""

    async def ask(self, body: Any, version: int) -> Any:
        answer = await self.send(framed(body, version))
        api_key = kafka_codec.request_api_key(body)
        return kafka_codec.decode_response(answer, api_key=api_key, version=version)


def framed(body: Any, version: int) -> bytes:
    encoded = kafka_codec.encode_request(body, version=version, correlation_id=1, client_id="x")
    return b"".join(encoded)


def fetch(replica_id: int, version: int) -> m.FetchRequest:
    kind = m.FetchRequest
    request = kind(
        max_wait_ms=0,
        min_bytes=0,
        topics=[
            kind.FetchTopic(
                topic="t",
                partitions=[
                    kind.FetchPartition(partition=3, fetch_offset=0, partition_max_bytes=1)
                ],
            )
        ],
    )
    if version < 15:
        request.replica_id = replica_id
    else:
        request.replica_state = kind.ReplicaState(replica_id=replica_id, replica_epoch=1)
    return request


def markers(partitions: int) -> m.WriteTxnMarkersRequest:
    kind = m.WriteTxnMarkersRequest
    topic = kind.WritableTxnMarkerTopic(name="t", partition_indexes=list(range(partitions)))
    marker = kind.WritableTxnMarker(
        producer_id=5, producer_epoch=0, transaction_result=True, topics=[topic]
    )
    return kind(markers=[marker])


ACTIONS: list[tuple[Any, int]] = [
    (markers(1), 1),
    (m.AddPartitionsToTxnRequest(transactions=[]), 4),
    (m.AddRaftVoterRequest(voter_directory_id=bytes(16), listeners=[]), 1),
    (m.RemoveRaftVoterRequest(voter_directory_id=bytes(16)), 0),
    (fetch(2, 16), 16),
    (fetch(2, 14), 14),
    (fetch(2, 4), 4),
]


@pytest.mark.parametrize(("body", "version"), ACTIONS)
async def test_cluster_action_of_a_member_is_served(body: Any, version: int) -> None:
    async with serving(MEMBERS) as (server, handler):
        await (await Client.to(server)).ask(body, version)
        assert handler.served == [kafka_codec.request_api_key(body)]


@pytest.mark.parametrize(("body", "version"), ACTIONS)
async def test_cluster_action_of_another_host_is_refused(body: Any, version: int) -> None:
    async with serving(OTHERS) as (server, handler):
        with capture_logs() as logs:
            answer = await (await Client.to(server)).ask(body, version)
        assert handler.served == []
    code = getattr(answer, "error_code", None)
    if isinstance(answer, m.WriteTxnMarkersResponse):
        (part,) = answer.markers[0].topics[0].partitions
        code = part.error_code
    elif isinstance(answer, m.FetchResponse) and version < 7:
        (fetched,) = answer.responses[0].partitions
        assert fetched.partition_index == 3
        code = fetched.error_code
    assert code == REFUSED
    (logged,) = [event for event in logs if event["event"] == "cluster_action_refused"]
    assert logged["peer"].startswith("127.0.0.1:")


@pytest.mark.parametrize("replica_id", [-1, -2])
@pytest.mark.parametrize("version", [4, 14, 16])
async def test_fetch_of_a_consumer_is_served_to_a_host_that_is_no_member(
    replica_id: int, version: int
) -> None:
    async with serving(OTHERS) as (server, handler):
        await (await Client.to(server)).ask(fetch(replica_id, version), version)
        assert handler.served == [ApiKey.FETCH]


async def test_add_partitions_of_a_producer_is_served_to_a_host_that_is_no_member() -> None:
    async with serving(OTHERS) as (server, handler):
        await (await Client.to(server)).ask(m.AddPartitionsToTxnRequest(), 3)
        assert handler.served == [ApiKey.ADD_PARTITIONS_TO_TXN]


async def test_cluster_action_refusal_does_not_decode_the_body() -> None:
    body = m.AddRaftVoterRequest(voter_directory_id=bytes(16), listeners=[])
    frame = framed(body, 1)[4:]
    spoilt = frame[:-3] + b"\xff" * 50
    async with serving(OTHERS) as (server, _):
        client = await Client.to(server)
        answer = await client.send(struct.pack(">i", len(spoilt)) + spoilt)
        decoded = kafka_codec.decode_response(answer, api_key=ApiKey.ADD_RAFT_VOTER, version=1)
        assert decoded.error_code == REFUSED
        assert "cluster.action.allowed.hosts" in (decoded.error_message or "")


async def test_cluster_action_with_large_markers_of_another_host_closes_the_connection() -> None:
    async with serving(OTHERS) as (server, handler):
        with capture_logs() as logs:
            assert await (await Client.to(server)).send(framed(markers(20_000), 1)) == b""
        assert handler.served == []
    assert [event["event"] for event in logs if event["log_level"] == "warning"] == [
        "cluster_action_refused",
        "connection_broke_protocol",
    ]


@pytest.mark.parametrize(("allowed", "has_place"), [(MEMBERS, True), (OTHERS, False)])
async def test_reserved_connections_are_given_to_members_only(
    allowed: AllowedHosts, has_place: bool
) -> None:
    """A fetch with a replica id frees the client's slot that its connection occupied before."""
    limits = ListenerLimits(quotas=QuotaLimits(max_connections=2, reserved=1))
    async with serving(allowed, limits) as (server, _):
        await (await Client.to(server)).ask(fetch(2, 16), 16)
        consumer = await Client.to(server)
        assert (await consumer.send(framed(fetch(-1, 16), 16)) != b"") == has_place


PRINCIPALS = NodePrincipals.parse("User:broker-{id}")


@pytest.mark.parametrize(("body", "version"), ACTIONS)
async def test_cluster_action_without_the_principal_of_a_node_is_refused(
    body: Any, version: int
) -> None:
    async with serving(MEMBERS, node_principals=PRINCIPALS) as (server, handler):
        with capture_logs() as logs:
            await (await Client.to(server)).ask(body, version)
        assert handler.served == []
    (logged,) = [event for event in logs if event["event"] == "node_principal_refused"]
    assert logged["principal"] == "User:ANONYMOUS"


REPLICA_REQUESTS: list[tuple[Any, int]] = [
    (fetch(2, 16), 16),
    (fetch(2, 14), 14),
    (m.ListOffsetsRequest(replica_id=2, topics=[]), 5),
    (m.OffsetForLeaderEpochRequest(replica_id=2, topics=[]), 4),
]


@pytest.mark.parametrize(("body", "version"), REPLICA_REQUESTS)
@pytest.mark.parametrize("principal", ["User:broker-1", "User:broker-2", "User:alice"])
async def test_replica_request_is_served_only_to_the_principal_of_its_node(
    body: Any, version: int, principal: str, tmp_path: Path
) -> None:
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.issue().write_pem(tmp_path / "k.pem"))
    tls = TlsSettings(
        listener_name="INNER", context=lambda: context, principal_of=lambda _certificate: principal
    )
    async with serving(MEMBERS, tls=tls, node_principals=PRINCIPALS) as (server, handler):
        with capture_logs() as logs:
            client = await Client.to(server, authority.client_context())
            answer = await client.send(framed(body, version))
        is_served = principal == "User:broker-2"
        assert bool(handler.served) == is_served
        events = [event for event in logs if event["event"] == "node_principal_refused"]
        assert [event["claimed"] for event in events] == ([] if is_served else [2])
        assert bool(answer) == (is_served or isinstance(body, m.FetchRequest))


@pytest.mark.parametrize(
    ("body", "version"),
    [
        (fetch(-1, 16), 16),
        (m.ListOffsetsRequest(replica_id=-1, topics=[]), 5),
        (m.MetadataRequest(topics=[]), 9),
    ],
)
async def test_clients_request_needs_no_principal_of_a_node(body: Any, version: int) -> None:
    async with serving(MEMBERS, node_principals=PRINCIPALS) as (server, handler):
        await (await Client.to(server)).ask(body, version)
        assert handler.served == [kafka_codec.request_api_key(body)]
