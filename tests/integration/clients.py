"""Three foreign clients with common functions, so that a test can combine them.

Each ``write_*`` sends values to partition 0 and returns their offsets once all are acknowledged.
Each ``read_*`` returns the first ``count`` values of partition 0.
Consumers are assigned, never subscribed; broker/test_consumer_groups.py tests groups, and
``tests/clients`` has more clients."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import aiokafka
import confluent_kafka
import kafka
from aiokafka.structs import TopicPartition as AioTopicPartition

from tests.integration import checker

TIMEOUT_S: Final = 30
COMPRESSIONS: Final = ("none", "gzip", "snappy", "lz4", "zstd")

Write = Callable[..., list[int]]
Read = Callable[[str, str, int], list[bytes]]


def quiet(bootstrap: str) -> dict[str, str | int]:
    """Settings of a librdkafka client that does not write about stopped brokers to standard
    error."""
    return {"bootstrap.servers": bootstrap, "log_level": 0}


def write_confluent(
    bootstrap: str, topic: str, values: Sequence[bytes], *, compression: str = "none", **more: Any
) -> list[int]:
    settings = {key.replace("_", "."): value for key, value in more.items()}
    producer = confluent_kafka.Producer(
        {
            **quiet(bootstrap),
            "compression.type": compression,
            "linger.ms": 20,
            **settings,
        }
    )
    offsets: list[int] = []

    def on_delivery(error: confluent_kafka.KafkaError | None, message: Any) -> None:
        if error is not None:
            raise confluent_kafka.KafkaException(error)
        offsets.append(message.offset())

    for value in values:
        producer.produce(topic, value=value, partition=0, on_delivery=on_delivery)
    assert producer.flush(TIMEOUT_S) == 0
    return offsets


def read_confluent(bootstrap: str, topic: str, count: int) -> list[bytes]:
    found = checker.read(bootstrap, topic, 0)
    return [value for _, value in itertools.islice(found, count)]


def read_confluent_until(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """Read repeatedly until ``count`` records are there: with acks=0 they may be in flight."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        found = read_confluent(bootstrap, topic, count)
        if len(found) >= count or time.monotonic() > deadline:
            return found


def write_kafka_python(
    bootstrap: str, topic: str, values: Sequence[bytes], *, compression: str = "none", **more: Any
) -> list[int]:
    settings = {"acks": "all", "linger_ms": 20, **more}
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap.split(","),
        compression_type=None if compression == "none" else compression,
        **settings,
    )
    try:
        sent = [producer.send(topic, value=value, partition=0) for value in values]
        return [future.get(timeout=TIMEOUT_S).offset for future in sent]
    finally:
        producer.close()


def read_kafka_python(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap.split(","),
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        consumer_timeout_ms=TIMEOUT_S * 1000,
    )
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        return [record.value for record in itertools.islice(consumer, count)]
    finally:
        consumer.close()


def write_aiokafka(
    bootstrap: str, topic: str, values: Sequence[bytes], *, compression: str = "none", **more: Any
) -> list[int]:
    async def write() -> list[int]:
        kind = None if compression == "none" else compression
        # Its default is acks=1, with which an immediate reader may find nothing yet.
        settings = {"acks": "all", "linger_ms": 20, **more}
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=kind, **settings
        ) as producer:
            sent = [await producer.send(topic, value=value, partition=0) for value in values]
            found = [await future for future in sent]
            # With acks=0 there is no response.
            return [record.offset for record in found if record is not None]

    return asyncio.run(asyncio.wait_for(write(), TIMEOUT_S))


def read_aiokafka(bootstrap: str, topic: str, count: int) -> list[bytes]:
    async def read() -> list[bytes]:
        async with aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([AioTopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            return [(await consumer.getone()).value for _ in range(count)]

    return asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))


def write_kcat(
    bootstrap: str, topic: str, values: Sequence[bytes], *, compression: str = "none"
) -> list[int]:
    """Write with kcat, which prints no offsets; the list is empty."""
    command = ["kcat", "-b", bootstrap, "-P", "-t", topic, "-p", "0", "-z", compression]
    lines = b"".join(value + b"\n" for value in values)
    subprocess.run(command, input=lines, capture_output=True, timeout=TIMEOUT_S, check=True)
    return []


def read_kcat(bootstrap: str, topic: str, count: int) -> list[bytes]:
    command = ["kcat", "-b", bootstrap, "-C", "-t", topic, "-p", "0", "-o", "beginning"]
    done = subprocess.run(
        [*command, "-c", str(count), "-q"], capture_output=True, timeout=TIMEOUT_S, check=True
    )
    return done.stdout.splitlines()


WRITERS: Final[dict[str, Write]] = {
    "confluent": write_confluent,
    "kafka_python": write_kafka_python,
    "aiokafka": write_aiokafka,
    "kcat": write_kcat,
}
READERS: Final[dict[str, Read]] = {
    "confluent": read_confluent,
    "kafka_python": read_kafka_python,
    "aiokafka": read_aiokafka,
    "kcat": read_kcat,
}
