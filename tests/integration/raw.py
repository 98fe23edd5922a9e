"""Single requests over a plain socket that regular clients do not send.

kafka-python builds the batches, so that only the envelope is ours."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from typing import Any, Final

from kafka.record.memory_records import MemoryRecordsBuilder

from kraftjbod.protocol import kafka_codec, rpc_codec
from kraftjbod.protocol.rpc_messages import RpcRequest

TIMEOUT_S: Final = 30
_PRODUCE_VERSION: Final = 9


def exchange(address: str, body: Any, version: int, *, source: str = "") -> Any:
    """Send one request on a new connection and return the response.

    :param source: address of this machine to connect from; by default the system chooses.
    """
    with connected(address, source) as connection:
        return exchange_on(connection, body, version)


def exchange_on(connection: socket.socket, body: Any, version: int) -> Any:
    """Send one request on a connection that is kept and return the response."""
    connection.sendall(frame(body, version))
    (size,) = struct.unpack(">i", receive(connection, 4))
    answer = receive(connection, size)
    return kafka_codec.decode_response(
        answer, api_key=kafka_codec.request_api_key(body), version=version
    )


def connected(address: str, source: str = "") -> socket.socket:
    """Connect to ``host:port`` from the address ``source`` of this machine."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S, (source, 0))


def rpc(address: str, request: RpcRequest, *, source: str = "") -> rpc_codec.IncomingResponse:
    """Send one request of the RPC between brokers and controllers and return the response."""
    with connected(address, source) as connection:
        connection.sendall(rpc_codec.encode_request(0, request))
        (size,) = struct.unpack(">I", receive(connection, 4))
        return rpc_codec.decode_response(receive(connection, size))


def frame(body: Any, version: int, *, correlation_id: int = 1) -> bytes:
    """Return a request as sent over the connection, length first."""
    return b"".join(
        kafka_codec.encode_request(
            body, version=version, correlation_id=correlation_id, client_id="raw"
        )
    )


def receive(connection: socket.socket, size: int) -> bytes:
    """Receive exactly ``size`` bytes.

    :raises ConnectionError: if the peer closes the connection before."""
    chunks = bytearray()
    while len(chunks) < size:
        chunk = connection.recv(size - len(chunks))
        if not chunk:
            raise ConnectionError(f"closed after {len(chunks)} of {size} bytes")
        chunks += chunk
    return bytes(chunks)


def batch(
    values: Sequence[bytes],
    *,
    producer_id: int = -1,
    epoch: int = -1,
    sequence: int = -1,
) -> bytes:
    """Build one uncompressed batch; with a producer id, it is that of an idempotent producer."""
    builder = MemoryRecordsBuilder(
        2,
        0,
        batch_size=1 << 20,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )
    for value in values:
        builder.append(timestamp=None, key=None, value=value, headers=[])
    builder.close()
    return bytes(builder.buffer())


def produce_request(topic: str, records: bytes, *, acks: int = -1, timeout_ms: int = 10_000) -> Any:
    """Return a ProduceRequest for partition 0, to be sent at version :data:`_PRODUCE_VERSION`."""
    request = kafka_codec.message("ProduceRequest")
    part = request.PartitionProduceData(index=0, records=records)
    return request(
        acks=acks,
        timeout_ms=timeout_ms,
        topic_data=[request.TopicProduceData(name=topic, partition_data=[part])],
    )


def produce(address: str, topic: str, records: bytes, *, acks: int = -1) -> tuple[int, int]:
    """Produce to partition 0, and return error code and base offset of the response."""
    answer = exchange(address, produce_request(topic, records, acks=acks), _PRODUCE_VERSION)
    (part,) = answer.responses[0].partition_responses
    return part.error_code, part.base_offset


def producer_id(address: str) -> tuple[int, int]:
    """Return a new producer id and its epoch."""
    request = kafka_codec.message("InitProducerIdRequest")
    answer = exchange(
        address,
        request(
            transactional_id=None, transaction_timeout_ms=-1, producer_id=-1, producer_epoch=-1
        ),
        4,
    )
    assert answer.error_code == 0, answer
    return answer.producer_id, answer.producer_epoch
