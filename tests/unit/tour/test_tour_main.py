"""The command line of the tour; the whole story is in tests/integration/tour/test_tour.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.tour.main import main


def test_an_expected_error_is_reported_and_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cluster.json").write_text("{}")
    assert main(["--run-dir", str(tmp_path)]) == 1
    assert "does not describe a cluster" in capsys.readouterr().out
