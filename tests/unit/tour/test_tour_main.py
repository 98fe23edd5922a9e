"""Command line of the tour; tests/integration/tour/test_tour.py runs all of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.tour.main import main


def test_tour_reports_expected_error_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    assert main(["--run-dir", str(tmp_path)]) == 1
    assert "does not describe a cluster" in capsys.readouterr().out
