"""A schedule with one fault of each given kind after the other."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.search.faults.schedule import Fault, Kind, Schedule, Shape
from tests.sim.search.seed_run import Outcome, SeedRun

_EVERY_MS = 2_500


def schedule_of(kinds: Sequence[Kind], *, every_ms: int = _EVERY_MS) -> Schedule:
    """Return a schedule with one fault of each kind, one after the other."""
    return tuple(
        Fault(
            number=number,
            at_ms=number * every_ms,
            kind=kind,
            broker=2,
            dir=1,
            other=3,
            for_ms=300,
            choice=number,
        )
        for number, kind in enumerate(kinds)
    )


def play(
    kinds: Sequence[Kind], *, controllers: int = 1, every_ms: int = _EVERY_MS, seed: int = 11
) -> Outcome:
    """Assert that each fault was played and ended, and that no invariant was broken."""
    schedule = schedule_of(kinds, every_ms=every_ms)
    outcome = SeedRun(seed, Shape(partitions=2, controllers=controllers), schedule).run()
    assert outcome.findings == []
    assert set(outcome.played) | set(outcome.skipped) == set(kinds)
    assert sum(outcome.skipped.values()) <= 1, outcome.skipped
    printed = "\n".join(outcome.story)
    for kind in outcome.played:
        assert f"{kind}" in printed and "is over" in printed
    return outcome
