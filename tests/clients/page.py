"""``make clients``: docs/clients.md, written by the run of the tests in this folder.

A plugin of pytest (``-p tests.clients.page``). The page is written if every client was there and
every scenario ran, whether it passed or not; otherwise it stays, and the run says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pytest

from tests.checkout import ROOT
from tests.clients.programs import CLIENTS, Client

PAGE: Final = ROOT / "docs/clients.md"
SCENARIOS: Final = {
    "sends and reads": "records with acks=all, plain and idempotent, are where their sender was "
    "told they are, each once",
    "resumes": "a group that left goes on where it committed",
    "rebalances": "a second member comes and the first one goes under load: each partition has "
    "one owner, nothing is lost, and nothing is read twice",
    "loses a disk": "the disk under the group's coordinator, which has leaders of the topic too, "
    "dies under load: no record is lost or doubled, and no member thrown out",
    "administers": "topics are made, grown, configured and deleted; groups and offsets are asked "
    "for, and a group deleted",
}
_HEAD: Final = """# Clients

Each of these is tried as its registry has it, without a change, by a small program in `tests/clients`, against three brokers with two disks each.
`make clients` runs them all and writes this page with what it found; a client whose language is not on the machine is skipped by the tests, and then the page stays as it is.

"""
_TRIED: Final = """
All topics have six partitions and three replicas.
What is not tried yet: transactions, and the newer protocol of groups (`group.protocol=consumer`).
The page [protocol.md](protocol.md) says which requests are.
"""


def page(versions: dict[str, str], passed: dict[tuple[str, str], bool]) -> str:
    """:param passed: by name of client and scenario; those that a client lacks are left out."""
    return _HEAD + "\n".join([*_table(versions, passed), *_words(), *_lacks()]) + "\n" + _TRIED


def _table(versions: dict[str, str], passed: dict[tuple[str, str], bool]) -> Iterator[str]:
    yield f"| client | version | from | {' | '.join(SCENARIOS)} |"
    yield "|---|---|---|" + "---|" * len(SCENARIOS)
    said = {True: "yes", False: "**no**", None: ""}
    for client in CLIENTS:
        cells = [said[passed.get((client.name, scenario))] for scenario in SCENARIOS]
        name = f"{client.name} ({client.language})"
        yield f"| {name} | {versions[client.name]} | {client.registry} | {' | '.join(cells)} |"


def _words() -> Iterator[str]:
    yield ""
    for scenario, words in SCENARIOS.items():
        yield f"* *{scenario}*: {words}."


def _lacks() -> Iterator[str]:
    yield ""
    yield "What a client itself does not have is left out:"
    yield ""
    for client in CLIENTS:
        if client.lacks:
            yield f"* {client.name}: {'; '.join(dict.fromkeys(client.lacks.values()))}."


_reports: list[pytest.TestReport] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """In the process that xdist reports to, as well as without it."""
    _reports.append(report)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    versions: dict[str, str] = {}
    passed: dict[tuple[str, str], bool] = {}
    for report in _reports:
        said = {name: str(value) for name, value in report.user_properties}
        if "client" not in said:
            continue
        if "version" in said:
            versions[said["client"]] = said["version"]
        # Setting up and clearing away say something only if they fail.
        if report.failed or (report.passed and report.when == "call"):
            case = said["client"], said["scenario"]
            passed[case] = passed.get(case, True) and report.passed
    missing = list(_missing(CLIENTS, passed))
    if missing:
        terminalreporter.write_line(f"{PAGE} stays as it is; not run: {', '.join(missing)}")
    else:
        PAGE.write_text(page(versions, passed))


def _missing(clients: Iterable[Client], ran: dict[tuple[str, str], bool]) -> Iterator[str]:
    for client in clients:
        wanted = {*SCENARIOS} - ({"administers"} if "admin" in client.lacks else set())
        if any((client.name, scenario) not in ran for scenario in wanted):
            yield client.name
