"""Latency of produce requests of 1 KB, one after the other on one connection.

The client is a blocking socket that repeats a prepared request and reads each response: no linger,
no batching, no client library. So the time is that of the broker and the loopback interface. For
comparison (``beside``) the same client talks to a thread that answers immediately.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Final

from kraftjbod.local.cluster_process import ClusterProcesses
from tests.bench.figures import Report, running_cluster
from tests.integration import raw
from tests.integration.cluster import Cluster

ROUNDS: Final = 20_000
_WARM_UP: Final = 2000
_VALUE: Final = bytes(range(250)) * 4
_PRODUCE_VERSION: Final = 9
_NO_ERROR_AT: Final = 4


def single_produces(report: Report) -> None:
    """p50 and p99 in microseconds; acks=1 on one broker, acks=all on three."""
    echo = _echo_us()
    beside = f"echo by a thread: p50 {percentile(echo, 50):.0f}, p99 {percentile(echo, 99):.0f} us"
    for brokers, acks in ((1, 1), (3, -1)):
        with running_cluster(brokers=brokers, dirs=3) as local:
            times = _produce_us(local, acks=acks, replicas=brokers)
        name = f"1 KB produce, acks={'all' if acks < 0 else acks}, {brokers} broker(s)"
        how = f"{ROUNDS:,} in a row, blocking socket, one connection"
        for percent in (50, 99):
            report.add(
                f"{name}, p{percent}", percentile(times, percent), "us", beside=beside, how=how
            )


def _produce_us(local: ClusterProcesses, *, acks: int, replicas: int) -> list[float]:
    cluster = Cluster(local)
    cluster.create_topic("latency", replication_factor=replicas)
    leader = cluster.brokers[cluster.partitions("latency")[0].leader]
    request = produce_frame("latency", acks=acks)
    assert raw.produce(leader.address, "latency", raw.batch([_VALUE]), acks=acks) == (0, 0)
    with socket.create_connection((leader.files.host, leader.files.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return exchange_us(connection, request)


def produce_frame(topic: str, *, acks: int) -> bytes:
    """A request with one record of 1 KB, ready to be sent again and again."""
    return raw.frame(raw.produce_request(topic, raw.batch([_VALUE]), acks=acks), _PRODUCE_VERSION)


def exchange_us(connection: socket.socket, request: bytes, rounds: int = ROUNDS) -> list[float]:
    """Sorted times of ``rounds`` round trips."""
    times = []
    for round_ in range(_WARM_UP + rounds):
        started = time.perf_counter_ns()
        connection.sendall(request)
        answer = connection.recv(4096)
        while len(answer) < 4 or len(answer) < 4 + struct.unpack_from(">i", answer)[0]:
            answer += connection.recv(4096)
        if round_ >= _WARM_UP:
            times.append((time.perf_counter_ns() - started) / 1000)
    return sorted(times)


def _echo_us() -> list[float]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_answer, args=(listener,))
        thread.start()
        with socket.create_connection(listener.getsockname()) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            times = exchange_us(connection, bytes(1100))
        thread.join()
    return times


def _answer(listener: socket.socket) -> None:
    """Fifty bytes for every request of 1,100."""
    connection, _ = listener.accept()
    answer = struct.pack(">i", 50) + bytes(50)
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        came = 0
        while chunk := connection.recv(65536):
            came += len(chunk)
            if came >= 1100:
                came -= 1100
                connection.sendall(answer)


def percentile(times: list[float], percent: int) -> float:
    return times[min(len(times) - 1, len(times) * percent // 100)]
