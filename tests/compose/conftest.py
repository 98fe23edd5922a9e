"""The session's cluster in containers; reports of failed tests include the containers' logs."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest

from tests.compose.compose_cluster import (
    BUILD_S,
    RUN_DIR,
    ComposeCluster,
    engine_answers,
    start_engine,
)
from tests.integration.checker import Load

_RESULTS = RUN_DIR / "compose-test.json"
_alive: list[ComposeCluster] = []


class Measured:
    """Measured times in seconds. ``report`` prints them and writes them as JSON."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}

    def since(self, what: str, started_s: float) -> None:
        """Store the seconds since ``started_s`` (``time.monotonic()``) under the name ``what``."""
        self.figures[what] = round(time.monotonic() - started_s, 2)

    def gap(self, fault: str, load: Load, since_s: float) -> None:
        """Store the longest gap between acknowledgements of one partition that ended after
        ``since_s`` (``time.monotonic()``).
        """
        gaps = [
            later.at_s - sooner.at_s
            for part in load.partitions
            for sooner, later in itertools.pairwise(part.acks)
            if later.at_s >= since_s
        ]
        self.figures[fault] = round(max(gaps), 2)

    def report(self) -> None:
        _RESULTS.write_text(json.dumps(self.figures, indent=2) + "\n")
        print("\n" + "\n".join(f"{name:40} {s:7.2f} s" for name, s in self.figures.items()))


@pytest.fixture(scope="session")
def measured() -> Measured:
    return Measured()


@pytest.fixture(scope="session")
def cluster(measured: Measured) -> Iterator[ComposeCluster]:
    """A healthy cluster of docker-compose.yml."""
    with _running(measured, secured=False) as cluster:
        yield cluster
        measured.report()


@pytest.fixture(scope="module")
def secured_cluster(measured: Measured) -> Iterator[ComposeCluster]:
    """A healthy cluster of docker-compose.yml and docker-compose.secured.yml."""
    with _running(measured, secured=True) as cluster:
        yield cluster


@contextmanager
def _running(measured: Measured, *, secured: bool) -> Iterator[ComposeCluster]:
    """Start a cluster. Afterwards its containers, networks and volumes are removed, and the engine
    stops if this function started it.
    """
    had_engine = engine_answers()
    started_s = time.monotonic()
    if (reason := start_engine()) is not None:
        pytest.skip(f"no docker engine can run here: {reason}")
    cluster = ComposeCluster(secured=secured)
    what = "secured, " * secured
    _alive.append(cluster)
    try:
        if cluster.existing_objects():
            cluster.do("compose", "down", "-v")
        cluster.do("image", timeout_s=BUILD_S)
        measured.since(f"{what}engine and image", started_s)
        up_s = time.monotonic()
        cluster.do("up", timeout_s=BUILD_S)
        measured.since(f"{what}up and healthy", up_s)
        yield cluster
    finally:
        _alive.remove(cluster)
        cluster.do("compose", "down", "-v")
        left = cluster.existing_objects()
        shutil.rmtree(cluster.user_settings("admin").parent, ignore_errors=True)
        if not had_engine:
            cluster.do("stop-engine")
    assert left == {}
    assert engine_answers() == had_engine


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections += [("containers", cluster.container_logs()) for cluster in _alive]
    return report
