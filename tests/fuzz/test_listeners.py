"""Tests of listeners with peers that do not speak the protocol or leave within a frame."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from kraftjbod.local.daemon_process import DaemonProcess
from kraftjbod.testing.local_cluster import LocalCluster

pytestmark = [pytest.mark.process, pytest.mark.clients]

WARNING: Final = "connection_broke_protocol"
NO_CLIENT: Final[dict[str, bytes]] = {
    "a frame longer than any": struct.pack(">i", 2**31 - 1) + b"x",
    "a negative length": struct.pack(">i", -5) + b"x" * 8,
    "an empty frame": struct.pack(">i", 0),
    "a frame of one byte": struct.pack(">i", 1) + b"\x00",
    "an unknown api": struct.pack(">ihhih", 10, 9999, 0, 1, -1),
    "text": b"GET / HTTP/1.1\r\nHost: kafka\r\n\r\n",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    run_dir: Path = tmp_path_factory.mktemp("listeners") / "cluster"
    with LocalCluster(brokers=1, dirs=2, disks="plain", run_dir=run_dir) as cluster:
        yield cluster


@pytest.fixture(params=["broker", "controller"])
def daemon(cluster: LocalCluster, request: pytest.FixtureRequest) -> DaemonProcess:
    if request.param == "broker":
        return cluster.broker(1).process
    return cluster.processes.controller


def _send(daemon: DaemonProcess, data: bytes, *, half_close: bool = False) -> tuple[bytes, str]:
    """Send ``data`` and read until the daemon closes the connection.

    :returns: the bytes that were read, and the ``host:port`` of the client's end.
    """
    answer = b""
    with socket.create_connection((daemon.files.host, daemon.files.port), timeout=30) as client:
        host, port = client.getsockname()
        try:
            client.sendall(data)
            if half_close:
                client.shutdown(socket.SHUT_WR)
            while chunk := client.recv(65536):
                answer += chunk
        except ConnectionError:
            pass
    return answer, f"{host}:{port}"


@pytest.mark.parametrize("kind", NO_CLIENT)
def test_listener_closes_connection_of_foreign_protocol_without_answer(
    cluster: LocalCluster, daemon: DaemonProcess, kind: str
) -> None:
    answer, _ = _send(daemon, NO_CLIENT[kind])
    assert answer == b""
    cluster.wait("the warning", lambda: daemon.events(WARNING))
    assert daemon.events(WARNING)[-1]["peer"].startswith("127.0.0.1:")
    assert daemon.is_running


def test_listener_peer_that_leaves_within_a_frame_causes_no_warning(
    cluster: LocalCluster, daemon: DaemonProcess
) -> None:
    rng, peers = random.Random(1), set()
    for _ in range(30):
        frame = struct.pack(">i", 50) + rng.randbytes(50)
        answer, peer = _send(daemon, frame[: rng.randrange(4, 50)], half_close=True)
        assert answer == b""
        peers.add(peer)
    assert peers.isdisjoint(event["peer"] for event in daemon.events(WARNING))
    cluster.create_topic(f"after-{daemon.files.name}")
