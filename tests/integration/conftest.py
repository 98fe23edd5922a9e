"""Clusters for tests, and their telemetry beside the traceback of a failed test."""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

import pytest

from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.testing import mounts
from tests.integration.cluster import Cluster

_alive: list[Cluster] = []


class MakeCluster(Protocol):
    """Creates a cluster with ClusterProcesses's parameters, and starts it by default."""

    def __call__(self, *, start: bool = True, **parameters: Any) -> Cluster: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Ignore the warning about sockets of refused connections, which kafka-python does not
    close."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture(autouse=True)
def collected_sockets() -> Iterator[None]:
    """Collect those sockets while the warning is still ignored."""
    yield
    gc.collect()


@pytest.fixture(scope="session", autouse=True)
def reaped_mounts() -> None:
    """Remove mounts that a killed run of these tests left behind."""
    mounts.reap()


@pytest.fixture(scope="session")
def cluster_dirs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Path]:
    """Create new run directories; pytest keeps those of its last runs."""
    base = tmp_path_factory.mktemp("clusters")
    numbers = itertools.count(1)
    return lambda: base / f"cluster-{next(numbers)}"


# Options of each log directory of a test's cluster, unless the test gives others.
RESERVE_BYTES: Final = 1024 * 1024
# Keys of such a cluster. Tests count topics, replicas and bytes, so that only their own may exist.
DEFAULTS: Final = {
    "log.dir.reserve.bytes": str(RESERVE_BYTES),
    "storage.telemetry.enable": "false",
    "group.telemetry.enable": "false",
}


def _clusters(cluster_dirs: Callable[[], Path]) -> Iterator[MakeCluster]:
    made: list[Cluster] = []

    def make(
        *, start: bool = True, config: Mapping[str, str] | None = None, **parameters: Any
    ) -> Cluster:
        keys = {**DEFAULTS, **(config or {})}
        cluster = Cluster(ClusterProcesses.create(cluster_dirs(), config=keys, **parameters))
        made.append(cluster)
        _alive.append(cluster)
        if start:
            cluster.start()
        return cluster

    try:
        yield make
        bugs = [bug for cluster in made for bug in cluster.bugs()]
        assert not bugs, "\n".join(["daemons logged bugs:", *bugs])
    finally:
        for cluster in made:
            _alive.remove(cluster)
            cluster.close()
            cluster.local.kill()
            cluster.local.release_ports()


@pytest.fixture
def make_cluster(cluster_dirs: Callable[[], Path]) -> Iterator[MakeCluster]:
    """Create clusters of one test, which are killed at its end."""
    yield from _clusters(cluster_dirs)


@pytest.fixture(scope="module")
def make_shared_cluster(cluster_dirs: Callable[[], Path]) -> Iterator[MakeCluster]:
    """Create clusters of one module, which are killed at its end."""
    yield from _clusters(cluster_dirs)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [("daemons", cluster.story()) for cluster in _alive]
    return report
