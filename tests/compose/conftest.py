"""One cluster in containers for all tests of this folder, and its last words beside a failure."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Generator, Iterator

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
    """Figures for people, in seconds; at the end they are printed, and written as JSON."""

    def __init__(self) -> None:
        self.figures: dict[str, float] = {}

    def since(self, what: str, started_s: float) -> None:
        """``started_s`` is monotonic, as below."""
        self.figures[what] = round(time.monotonic() - started_s, 2)

    def gap(self, fault: str, load: Load, since_s: float) -> None:
        """The longest time without an acknowledgement of any partition, of what ended since."""
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
    """Up and healthy; taken down with all that belongs to it, and the engine if it was started."""
    had_engine = engine_answers()
    started_s = time.monotonic()
    if (reason := start_engine()) is not None:
        pytest.skip(f"no docker engine can run here: {reason}")
    cluster = ComposeCluster()
    _alive.append(cluster)
    try:
        if cluster.left_behind():
            cluster.do("compose", "down", "-v")
        cluster.do("image", timeout_s=BUILD_S)
        measured.since("engine and image", started_s)
        up_s = time.monotonic()
        cluster.do("up", timeout_s=BUILD_S)
        measured.since("up and healthy", up_s)
        yield cluster
        measured.report()
    finally:
        _alive.remove(cluster)
        cluster.do("compose", "down", "-v")
        left = cluster.left_behind()
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
        report.sections += [("containers", cluster.story()) for cluster in _alive]
    return report
