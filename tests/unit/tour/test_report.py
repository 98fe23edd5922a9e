"""The tour's output as text and JSON."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from kraftjbod.gameday.faults.cluster_watch import Victim
from kraftjbod.gameday.load.acknowledgements import Gap
from kraftjbod.gameday.load.check import Findings
from kraftjbod.tour.disk_death import Milestone
from kraftjbod.tour.process_deaths import ProcessDeath
from kraftjbod.tour.report import Reporter, tour_document, write_json

VICTIM = Victim(broker_id=1, path=Path("/d1"), led=frozenset({0}), replicas=4)
FOUND = Findings(
    partition=0,
    acknowledged=101_234,
    found=101_233,
    lost=1,
    twice=0,
    out_of_order=0,
    changed=0,
    misplaced=0,
)
GAPS = {0: Gap(1.0, 1.25)}
DEATH = ProcessDeath(
    who="broker 1",
    goal_ms=1500,
    milestones=[Milestone(what="the broker dies (kill -9)", after_ms=0)],
    gaps=GAPS,
    led=frozenset({0}),
)


def reported(width: int = 80) -> tuple[Reporter, io.StringIO]:
    out = io.StringIO()
    return Reporter(Console(file=out, width=width)), out


def test_reporter_tables_contain_the_figures_and_fit_the_page() -> None:
    reporter, out = reported()
    reporter.timeline(
        "A disk died",
        [Milestone(what="it dies", after_ms=0), Milestone(what="it is seen", after_ms=None)],
    )
    reporter.partitions(VICTIM, GAPS, [FOUND])
    reporter.process_death(DEATH)
    text = out.getvalue()
    for expected in (
        "A process died: broker 1",
        "0* 250; the longest is within the goal",
        "it dies",
        "0 ms",
        "not seen",
        "0 *",
        "250 ms",
        "1,234",
        "1,233",
    ):
        assert expected in text
    assert "…" not in text


def test_reporter_prints_steps_as_lines_and_bars_on_terminals_only() -> None:
    reporter, out = reported(width=20)
    reporter.step("a sentence that is longer than the page is wide")
    with reporter.bar("counting", 10) as show:
        show(5)
    assert out.getvalue() == "• a sentence that is longer than the page is wide\n"


def test_tour_document_contains_all_results(tmp_path: Path) -> None:
    document = tour_document(
        topic="t",
        victim=VICTIM,
        milestones=[Milestone(what="it dies", after_ms=0)],
        gaps=GAPS,
        findings=[FOUND],
        figures={"records": 1234},
        is_good=False,
        deaths=[DEATH],
    )
    write_json(tmp_path / "tour.json", document)
    read = json.loads((tmp_path / "tour.json").read_text())
    assert read["nothing_lost"] is False
    assert read["gap_ms_max"] == 250
    assert read["processes"][0]["gap_ms"] == {"0": 250}
    assert read["partitions"][0]["lost"] == 1
