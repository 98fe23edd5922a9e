"""A separate run of one application with all invariants, also of deliberately broken code."""

from __future__ import annotations

from collections.abc import Sequence

from tests.sim.search.applications.application import Application
from tests.sim.search.applications.chosen import Kind
from tests.sim.search.faults.schedule import Fault, Shape
from tests.sim.search.faults.schedule import Kind as FaultKind
from tests.sim.search.seed_run import SeedRun

LIFE_MS = 14_000


def live(
    kind: Kind, faults: Sequence[FaultKind] = (FaultKind.RESET,)
) -> tuple[Application, list[str]]:
    """Return the application and the findings; the faults end before the application does."""
    schedule = tuple(
        Fault(
            number=number,
            at_ms=LIFE_MS - 5_000 * (len(faults) - number),
            kind=fault,
            broker=2,
            dir=1,
            other=3,
            for_ms=800,
            choice=number,
        )
        for number, fault in enumerate(faults, 1)
    )
    run = SeedRun(11, Shape(partitions=2), schedule, [kind], is_light=True)
    outcome = run.run()
    (application,) = run.applications
    return application, outcome.findings
