"""Listeners of a cluster of one broker that has not started yet, and a client that uses them."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka

from kraftjbod.core.node_config import Endpoint
from kraftjbod.local.daemon_process import DaemonProcess
from tests.integration.cluster import Cluster

RECORDS = 100


def free_ports(count: int) -> list[int]:
    holders = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [holder.getsockname()[1] for holder in holders]
    for holder in holders:
        holder.close()
    return ports


def change_config(
    daemon: DaemonProcess, change: Callable[[dict[str, str]], Mapping[str, str]]
) -> None:
    """Add keys to the configuration file of a daemon that does not run.

    :param change: returns the new values, given those of the file.
    """
    path = daemon.files.config_path
    values = dict(line.partition("=")[::2] for line in path.read_text().splitlines())
    values |= change(values)
    path.write_text("".join(f"{key}={value}\n" for key, value in values.items()))


def add_listeners(
    cluster: Cluster, protocols: Mapping[str, str], config: Mapping[str, str]
) -> dict[str, int]:
    """Give broker 1 more listeners and keys. Return the ports of all its listeners by name.

    The listener that the broker already has is PLAINTEXT.

    :param protocols: security protocols of the new listeners by name.
    """
    ports: dict[str, int] = {}

    def change(values: dict[str, str]) -> Mapping[str, str]:
        ports["PLAINTEXT"] = Endpoint.parse(values["listeners"]).port
        ports.update(zip(protocols, free_ports(len(protocols)), strict=True))
        listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items())
        all_protocols = {**protocols, "PLAINTEXT": "PLAINTEXT"}
        return {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": ",".join(map(":".join, all_protocols.items())),
            **config,
        }

    change_config(cluster.brokers[1], change)
    return ports


def produce_and_consume(config: Mapping[str, Any], topic: str) -> list[bytes]:
    """Produce :data:`RECORDS` records of up to 2,000 bytes, and return those of the topic.

    :param config: librdkafka's settings of the connection.
    """
    producer = confluent_kafka.Producer({**config, "message.timeout.ms": 60_000})
    for number in range(RECORDS):
        producer.produce(topic, str(number).encode() * 1000)
    assert producer.flush(60) == 0
    consumer = confluent_kafka.Consumer(
        {**config, "group.id": uuid.uuid4().hex, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    found: list[bytes] = []
    while len(found) < RECORDS:
        message = consumer.poll(60)
        assert message is not None and message.error() is None, message
        found.append(message.value())
    consumer.close()
    return found
