"""A pytest plugin (``-p tests.clients.page``) that writes docs/clients.md after ``make clients``.

The page has two parts. A part is written if all its tests ran, whether they passed or not.
Otherwise the part is kept, and the terminal summary names the tests that did not run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pytest

from tests.checkout import ROOT
from tests.clients.programs import CLIENTS, Client

PAGE: Final = ROOT / "docs/clients.md"
SCENARIOS: Final = {
    "sends and reads": "each record sent with acks=all, by a plain and by an idempotent producer, "
    "is in the topic once, at the acknowledged offset",
    "resumes": "a consumer that joins an empty group continues at the committed offsets",
    "rebalances": "under load, a second member joins and the first one leaves. Each partition has "
    "one owner, no record is lost, and no record is read twice",
    "loses a disk": "under load, the disk of the group's coordinator fails, which also holds leaders "
    "of the topic. No record is lost or duplicated, and no member is removed",
    "transacts": "a program copies records in transactions that also commit the group's offsets, "
    "and aborts a third of the transactions. Each record is committed once",
    "administers": "an admin client creates, extends, configures and deletes topics; describes a "
    "group and its offsets, and deletes the group",
}
#: The verb of ``programs.py`` that a scenario needs.
_NEEDED: Final = {"administers": "admin", "transacts": "copy"}
#: Scenarios of one program each, by program and marker ``trial``. A row may have several tests.
TRIALS: Final = {
    ("kafka-clients (Java)", "transactions"): "copies records in transactions and aborts a third "
    "of them: each record is committed once, with the group's offsets; a second producer fences "
    "the first; with `transaction.version` 1 and 2",
    ("kafka-streams (Java)", "streams"): "counts words with `exactly_once_v2` and a state store, "
    "is killed and restarted, then the disk of its group's coordinator fails: each word is counted "
    "once",
    ("connect-runtime (Java)", "connect"): "two distributed workers copy lines from a file to a "
    "topic, exactly once, and from the topic to another file; the worker that reads is killed: "
    "every line arrives",
    (
        "spark-sql-kafka-0-10 (Spark)",
        "group",
    ): "streams committed records from topic to topic, with "
    "a subscription or with assigned partitions: each record once",
}
_BUILT: Final = "## Programs built on these clients"
_HEAD: Final = """# Clients

A small program in `tests/clients` tests each of these clients, unmodified from its registry, with a cluster of three brokers with two disks each.
`make clients` runs all programs and writes this page with their results. The tests skip a client whose language is not installed. If a client is skipped, the whole table keeps its former results.

"""
_TRIED: Final = """
The tests create topics with six partitions and three replicas, except those of *administers*.
Clients named `-consumer` use the newer group protocol (`group.protocol=consumer`).
The page [protocol.md](protocol.md) lists the requests that brokers serve, with their versions.
"""


def page(clients: str, trials: str) -> str:
    """Return the page with the two parts."""
    return f"{_HEAD}{clients}\n{_BUILT}\n{trials}{_TRIED}"


def parts(written: str) -> tuple[str, str]:
    """Return the two parts of a page that ``page`` wrote."""
    clients, trials = written.removeprefix(_HEAD).split(f"\n{_BUILT}\n")
    return clients, trials.removesuffix(_TRIED)


def _trials(versions: dict[str, str], passed: dict[tuple[str, str], bool]) -> Iterator[str]:
    yield ""
    yield from ("| program | version | what it does | works |", "|---|---|---|---|")
    for trial, words in TRIALS.items():
        works = "yes" if passed[trial] else "**no**"
        yield f"| {trial[0]} | {versions[trial[0]]} | {words} | {works} |"


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
    yield (
        "Some clients do not support all scenarios. These parts are left out; a scenario that is "
        "left out completely has an empty cell:"
    )
    yield ""
    for client in CLIENTS:
        if client.lacks:
            yield f"* {client.name}: {'; '.join(dict.fromkeys(client.lacks.values()))}."


_reports: list[pytest.TestReport] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep each report. With xdist, pytest calls this in the controlling process, too."""
    _reports.append(report)


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    versions: dict[str, str] = {}
    passed: dict[tuple[str, str], bool] = {}
    for report in _reports:
        said = {name: str(value) for name, value in report.user_properties}
        name = said.get("client") or said.get("program")
        if name is None:
            continue
        if "version" in said:
            versions[name] = said["version"]
        # Setup and teardown count only if they fail.
        if report.failed or (report.passed and report.when == "call"):
            case = name, said.get("scenario") or said["trial"]
            passed[case] = passed.get(case, True) and report.passed
    clients, trials = parts(PAGE.read_text())
    if missing := list(_missing(CLIENTS, passed)):
        terminalreporter.write_line(f"{PAGE}: clients stay; not run: {', '.join(missing)}")
    else:
        clients = "\n".join([*_table(versions, passed), *_words(), *_lacks(), ""])
    if missing := [" ".join(each) for each in TRIALS if each not in passed]:
        terminalreporter.write_line(f"{PAGE}: {_BUILT} stays; not run: {', '.join(missing)}")
    else:
        trials = "\n".join([*_trials(versions, passed), ""])
    PAGE.write_text(page(clients, trials))


def _missing(clients: Iterable[Client], ran: dict[tuple[str, str], bool]) -> Iterator[str]:
    for client in clients:
        wanted = {name for name in SCENARIOS if _NEEDED.get(name) not in client.lacks}
        if any((client.name, scenario) not in ran for scenario in wanted):
            yield client.name
