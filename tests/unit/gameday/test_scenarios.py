"""Scenarios and their limits of gaps."""

from __future__ import annotations

from kraftjbod.gameday.scenarios import (
    MAX_GAP_MS,
    MAX_METADATA_GAP_MS,
    MAY_PASS_UNNOTICED,
    OBSERVE,
    SCENARIOS,
)


def test_every_scenario_has_a_gap_limit() -> None:
    assert set(MAX_GAP_MS) == {*SCENARIOS, OBSERVE}
    assert set(SCENARIOS) > set(MAX_METADATA_GAP_MS)
    assert set(SCENARIOS) > MAY_PASS_UNNOTICED
    assert all(limit > 0 for limit in MAX_GAP_MS.values())
