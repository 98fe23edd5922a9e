"""``make clients``: docs/clients.md, written by the run of the tests in this folder.

A plugin of pytest (``-p tests.clients.page``). The page has two parts. Each is written if all of
it ran, whether it passed or not; otherwise it stays, and the run says why.
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
    "transacts": "copies in transactions, with what its group has read, a third of which it "
    "aborts: every record is there once",
    "administers": "topics are made, grown, configured and deleted; groups and offsets are asked "
    "for, and a group deleted",
}
#: The verb without which a client cannot be tried.
_NEEDED: Final = {"administers": "admin", "transacts": "copy"}
#: What is tried with one program each; several tests, or cases of one, may stand for one.
TRIALS: Final = {
    ("kafka-clients (Java)", "transactions"): "copies in transactions, a third of which it aborts: "
    "every record is there once, with its group's offsets; a second producer fences the first; at "
    "both levels of `transaction.version`",
    ("kafka-streams (Java)", "streams"): "counts words with `exactly_once_v2` and a state store, "
    "is killed and started again, then the disk under its group's coordinator dies: each word is "
    "counted once",
    ("connect-runtime (Java)", "connect"): "two workers, distributed, from a file to a topic, "
    "exactly once, and on to another file; the one that reads is killed: every line arrives",
    ("spark-sql-kafka-0-10 (Spark)", "group"): "streams from topic to topic as a group, subscribed "
    "or not, reading what is committed: all of it, once",
}
_BUILT: Final = "## What is built on them"
_HEAD: Final = """# Clients

Each of these is tried as its registry has it, without a change, by a small program in `tests/clients`, against three brokers with two disks each.
`make clients` runs them all and writes this page with what it found; a client whose language is not on the machine is skipped by the tests, and then its part of the page stays as it is.

"""
_TRIED: Final = """
All topics have six partitions and three replicas.
Those called `-consumer` are members of groups by the newer protocol (`group.protocol=consumer`).
The page [protocol.md](protocol.md) says which requests are.
"""


def page(clients: str, trials: str) -> str:
    """Of its two parts."""
    return f"{_HEAD}{clients}\n{_BUILT}\n{trials}{_TRIED}"


def parts(written: str) -> tuple[str, str]:
    """Of a page that was written so."""
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
        name = said.get("client") or said.get("program")
        if name is None:
            continue
        if "version" in said:
            versions[name] = said["version"]
        # Setting up and clearing away say something only if they fail.
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
