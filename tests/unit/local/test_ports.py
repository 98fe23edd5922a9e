"""``reserve_port``: reserved ports are used by no other cluster, of any process."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from kraftjbod.local import ports
from kraftjbod.local.ports import HOST, is_free, reserve_port


def test_reserved_ports_differ_and_accept_listeners() -> None:
    reserved = [reserve_port() for _ in range(20)]
    try:
        assert len({one.port for one in reserved}) == 20
        with socket.socket() as listener:
            listener.bind((HOST, reserved[0].port))
            listener.listen()
            assert not is_free(reserved[0].port)
    finally:
        for one in reserved:
            one.release()


def test_reserve_port_in_another_process_returns_another_port(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both processes begin their search at the same port."""
    monkeypatch.setattr(ports.random, "randrange", lambda _: 7)
    mine = reserve_port()
    script = (
        "from kraftjbod.local import ports; ports.random.randrange = lambda _: 7; "
        "print(ports.reserve_port().port)"
    )

    def taken_by_another() -> int:
        return int(subprocess.check_output([sys.executable, "-c", script]))

    try:
        assert taken_by_another() != mine.port
    finally:
        mine.release()
        mine.release()
    assert taken_by_another() == mine.port
