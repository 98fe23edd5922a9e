"""Which tests take long, which cases of a sweep stand for all, and the order of files.

``make test`` runs ``-m "not long"``, ``make test-slice`` runs ``-m long``, ``make test-all`` both.

* ``@pytest.mark.long``: takes long, or shows in another way what shorter tests show.
  Everything in a folder of :data:`LONG_FOLDERS` is long.
* ``@pytest.mark.sampled(n)``: of the cases of a parametrized test all but ``n`` are long. Which,
  :data:`SAMPLE` says: the commit, so that each change is tried with others.
* A law (``@given``) that names no number of examples is tried with :data:`FEW_EXAMPLES` where what
  is long is left out, others each time, and with hypothesis's hundred everywhere else.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings

#: The environment variable that says which cases are taken; any word will do.
SAMPLE: Final = "TEST_SAMPLE"
FEW_EXAMPLES: Final = 25
LONG_FOLDERS: Final = frozenset(
    {"spark", "compose", "systemd", "disk", "soak", "clients", "versions"}
)

#: Folders whose files take long come first, so that no process is left alone with them at the end.
_ORDER: Final = (
    "spark",
    "compose",
    "soak",
    "systemd",
    "clients",
    "integration",
    "disk",
    "faults",
)
_HERE: Final = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    """Before worker processes are made: they have to take the same cases."""
    if SAMPLE not in os.environ:
        command = ["git", "rev-parse", "--short=10", "HEAD"]
        done = subprocess.run(command, cwd=_HERE, capture_output=True, text=True, check=False)
        os.environ[SAMPLE] = done.stdout.strip() or "no-commit"
    # No law is about time, and a loaded machine makes every example slow. What explains a failure
    # traces every line: a walk that failed after a second took two minutes to say so.
    settings.register_profile(
        "all",
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
        phases=set(Phase) - {Phase.explain},
    )
    settings.register_profile("few", settings.get_profile("all"), max_examples=FEW_EXAMPLES)
    settings.load_profile("few" if config.option.markexpr == "not long" else "all")


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Marked before ``-m`` selects, and sorted after all; within a folder the order stays."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if _folder(item) in LONG_FOLDERS:
            item.add_marker(pytest.mark.long)
        if item.get_closest_marker("sampled") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, of_one in cases.items():
        _mark_all_but_sample(name, of_one)
    yield
    items.sort(
        key=lambda item: _ORDER.index(_folder(item)) if _folder(item) in _ORDER else len(_ORDER)
    )


def _folder(item: pytest.Item) -> str:
    return item.path.relative_to(_HERE).parts[0]


def _mark_all_but_sample(name: str, cases: list[pytest.Item]) -> None:
    """Mark cases independently of their order and of cases that this run leaves out."""
    marker = cases[0].get_closest_marker("sampled")
    assert marker is not None
    rng = random.Random(f"{os.environ[SAMPLE]} {name}")  # a choice, not a secret
    by_lot = {case.nodeid: rng.random() for case in sorted(cases, key=lambda case: case.nodeid)}
    for case in sorted(cases, key=lambda case: by_lot[case.nodeid])[marker.args[0] :]:
        case.add_marker(pytest.mark.long)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    terminalreporter.write_line(f"sampled cases are those of {SAMPLE}={os.environ[SAMPLE]}")
