"""Notifications of a daemon to systemd, read from a socket of the test."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
from collections.abc import Iterator
from errno import ENOSPC
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ConfigError, LogDirImpairedError
from kraftjbod.daemon.process.service_manager import ServiceManager, dirs_text
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import open_dir


class Listening:
    """The receiving socket in place of the service manager."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address[0] == "@" else address)
        self._socket.setblocking(False)

    def received(self) -> list[str]:
        """Return all datagrams that have arrived, in order."""
        reported = []
        while True:
            try:
                reported.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return reported

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract name"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listening]:
    is_path = request.param == "path"
    made = Listening(str(tmp_path / "notify") if is_path else f"@kraftjbod-test-{os.getpid()}")
    yield made
    made.close()


def service(listening: Listening, **environment: str) -> ServiceManager:
    return ServiceManager.from_environment(
        {"NOTIFY_SOCKET": listening.address, **environment}, os.getpid()
    )


def test_notify_sends_one_line_per_field(listening: Listening) -> None:
    reported = service(listening)
    reported.notify(READY="1", STATUS="running")
    reported.close()
    assert listening.received() == ["READY=1\nSTATUS=running"]


async def attended(listening: Listening, manager: ServiceManager, *statuses: str) -> list[str]:
    """Return the datagrams up to the last status; ``attend`` asks once for each status."""
    coming = iter([*statuses, *itertools.repeat(statuses[-1], 10_000)])
    attending = asyncio.create_task(manager.attend(lambda: next(coming)))
    received: list[str] = []
    async with asyncio.timeout(30):
        while not any(f"STATUS={statuses[-1]}" in reported for reported in received):
            await asyncio.sleep(0.01)
            received += listening.received()
    attending.cancel()
    manager.close()
    return received


async def test_attend_sends_watchdog_beats_and_changed_status_only(
    listening: Listening,
) -> None:
    manager = service(listening, WATCHDOG_USEC="20000", WATCHDOG_PID=str(os.getpid()))
    received = await attended(listening, manager, "one", "one", "two\nlines", "three")
    assert received[:4] == [
        "WATCHDOG=1\nSTATUS=one",
        "WATCHDOG=1",
        "WATCHDOG=1\nSTATUS=two lines",
        "WATCHDOG=1\nSTATUS=three",
    ]


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}])
async def test_attend_without_watchdog_for_this_process_sends_no_beats(
    listening: Listening, environment: dict[str, str]
) -> None:
    manager = service(listening, **environment)
    received = await attended(listening, manager, "as always", "as always", "new")
    assert received == ["STATUS=as always", "STATUS=new"]


async def test_service_manager_without_notify_socket_asks_for_no_status() -> None:
    manager = ServiceManager.from_environment({}, os.getpid())
    manager.notify(READY="1")
    await manager.attend(lambda: pytest.fail("asked for the status"))


async def test_full_notify_socket_does_not_block_and_last_status_is_sent_later(
    listening: Listening,
) -> None:
    """The event service_manager_unreachable is logged once per outage."""
    manager = service(listening)
    manager.notify(READY="1")
    with capture_logs() as logged:
        while not logged:
            manager.notify(STATUS="x" * 400)
        for _ in range(3):
            manager.notify(STATUS="late")
    assert [event["event"] for event in logged] == ["service_manager_unreachable"]
    assert listening.received()[0] == "READY=1"
    manager.notify(WATCHDOG="1")
    assert listening.received() == ["STATUS=late\nWATCHDOG=1"]
    manager.close()


async def test_notify_after_service_manager_closed_is_logged_once(listening: Listening) -> None:
    manager = service(listening)
    listening.close()
    with capture_logs() as logged:
        manager.notify(READY="1")
        manager.close()
        manager.notify(STATUS="still gone")
    assert len(logged) == 1


@pytest.mark.parametrize(
    ("environment", "why"),
    [
        ({"NOTIFY_SOCKET": "notify"}, "NOTIFY_SOCKET=notify: expected a path"),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "soon"}, "WATCHDOG_USEC=soon: expected micro"),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "0"}, "WATCHDOG_USEC=0: expected micro"),
    ],
)
def test_from_environment_rejects_malformed_variables(
    environment: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        ServiceManager.from_environment(environment, os.getpid())


async def test_dirs_text_counts_directories_by_state_and_names_impaired_ones() -> None:
    disk = MemVfs()
    for path in ("/d1", "/d2", "/d3"):
        disk.make_dirs(path)
    well, full, dead = (open_dir(disk, f"/d{n}", n) for n in (1, 2, 3))
    with pytest.raises(LogDirImpairedError):
        await full.run_operation(OpKind.APPEND, lambda: fail_with(ENOSPC))
    dead.go_offline("pulled out", report=False)
    assert dirs_text([well, full, dead]) == (
        "log directories: 1 online, 1 impaired (saturated /d2), 1 offline (/d3)"
    )
    assert dirs_text([]) == "log directories: 0 online, 0 impaired, 0 offline"
    for log_dir in (well, full, dead):
        log_dir.close()


def fail_with(code: int) -> None:
    raise OSError(code, os.strerror(code))
