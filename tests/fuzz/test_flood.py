"""A short fuzz run on real daemons with a fixed seed. ``make fuzz`` runs longer ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz import campaign

pytestmark = [pytest.mark.process, pytest.mark.clients]


@pytest.mark.timeout(600)
def test_daemons_under_a_flood_of_frames_serve_healthy_clients(tmp_path: Path) -> None:
    verdict = campaign.run(seed=11, frames=12_000, run_dir=tmp_path / "cluster")
    assert not verdict.failures, verdict.in_words()
    assert verdict.figures.outcomes["answered"] > 3_000, verdict.in_words()
