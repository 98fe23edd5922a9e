"""Tables of outcomes in a terminal of 80 columns."""

from __future__ import annotations

import io

from rich.console import Console

from kraftjbod.gameday.load.acknowledgements import Gap
from kraftjbod.gameday.outcome import LeftOut
from kraftjbod.gameday.outcome_tables import print_outcome, print_summary
from tests.unit.gameday.outcomes import outcome, partition


def console() -> Console:
    return Console(file=io.StringIO(), width=80)


def reported(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_print_outcome_shows_marks_and_partitions() -> None:
    out = console()
    print_outcome(
        out,
        outcome(
            partition(0, gap=Gap(101.0, 113.5), was_hit=True),
            partition(1, gap=Gap(101.0, 101.1), lost=7),
        ),
    )
    text = reported(out)
    assert "/d<1> of broker 1 (chmod 000)" in text
    assert ["noticed", "250", "ms"] in [line.split() for line in text.splitlines()]
    rows = [line.split() for line in text.splitlines()]
    assert ["0", "*", "12,500", "40", "1,000", "1,000", "0", "0", "0", "0", "0"] in rows
    assert ["1", "100", "40", "1,000", "1,000", "7", "0", "0", "0", "0"] in rows
    assert "…" not in text, "nothing is cut off"


def test_print_summary_shows_verdicts_complaints_and_left_out_scenarios() -> None:
    out = console()
    print_summary(
        out,
        [outcome(), outcome(problems=["partition 3: failed"], scenario="full-disk")],
        [LeftOut(scenario="hung-disk", reason="mounting needs root")],
    )
    rows = [" ".join(line.split()) for line in reported(out).splitlines()]
    assert "dead-disk 500 ms 1000 ms 1,000 0 good" in rows
    assert "full-disk 500 ms 1000 ms 1,000 0 not good" in rows
    assert "full-disk: partition 3: failed" in rows
    assert "hung-disk was left out: mounting needs root" in rows
