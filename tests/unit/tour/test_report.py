"""The lines of the tour, and its files."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from kraftjbod.tour.report import Reporter, write_json


def test_reporter_prints_a_step_as_one_line_on_a_narrow_page() -> None:
    out = io.StringIO()
    Reporter(Console(file=out, width=20)).step("a sentence that is longer than the page is wide")
    assert out.getvalue() == "• a sentence that is longer than the page is wide\n"


def test_write_json_replaces_the_file_and_leaves_no_other(tmp_path: Path) -> None:
    path = tmp_path / "gameday.json"
    path.write_text("earlier")
    write_json(path, {"good": True})
    assert json.loads(path.read_text()) == {"good": True}
    assert list(tmp_path.iterdir()) == [path]
