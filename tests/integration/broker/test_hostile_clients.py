"""Clients that occupy memory and connections, while other clients continue to work.

The peak of resident memory of each daemon is compared with its budget. A producer, a consumer and
the brokers' heartbeats run meanwhile; no broker may be fenced, and no acknowledged record may be
missing at the end."""

from __future__ import annotations

import contextlib
import itertools
import selectors
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.protocol import kafka_codec
from tests.integration import clients, raw
from tests.integration.checker import Load, judge
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.live_consumer import LiveConsumer

pytestmark = [pytest.mark.process, pytest.mark.clients]

MIB: Final = 1024 * 1024
BUDGET_BYTES: Final = 32 * MIB
# Memory of a daemon besides its two budgets: one unpacked frame, and the regular work.
BESIDE_BYTES: Final = 64 * MIB
PARTITIONS: Final = 2
LARGE_VALUES: Final = [b"x" * 900_000] * 12
MAX_CONNECTIONS: Final = 300
_numbers = itertools.count(1)
MAX_REQUEST_BYTES: Final = 16 * MIB
CONFIG: Final = {
    "socket.request.max.bytes": str(MAX_REQUEST_BYTES),
    "queued.max.request.bytes": str(BUDGET_BYTES),
    "queued.max.response.bytes": str(BUDGET_BYTES),
    "socket.memory.grace.ms": "1000",
    "max.connections": str(MAX_CONNECTIONS),
    "max.connections.reserved.for.brokers": "100",
    "controller.max.unregistered.connections": "150",
}


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    cluster = make_shared_cluster(brokers=2, dirs=2, config=CONFIG)
    cluster.create_topic("large", assignments={0: [1, 2]}, max_message_bytes=MIB)
    clients.write_confluent(cluster.bootstrap, "large", LARGE_VALUES)
    return cluster


@pytest.fixture(params=["broker", "controller"])
def daemon(cluster: Cluster, request: pytest.FixtureRequest) -> DaemonProcess:
    return cluster.brokers[1] if request.param == "broker" else cluster.local.controller


