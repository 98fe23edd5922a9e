"""One cluster for all clients of a file, and the programs that are run against it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.clients.programs import CLIENTS, Client, ToolchainMissing
from tests.clients.running import Running

#: Starts a program: ``start("group", topic, name)``.
Start = Callable[..., Running]

QUICK = {"group.initial.rebalance.delay.ms": "200"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            # A client may have to be built first.
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
def start(
    client: Client, cluster: LocalCluster, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Start]:
    """Programs of ``client`` at ``cluster``; they are killed at the end of the test."""
    try:
        command = client.build()
    except ToolchainMissing as e:
        pytest.skip(str(e))
    numbers = itertools.count(1)
    with contextlib.ExitStack() as stack:

        def start(verb: str, *arguments: object) -> Running:
            words = [cluster.bootstrap_servers, verb, *map(str, arguments)]
            running = Running([*command, *words], tmp_path / f"{verb}-{next(numbers)}.txt")
            stack.enter_context(running)
            running.wait_until("it tells its version", lambda: running.told("version"))
            request.node.user_properties.append(("version", running.told("version")[0]))
            return running

        yield start
