"""``python -m tests.fuzz.healthy``: well-behaved clients beside the flood of malformed requests.

They run in a separate process, so that the flood's event loop does not add to their latencies:

- a producer that writes a record every 20 ms with acks=all,
- a consumer that reads the records back,
- a probe per listener that sends a small request every 100 ms.

The process ends at the end of its standard input and prints the results as JSON: among them the
acknowledged records that were not read back.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import click
from confluent_kafka import Consumer, Producer

from kraftjbod.protocol import kafka_codec as codec
from kraftjbod.protocol import rpc_codec
from kraftjbod.protocol.rpc_config_messages import DescribeDynamicConfigsRequest

_INTERVAL_S: Final = 0.02
_PROBE_INTERVAL_S: Final = 0.1
_READ_BACK_S: Final = 30.0


class Probe:
    """Sends ``question`` to one listener at an interval.

    ``slowest_ms`` approximates the longest time that the daemon's event loop was blocked.
    """

    def __init__(self, address: str, question: bytes) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._question = question
        self.slowest_ms = 0.0
        self.failures = 0

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            try:
                self._ask_until(is_over)
            except OSError:
                self.failures += 1
                time.sleep(_PROBE_INTERVAL_S)

    def _ask_until(self, is_over: Callable[[], bool]) -> None:
        with socket.create_connection(self._address, timeout=60) as connection:
            stream = connection.makefile("rwb")
            while not is_over():
                begun = time.monotonic()
                stream.write(self._question)
                stream.flush()
                head = stream.read(4)
                if len(head) < 4:
                    raise ConnectionResetError
                stream.read(*struct.unpack(">i", head))
                self.slowest_ms = max(self.slowest_ms, (time.monotonic() - begun) * 1000)
                time.sleep(_PROBE_INTERVAL_S)


class Writer:
    """Writes the numbers from 0 on. ``acked`` maps acknowledged numbers to their offsets."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 0,
                "log_level": 0,
            }
        )
        self.sent = 0
        self.acked: dict[int, int] = {}
        self.errors: list[str] = []
        self.slowest_ms = 0.0

    def run(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            number, begun = self.sent, time.monotonic()

            def delivered(error: Any, record: Any, number: int = number, t: float = begun) -> None:
                if error is not None:
                    self.errors.append(str(error))
                    return
                self.acked[number] = record.offset()
                self.slowest_ms = max(self.slowest_ms, (time.monotonic() - t) * 1000)

            self._producer.produce(self._topic, b"%d" % number, on_delivery=delivered)
            self.sent += 1
            self._producer.poll(_INTERVAL_S)
        self._producer.flush(_READ_BACK_S)


class Reader:
    """Reads partition 0 of a topic from its beginning. ``read`` maps offsets to values."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka import TopicPartition

        self._consumer = Consumer(
            # With manual assignment and without commits the consumer never joins the group, so
            # that a failed coordinator does not disturb it.
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._consumer.assign([TopicPartition(topic, 0, 0)])
        self.read: dict[int, bytes] = {}

    def run(self, is_over: Callable[[], bool], last_offset: Callable[[], int]) -> None:
        deadline = None
        while True:
            for record in self._consumer.consume(500, timeout=0.1):
                if record.error() is None:
                    self.read[record.offset()] = record.value()
            if is_over():
                deadline = deadline or time.monotonic() + _READ_BACK_S
                if last_offset() in self.read or time.monotonic() > deadline:
                    break


def _ask_kafka() -> bytes:
    body = codec.message("ApiVersionsRequest")(client_software_name="healthy")
    return b"".join(codec.encode_request(body, version=3, correlation_id=1, client_id="healthy"))


def _ask_rpc() -> bytes:
    return rpc_codec.encode_request(1, DescribeDynamicConfigsRequest(resource_type=99))


@click.command()
@click.option("--bootstrap", required=True)
@click.option("--controller", required=True)
@click.option("--topic", required=True)
def main(bootstrap: str, controller: str, topic: str) -> None:
    over = threading.Event()
    writer, reader = Writer(bootstrap, topic), Reader(bootstrap, topic)
    probes = {address: Probe(address, _ask_kafka()) for address in bootstrap.split(",")}
    probes["controller"] = Probe(controller, _ask_rpc())
    writing = threading.Thread(target=writer.run, args=[over.is_set])
    probing = [threading.Thread(target=p.run, args=[over.is_set]) for p in probes.values()]
    reading = threading.Thread(
        target=reader.run,
        args=[
            lambda: not writing.is_alive() and over.is_set(),
            lambda: max(writer.acked.values(), default=-1),
        ],
    )
    for thread in (writing, reading, *probing):
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in (writing, reading, *probing):
        thread.join()
    lost = [n for n, offset in writer.acked.items() if reader.read.get(offset) != b"%d" % n]
    click.echo(
        json.dumps(
            {
                "sent": writer.sent,
                "acknowledged": len(writer.acked),
                "read": len(reader.read),
                "lost": len(lost),
                "errors": writer.errors[:10],
                "slowest_ack_ms": round(writer.slowest_ms),
                "slowest_answer_ms": {who: round(p.slowest_ms) for who, p in probes.items()},
                "probe_failures": sum(p.failures for p in probes.values()),
            }
        )
    )
    sys.stdout.flush()
    # Without a coordinator a consumer takes most of a minute to close.
    os._exit(0)


if __name__ == "__main__":
    main()
