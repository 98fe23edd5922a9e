"""Hostile bytes at the doors of real daemons: the connection ends, the daemon goes on.

Each connection that breaks the protocol costs one warning and nothing else.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable

import pytest

from kraftjbod.protocol import kafka_codec
from kraftjbod.testing.daemon_process import DaemonProcess
from tests.integration import clients, raw
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients]

WARNING = "connection_broke_protocol"
ROUNDS = 100
_rng = random.Random(20_250_101)


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    cluster = make_shared_cluster(brokers=1, dirs=2)
    cluster.create_topic("before", partitions=2)
    return cluster


@pytest.fixture(params=["broker", "controller"])
def daemon(cluster: Cluster, request: pytest.FixtureRequest) -> DaemonProcess:
    return cluster.brokers[1] if request.param == "broker" else cluster.local.controller


def _framed(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def _random(size: int) -> bytes:
    return _rng.randbytes(size)


#: What breaks both protocols, whatever a daemon's is.
ALWAYS_WRONG: dict[str, Callable[[], bytes]] = {
    "a frame longer than any": lambda: struct.pack(">i", 2**31 - 1) + b"x",
    "a negative length": lambda: struct.pack(">i", -5) + b"x" * 8,
    "an empty frame": lambda: _framed(b""),
    "a frame of one byte": lambda: _framed(b"\x00"),
    "an unknown api": lambda: _framed(struct.pack(">hhih", 9999, 0, 1, -1)),
    "text": lambda: b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
}


def _send(daemon: DaemonProcess, data: bytes, *, half_close: bool = False) -> bytes:
    """Send ``data``; what the daemon answers until it closes the connection."""
    answer = b""
    with socket.create_connection((daemon.files.host, daemon.files.port), timeout=30) as client:
        try:
            client.sendall(data)
            if half_close:
                client.shutdown(socket.SHUT_WR)
            while chunk := client.recv(65536):
                answer += chunk
        except ConnectionError:
            pass
    return answer


def _still_serves(cluster: Cluster) -> None:
    """Broker and controller both: a new topic takes a record."""
    assert all(daemon.is_running for daemon in cluster.local.daemons)
    name = f"after-{_rng.getrandbits(48)}"
    cluster.create_topic(name)
    assert clients.write_confluent(cluster.bootstrap, name, [b"v"]) == [0]
    assert cluster.bugs() == []


@pytest.mark.parametrize("kind", ALWAYS_WRONG)
def test_what_breaks_the_protocol_ends_that_connection(
    cluster: Cluster, daemon: DaemonProcess, kind: str
) -> None:
    before = len(daemon.events(WARNING))
    assert _send(daemon, ALWAYS_WRONG[kind]()) == b""
    cluster.wait("the warning", lambda: len(daemon.events(WARNING)) > before, timeout_s=10)
    assert len(daemon.events(WARNING)) == before + 1
    assert daemon.events(WARNING)[-1]["peer"].startswith("127.0.0.1:")
    _still_serves(cluster)


def test_random_frames(cluster: Cluster, daemon: DaemonProcess) -> None:
    """At most one warning per connection: random bytes are now and then a sound request."""
    before = len(daemon.events(WARNING))
    for _ in range(ROUNDS):
        _send(daemon, _framed(_random(_rng.randrange(200))), half_close=True)
    _still_serves(cluster)
    assert 0 < len(daemon.events(WARNING)) - before <= ROUNDS


def test_random_bodies_of_known_apis(cluster: Cluster) -> None:
    """A sound header and noise behind it, for every api and version there may be."""
    broker = cluster.brokers[1]
    before = len(broker.events(WARNING))
    count = 0
    for api in range(80):
        for version in range(0, 18, 3):
            header = struct.pack(">hhih", api, version, 7, -1)
            noise = _random(_rng.randrange(60))
            _send(broker, _framed(header + noise), half_close=True)
            count += 1
    _still_serves(cluster)
    assert 0 < len(broker.events(WARNING)) - before <= count


def test_cut_frames_are_just_forgotten(cluster: Cluster, daemon: DaemonProcess) -> None:
    """Who leaves in the middle of a frame broke nothing that needs an operator."""
    for _ in range(ROUNDS):
        body = _random(50)
        cut = _framed(body)[: _rng.randrange(4, 50)]
        assert _send(daemon, cut, half_close=True) == b""
    _still_serves(cluster)


def test_flipped_bits_of_real_requests(cluster: Cluster) -> None:
    """What a real client says, one bit wrong; the answer may be an error or a closed door."""
    broker = cluster.brokers[1]
    recorded = _recorded_requests()
    for frame in recorded:
        for _ in range(ROUNDS // len(recorded) + 1):
            wrong = bytearray(frame)
            bit = _rng.randrange(32, len(wrong) * 8)
            wrong[bit // 8] ^= 1 << bit % 8
            _send(broker, bytes(wrong), half_close=True)
    _still_serves(cluster)


def _recorded_requests() -> list[bytes]:
    """One of each that matters, as a client words it."""
    fetch = kafka_codec.message("FetchRequest")
    part = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    offsets = kafka_codec.message("ListOffsetsRequest")
    asked = offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
    return [
        raw.frame(raw.produce_request("before", raw.batch([b"value"] * 3)), 9),
        raw.frame(
            fetch(max_bytes=1000, topics=[fetch.FetchTopic(topic="before", partitions=[part])]), 12
        ),
        raw.frame(
            offsets(
                replica_id=-1,
                topics=[offsets.ListOffsetsTopic(name="before", partitions=[asked])],
            ),
            5,
        ),
        raw.frame(kafka_codec.message("MetadataRequest")(topics=None), 9),
        raw.frame(kafka_codec.message("ApiVersionsRequest")(client_software_name="fuzz"), 3),
    ]
