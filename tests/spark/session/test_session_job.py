"""Several jobs in one session, as a pipe requests them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.checkout import ROOT
from tests.spark import report_tables
from tests.spark.running import LONGEST_S, environment

LINES = """\
report --tables {tables} --out {out}
compress it
report --hours none

plan --tables {tables}
report --tables '{tables}
report --tables {tables} --out {out} --conf spark.ui.enabled=true
report --tables {tables}/nowhere --out {out}
"""


@pytest.mark.timeout(300)
def test_session_answers_each_line_and_continues_after_errors(tmp_path: Path) -> None:
    tables, out = tmp_path / "tables", tmp_path / "report.html"
    report_tables.write_table(tables, "skew", report_tables.tables.SKEW, [])
    done = subprocess.run(
        [str(ROOT / "bin/kraftjbod-pipeline"), "session", "--master", "local[1]"],
        input=LINES.format(tables=tables, out=out),
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
        check=False,
        env=environment(),
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(one["job"], one["exit_code"]) for one in answers] == [
        ("report", 0),
        ("compress", 2),
        ("report", 2),
        ("plan", 2),
        ("report", 2),
        ("report", 2),
        ("report", 1),
    ], done.stderr
    assert answers[0]["summary"]["report"] == str(out) and out.exists()
    assert "'compress' is no job" in answers[1]["error"]
    assert "--hours" in answers[2]["error"]
    assert "either --bootstrap-server or --from-tables" in answers[3]["error"]
    assert "No closing quotation" in answers[4]["error"]
    assert "of the whole session" in answers[5]["error"]
    assert "holds none of the tables" in answers[6]["error"]
    assert done.returncode == 2
