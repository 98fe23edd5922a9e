"""Options of ``kraftjbod-gameday`` that are refused before any request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kraftjbod.core.errors import StartupError
from kraftjbod.gameday import gameday_tool
from kraftjbod.gameday.gameday_tool import main
from kraftjbod.gameday.scenarios import SCENARIOS
from tests.unit.gameday.outcomes import outcome

BOOTSTRAP = ("--bootstrap-server", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (BOOTSTRAP, "say either --scenario or --observe"),
        ((*BOOTSTRAP, "--observe", "--scenario", "all"), "say either --scenario or --observe"),
        ((*BOOTSTRAP, "--scenario", "earthquake"), "'earthquake' is not one of"),
        (("--observe",), "Missing option '--bootstrap-server'"),
        ((*BOOTSTRAP, "--observe", "--rate", "0"), "Invalid value for '--rate'"),
        ((*BOOTSTRAP, "--observe", "--seconds", "86400"), "Invalid value for '--seconds'"),
    ],
)
def test_gameday_tool_rejects_wrong_options(words: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 2
    assert said in done.output


def test_gameday_help_lists_scenarios_and_exit_codes() -> None:
    text = " ".join(CliRunner().invoke(main, ["--help"]).output.split())
    assert "WIRE" not in text
    assert all(name in text for name in SCENARIOS)
    assert "130, 143" in text


def test_gameday_interrupted_by_error_reports_played_scenarios(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def play(day: Any, _client: object, _scenarios: object) -> None:
        day.outcomes.append(outcome())
        raise StartupError("broker 1 is not back")

    monkeypatch.setattr(gameday_tool.GameDay, "play", play)
    svg = tmp_path / "day.svg"
    words = [*BOOTSTRAP, "--scenario", "all", "--svg", str(svg)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    assert "broker 1 is not back" in done.output
    assert "all 1,000 acknowledged records are there" in svg.read_text()