@contextlib.contextmanager
def honest(cluster: Cluster, *, while_full: bool = False) -> Iterator[Load]:
    """Run the regular load, and assert that every daemon stays within its budget."""
    topic = f"honest-{next(_numbers)}"
    both = {index: [1, 2] for index in range(PARTITIONS)}
    cluster.create_topic(topic, assignments=both, min_insync_replicas=2)
    before = {daemon: peak_bytes(daemon) for daemon in cluster.local.daemons}
    logged = len(cluster.local.controller.events("broker_fenced"))
    with (
        LiveConsumer(cluster.bootstrap, topic, PARTITIONS) as consumer,
        Load(cluster.bootstrap, topic, PARTITIONS) as load,
    ):
        flowing(cluster, load)
        yield load
        flowing(cluster, load)
        load.stop()
        assert consumer.finish(load) == []
    grown = {d.files.name: (peak_bytes(d) - size) // MIB for d, size in before.items()}
    print("grown, MiB:", grown)
    assert max(grown.values()) * MIB <= 2 * BUDGET_BYTES + BESIDE_BYTES, grown
    assert len(cluster.local.controller.events("broker_fenced")) == logged or while_full
    assert judge(cluster.bootstrap, topic, load).findings == []
    assert cluster.bugs() == []


def flowing(cluster: Cluster, load: Load) -> None:
    before = load.acked_by_partition()
    cluster.wait(
        "progress of the load", lambda: load.flowed_since(before, 20), explain=load.explain
    )


def peak_bytes(daemon: DaemonProcess) -> int:
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


class Crowd:
    """Connections to one daemon that send their data as far as the daemon accepts it."""

    def __init__(self, daemon: DaemonProcess) -> None:
        self._address = (daemon.files.host, daemon.files.port)
        self._selector = selectors.DefaultSelector()
        self._unsent: dict[socket.socket, memoryview] = {}
        self.closed = 0

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()
        self._selector.close()

    def leave(self) -> None:
        for one in list(self._unsent):
            self._forget(one)

    def __len__(self) -> int:
        return len(self._unsent)

    def join(self, data: bytes, *, reads_little: bool = False) -> None:
        one = socket.socket()
        if reads_little:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        one.settimeout(raw.TIMEOUT_S)
        try:
            one.connect(self._address)
        except OSError:
            one.close()
            self.closed += 1
            return
        one.setblocking(False)
        self._unsent[one] = memoryview(data)
        self._selector.register(one, selectors.EVENT_WRITE if data else selectors.EVENT_READ)

    def push(self, seconds: float, *, reads: bool = False) -> None:
        """Send data for ``seconds``, and forget connections that the daemon closed."""
        until = time.monotonic() + seconds
        while self._unsent and (left := until - time.monotonic()) > 0:
            for key, events in self._selector.select(min(left, 0.1)):
                one: Any = key.fileobj
                try:
                    if events & selectors.EVENT_WRITE:
                        self._send(one)
                    elif reads and not one.recv(65536):
                        raise ConnectionResetError
                except BlockingIOError:
                    continue
                except OSError:
                    self.closed += 1
                    self._forget(one)

    def _send(self, one: socket.socket) -> None:
        self._unsent[one] = self._unsent[one][one.send(self._unsent[one][:MIB]) :]
        if not self._unsent[one]:
            self._selector.modify(one, selectors.EVENT_READ)

    def _forget(self, one: socket.socket) -> None:
        self._selector.unregister(one)
        del self._unsent[one]
        one.close()


def claim(size: int, sent: int) -> bytes:
    return struct.pack(">i", size) + b"\0" * sent


def largest_frame(daemon: DaemonProcess) -> int:
    return 8 * MIB if daemon.files.role == "controller" else MAX_REQUEST_BYTES


def test_length_field_of_a_frame_allocates_no_memory(
    cluster: Cluster, daemon: DaemonProcess
) -> None:
    with honest(cluster), Crowd(daemon) as crowd:
        for _ in range(MAX_CONNECTIONS):
            crowd.join(claim(largest_frame(daemon), 1))
        crowd.push(2)


def test_half_sent_frames_are_limited_by_the_memory_budget(
    cluster: Cluster, daemon: DaemonProcess
) -> None:
    with honest(cluster), Crowd(daemon) as crowd:
        data = claim(largest_frame(daemon), 6 * MIB)
        for _ in range(80):
            crowd.join(data)
        crowd.push(4)
        assert crowd.closed > 0, "no connection was closed"
        if daemon.files.role == "broker":
            # A large request of another client finds memory meanwhile.
            assert raw.produce(daemon.address, "large", raw.batch(LARGE_VALUES[:1]))[0] == 0


def test_unread_responses_are_limited_by_the_memory_budget(cluster: Cluster) -> None:
    fetch = kafka_codec.message("FetchRequest")
    part = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=50 * MIB)
    asked = fetch(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=50 * MIB,
        topics=[fetch.FetchTopic(topic="large", partitions=[part])],
    )
    leader = cluster.brokers[cluster.partitions("large")[0].leader]
    frames = b"".join(raw.frame(asked, 12, correlation_id=number) for number in range(4))
    with honest(cluster), Crowd(leader) as crowd:
        for _ in range(40):
            crowd.join(frames, reads_little=True)
        crowd.push(4)
        # A regular client gets its records, if in smaller pieces.
        values = clients.read_confluent(leader.address, "large", len(LARGE_VALUES))
        assert [len(value) for value in values] == [len(value) for value in LARGE_VALUES]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("unit", [b"\x90", b"\x80", b"\x91\x91\x91\x90"])
def test_many_small_containers_in_rpc_frames_close_the_connection(
    cluster: Cluster, unit: bytes
) -> None:
    part = b"\xdd\x00\x02\x00\x00" + unit * 0x20000
    count = 7 * MIB // len(part)
    body = struct.pack(">BH", 0xDC, count) + part * count
    with honest(cluster), Crowd(cluster.local.controller) as crowd:
        for _ in range(3):
            crowd.join(struct.pack(">i", len(body)) + body)
        crowd.push(5, reads=True)
        assert crowd.closed == 3


def test_full_listeners_admit_a_starting_broker(cluster: Cluster) -> None:
    """Other clients occupy both listeners and reconnect; a starting broker gets in at both."""
    daemons = [cluster.brokers[1], cluster.local.controller]
    stopping = threading.Event()

    def fill(crowd: Crowd) -> None:
        while not stopping.is_set():
            for _ in range(min(20, MAX_CONNECTIONS + 50 - len(crowd))):
                crowd.join(b"")
            crowd.push(0.1, reads=True)

    with contextlib.ExitStack() as stack:
        stack.callback(stopping.set)
        crowds = [stack.enter_context(Crowd(daemon)) for daemon in daemons]
        threads = [threading.Thread(target=fill, args=(crowd,), daemon=True) for crowd in crowds]
        with honest(cluster, while_full=True) as load:
            for thread in threads:
                thread.start()
            cluster.wait("full listeners", lambda: all(crowd.closed > 0 for crowd in crowds))
            cluster.stop_daemon(cluster.brokers[2])
            cluster.brokers[2].start()
            # The broker fetches and is in sync again; only then are records acknowledged.
            flowing(cluster, load)
            stopping.set()
            for thread, crowd in zip(threads, crowds, strict=True):
                thread.join()
                crowd.leave()
    cluster.wait_healthy()
