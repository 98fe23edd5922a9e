"""Fixtures of the client tests: a cluster per test file, and programs that run against it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.clients.programs import CLIENTS, Client, ToolchainMissing, java
from tests.clients.running import Running

#: Starts a client's program with a verb: ``start("group", topic, name)``.
Start = Callable[..., Running]
#: Returns a ``Start`` for the command of a program: ``program(java("Client"))``.
Program = Callable[[list[str]], Start]

QUICK = {
    "group.initial.rebalance.delay.ms": "200",
    # All directories are on one disk, which builds of clients may block for seconds. With a shorter
    # timeout the brokers would treat all their directories as failed.
    "log.dir.io.timeout.ms": "60000",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            # The first test of a client builds its program.
            item.add_marker(pytest.mark.timeout(1_800))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(brokers=3, dirs=2, config=QUICK) as cluster:
        yield cluster


@pytest.fixture(params=CLIENTS, ids=str)
def client(request: pytest.FixtureRequest) -> Client:
    each: Client = request.param
    scenario = request.node.get_closest_marker("scenario").args[0]
    request.node.user_properties += [("client", each.name), ("scenario", scenario)]
    return each


@pytest.fixture
def start(client: Client, program: Program) -> Start:
    """Starts programs of ``client``. They are killed at the end of the test."""
    return program(_or_skip(client.build))


@pytest.fixture
def program(
    cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Program]:
    """Starts programs against ``cluster``. They are killed at the end of the test."""
    numbers = itertools.count(1)
    for trial in request.node.iter_markers("trial"):
        request.node.user_properties += [("program", trial.args[0]), ("trial", trial.args[1])]
    with contextlib.ExitStack() as stack:

        def program(command: list[str]) -> Start:
            def start(verb: str, *arguments: object) -> Running:
                words = [cluster.bootstrap_servers, verb, *map(str, arguments)]
                running = Running([*command, *words], tmp_path / f"{verb}-{next(numbers)}.txt")
                stack.enter_context(running)
                running.wait_until("it prints its version", lambda: running.values("version"))
                request.node.user_properties.append(("version", running.values("version")[0]))
                return running

            return start

        yield program


@pytest.fixture
def run_java(program: Program) -> Callable[..., Start]:
    """Starts the programs of tests/clients/java by class name: ``run_java("Client")``."""
    return lambda main, *options: program(_or_skip(lambda: java(main, *options)))


def _or_skip(build: Callable[[], list[str]]) -> list[str]:
    try:
        return build()
    except ToolchainMissing as e:
        pytest.skip(str(e))
