"""WIRE. Fixtures for pytest, available as soon as kraftjbod is installed.

* ``kraftjbod_cluster``: a cluster for one test, which may break it.
* ``kraftjbod_session_cluster``: one cluster for all tests that break nothing; each process of
  pytest-xdist has its own.
* ``kraftjbod_clusters``: creates clusters with parameters of the test.

The marker ``kraftjbod(brokers=3, dirs=3, ...)`` sets the parameters of
:class:`~kraftjbod.testing.local_cluster.LocalCluster`. Without it, the options
``--kraftjbod-brokers``, ``--kraftjbod-dirs`` and ``--kraftjbod-disks`` apply. The report of a
failed test has the last events of its clusters' daemons, and their files are kept.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from kraftjbod.core.errors import KraftJbodError

if TYPE_CHECKING:
    from kraftjbod.testing.local_cluster import LocalCluster

_MARKER: Final = "kraftjbod"
_clusters_of: Final = pytest.StashKey[list["LocalCluster"]]()


class MakeCluster(Protocol):
    """Starts a cluster with the parameters of :class:`LocalCluster`."""

    def __call__(self, **parameters: Any) -> LocalCluster: ...


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kraftjbod", "clusters of kraftjbod")
    group.addoption("--kraftjbod-brokers", type=int, default=3, help="Brokers of a cluster.")
    group.addoption("--kraftjbod-dirs", type=int, default=3, help="Log directories of a broker.")
    group.addoption(
        "--kraftjbod-disks",
        choices=["auto", "plain", "ext4", "xfs", "tmpfs", "fuse"],
        default="auto",
        help="Kind of the disks; auto: the one that supports most faults here.",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{_MARKER}(brokers=3, dirs=3, ...): parameters of the test's LocalCluster"
    )


@pytest.fixture
def kraftjbod_clusters(request: pytest.FixtureRequest) -> Iterator[MakeCluster]:
    """Yield a function that creates clusters; they end with the test."""
    yield from _make_clusters(request)


@pytest.fixture
def kraftjbod_cluster(
    request: pytest.FixtureRequest, kraftjbod_clusters: MakeCluster
) -> LocalCluster:
    """Return a started cluster for this test only, with the parameters of the test's marker."""
    marker = request.node.get_closest_marker(_MARKER)
    return kraftjbod_clusters(**(marker.kwargs if marker else {}))


@pytest.fixture(scope="session")
def kraftjbod_session_cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    """Yield one started cluster that all tests of the run share, for tests that break nothing."""
    for make in _make_clusters(request):
        yield make()


def _make_clusters(request: pytest.FixtureRequest) -> Iterator[MakeCluster]:
    # Imported lazily: runs without a cluster load this plugin as well.
    from kraftjbod.testing.local_cluster import LocalCluster

    options = request.config.option
    made: list[LocalCluster] = request.node.stash.setdefault(_clusters_of, [])

    def make(**parameters: Any) -> LocalCluster:
        parameters.setdefault("brokers", options.kraftjbod_brokers)
        parameters.setdefault("dirs", options.kraftjbod_dirs)
        parameters.setdefault("disks", options.kraftjbod_disks)
        cluster = LocalCluster(**parameters)
        cluster.start()
        made.append(cluster)
        return cluster

    try:
        yield make
    finally:
        failed = request.node.stash.get(_failed, False)
        while made:
            made.pop().close(keep=failed)


_failed: Final = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        for node in (item, item.session):
            node.stash[_failed] = True
            for cluster in node.stash.get(_clusters_of, []):
                try:
                    report.sections.append(("kraftjbod daemons", cluster.last_words()))
                except (KraftJbodError, OSError) as e:
                    report.sections.append(("kraftjbod daemons", f"cannot be read: {e}"))
    return report
