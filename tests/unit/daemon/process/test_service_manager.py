"""What a daemon reports to systemd, read from a socket of our own."""

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
    """The service manager's end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address[0] == "@" else address)
        self._socket.setblocking(False)

    def heard(self) -> list[str]:
        """Every datagram that has arrived, in order."""
        reported = []
        while True:
            try:
                reported.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return reported

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["a path", "an abstract name"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listening]:
    is_path = request.param == "a path"
    made = Listening(str(tmp_path / "notify") if is_path else f"@kraftjbod-test-{os.getpid()}")
    yield made
    made.close()


def service(listening: Listening, **environment: str) -> ServiceManager:
    return ServiceManager.from_environment(
        {"NOTIFY_SOCKET": listening.address, **environment}, os.getpid()
    )


def test_facts_arrive_as_lines(listening: Listening) -> None:
    reported = service(listening)
    reported.notify(READY="1", STATUS="running")
    reported.close()
    assert listening.heard() == ["READY=1\nSTATUS=running"]


async def attended(listening: Listening, manager: ServiceManager, *statuses: str) -> list[str]:
    """What is heard until the last status is; each is the answer to one look."""
    coming = iter([*statuses, *itertools.repeat(statuses[-1], 10_000)])
    attending = asyncio.create_task(manager.attend(lambda: next(coming)))
    heard: list[str] = []
    async with asyncio.timeout(30):
        while not any(f"STATUS={statuses[-1]}" in reported for reported in heard):
            await asyncio.sleep(0.01)
            heard += listening.heard()
    attending.cancel()
    manager.close()
    return heard


async def test_the_watchdog_hears_beats_and_a_status_only_when_it_changes(
    listening: Listening,
) -> None:
    manager = service(listening, WATCHDOG_USEC="20000", WATCHDOG_PID=str(os.getpid()))
    heard = await attended(listening, manager, "one", "one", "two\nlines", "three")
    assert heard[:4] == [
        "WATCHDOG=1\nSTATUS=one",
        "WATCHDOG=1",
        "WATCHDOG=1\nSTATUS=two lines",
        "WATCHDOG=1\nSTATUS=three",
    ]


@pytest.mark.parametrize("environment", [{}, {"WATCHDOG_USEC": "20000", "WATCHDOG_PID": "1"}])
async def test_without_a_watchdog_of_ours_nothing_beats(
    listening: Listening, environment: dict[str, str]
) -> None:
    manager = service(listening, **environment)
    heard = await attended(listening, manager, "as always", "as always", "new")
    assert heard == ["STATUS=as always", "STATUS=new"]


async def test_without_a_service_manager_nothing_is_said_and_nothing_waits() -> None:
    manager = ServiceManager.from_environment({}, os.getpid())
    manager.notify(READY="1")
    await manager.attend(lambda: "never asked")


async def test_what_a_service_manager_does_not_take_holds_nothing_up_and_goes_with_the_next(
    listening: Listening,
) -> None:
    """service_manager_unreachable is logged once for each time."""
    manager = service(listening)
    manager.notify(READY="1")
    with capture_logs() as logged:
        while not logged:
            manager.notify(STATUS="x" * 400)
        for _ in range(3):
            manager.notify(STATUS="late")
    assert [event["event"] for event in logged] == ["service_manager_unreachable"]
    assert listening.heard()[0] == "READY=1"
    manager.notify(WATCHDOG="1")
    assert listening.heard() == ["STATUS=late\nWATCHDOG=1"]
    manager.close()


async def test_a_service_manager_that_is_gone_is_no_error(listening: Listening) -> None:
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
def test_an_environment_that_makes_no_sense_is_refused(
    environment: dict[str, str], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        ServiceManager.from_environment(environment, os.getpid())


async def test_directories_are_counted_by_state_and_the_ill_ones_named() -> None:
    disk = MemVfs()
    for path in ("/d1", "/d2", "/d3"):
        disk.make_dirs(path)
    well, full, dead = (open_dir(disk, f"/d{n}", n) for n in (1, 2, 3))
    with pytest.raises(LogDirImpairedError):
        await full.run(OpKind.APPEND, lambda: fail_with(ENOSPC))
    dead.go_offline("pulled out", report=False)
    assert dirs_text([well, full, dead]) == (
        "log directories: 1 online, 1 impaired (saturated /d2), 1 offline (/d3)"
    )
    assert dirs_text([]) == "log directories: 0 online, 0 impaired, 0 offline"
    for log_dir in (well, full, dead):
        log_dir.close()


def fail_with(code: int) -> None:
    raise OSError(code, os.strerror(code))
