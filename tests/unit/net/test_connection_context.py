"""``ConnectionContext``, which each handler receives with a request."""

from __future__ import annotations

from kraftjbod.net.connection_context import ANONYMOUS, ConnectionContext
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.net.kafka_server import kafka_server
from kraftjbod.protocol.kafka_codec import Message, RequestHeader
from kraftjbod.protocol.messages import MetadataRequest, MetadataResponse

TIMEOUT_MS = 5_000


async def test_connection_context_is_the_same_for_all_requests_of_a_connection() -> None:
    seen: list[ConnectionContext] = []

    async def answer(
        header: RequestHeader, body: Message, connection: ConnectionContext
    ) -> Message | None:
        seen.append(connection)
        return MetadataResponse()

    server = kafka_server(host="127.0.0.1", port=0, handler=answer, listener_name="INNER")
    await server.start()
    for _ in range(2):
        client = await KafkaConnection.connect(
            "127.0.0.1", server.port, client_id="test", timeout_ms=TIMEOUT_MS
        )
        for _ in range(2):
            await client.request(MetadataRequest(topics=None), timeout_ms=TIMEOUT_MS)
        client.close()
    await server.close(timeout_ms=TIMEOUT_MS)
    assert seen[0] is seen[1]
    assert seen[2] is seen[3]
    assert seen[0].peer != seen[2].peer
    assert seen[0].peer.startswith("127.0.0.1:")
    assert {(one.listener_name, one.security_protocol, one.principal) for one in seen} == {
        ("INNER", "PLAINTEXT", ANONYMOUS)
    }
