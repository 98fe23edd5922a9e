from __future__ import annotations

from collections.abc import Sequence

from kraftjbod.testing.simulation.search.schedule import Fault, Kind, Shape
from kraftjbod.testing.simulation.search.seed_run import Outcome, SeedRun

_EVERY_MS = 2_500


def _run(kinds: Sequence[Kind]) -> Outcome:
    schedule = tuple(
        Fault(
            number=number,
            at_ms=number * _EVERY_MS,
            kind=kind,
            broker=2,
            dir=1,
            other=3,
            for_ms=300,
            choice=number,
        )
        for number, kind in enumerate(kinds)
    )
    return SeedRun(11, Shape(partitions=2), schedule).run()


def test_every_kind_is_played_mended_and_over() -> None:
    outcome = _run(list(Kind))
    assert outcome.findings == []
    assert set(outcome.played) | set(outcome.skipped) == set(Kind)
    assert sum(outcome.skipped.values()) <= 3
    told = "\n".join(outcome.story)
    for kind in outcome.played:
        assert f"{kind}" in told and "is over" in told
