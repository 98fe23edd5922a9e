"""Every step of a move between two directories, combined with every failure at that moment.

A replica with some megabytes and a writer (acks=all) moves to the broker's other directory. Exactly
at the step, the broker is killed (SIGKILL), or the source or target directory returns EIO from then
on, or the controller is killed. Then the killed daemons are restarted with healthy disks. At
any progress of the move, afterwards

* exactly one current replica is on the broker's disks, and no remains of the other;
* metadata names its directory, and the in-sync set is complete;
* no acknowledged record is missing, repeated or reordered, and the writer continues;
* the move has ended or was reverted, and no assignment is queued.

One fixture runs all cells, several at a time; the tests check their results one by one. Steps that
differ only by the effect of a power failure (before and after an fsync) are one step here, because
a killed process keeps the page cache; tests/faults has the others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from tests.integration import faulty_broker
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.faulty_broker import Trap
from tests.integration.moves.move_cells import Cell, Happens, Outcome, run_cells

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(600)]

CONFIG: Final = {
    "broker.session.timeout.ms": "1500",
    "broker.heartbeat.interval.ms": "300",
    "log.segment.delete.delay.ms": "500",
    "metrics.snapshot.interval.ms": "100",
    "telemetry.level": "debug",
}

STEPS: Final[dict[str, Trap]] = {
    "future-dir-created": Trap(kind="make_dirs", path="{target}/{topic}-0.*-future", after=True),
    "first-bytes-copied": Trap(kind="copy_from", path="{target}/{topic}-0.*-future/*.log", nth=2),
    "bytes-synced": Trap(kind="sync", path="{target}/{topic}-0.*-future/*.log", after=True),
    "checkpoint-written": Trap(
        kind="rename",
        path="{target}/{topic}-0.*-future/future-copy-checkpoint.tmp",
        nth=2,
        after=True,
    ),
    "assignment-requested": Trap(event="replica_move_phase", fields={"phase": "queued"}),
    "assignment-accepted": Trap(event="replica_move_phase", fields={"phase": "accepted"}),
    "gate-closed": Trap(event="replica_move_phase", fields={"phase": "swapping"}),
    "epochs-carried-over": Trap(
        kind="rename", path="{target}/{topic}-0.*-future/leader-epoch-checkpoint.tmp", after=True
    ),
    "source-to-be-renamed": Trap(kind="rename", path="{source}/{topic}-0"),
    "source-renamed": Trap(kind="rename", path="{source}/{topic}-0", after=True),
    "future-to-be-renamed": Trap(kind="rename", path="{target}/{topic}-0.*-future"),
    "future-renamed": Trap(kind="rename", path="{target}/{topic}-0.*-future", after=True),
    "copies-swapped": Trap(event="replica_moved"),
    "purge-begins": Trap(kind="remove_tree", path="{source}/{topic}-0.*-delete"),
    "purged": Trap(kind="remove_tree", path="{source}/{topic}-0.*-delete", after=True),
}
# With three replicas, the cluster continues without this broker. These cells cover the steps at
# which its return differs.
_STEPS_OF_MANY: Final = (
    "first-bytes-copied",
    "assignment-accepted",
    "source-renamed",
    "future-renamed",
)
_ONE_BROKER: Final = (Happens.BROKER_KILLED, Happens.SOURCE_DIES, Happens.TARGET_DIES)


def _cell(step: str, what: Happens, replicas: int) -> Cell:
    return Cell(step=step, trap=STEPS[step], what=what, replicas=replicas)


CELLS: Final = [
    *(_cell(step, what, 1) for step in STEPS for what in Happens),
    *(_cell(step, what, 3) for step in _STEPS_OF_MANY for what in _ONE_BROKER),
]


@pytest.fixture(scope="module")
def outcomes(
    request: pytest.FixtureRequest, make_shared_cluster: MakeCluster
) -> Mapping[str, Outcome]:
    """Run every selected cell, and return their results."""
    asked = [
        cell
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.path == request.path
        for cell in item.callspec.params.values()
        if isinstance(cell, Cell)
    ]
    asked.sort(key=CELLS.index)
    shared = [cell for cell in asked if cell.what is not Happens.CONTROLLER_KILLED]
    alone = [cell for cell in asked if cell.what is Happens.CONTROLLER_KILLED]
    parameters: dict[str, Any] = {
        "dirs": 2,
        "config": CONFIG,
        "broker_command": faulty_broker.COMMAND,
    }
    work: list[tuple[Cluster, list[Cell]]] = []
    if shared:
        work.append((make_shared_cluster(brokers=3, **parameters), shared))
    if alone:
        work.append((make_shared_cluster(brokers=1, **parameters), alone))
    return run_cells(work)


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_move_with_a_failure_at_each_step_breaks_no_invariant(
    outcomes: Mapping[str, Outcome], cell: Cell
) -> None:
    outcome = outcomes[str(cell)]
    print(f"{outcome.seconds:.1f} s, {'moved' if outcome.moved else 'stayed'}")
    assert not outcome.findings, "\n".join(outcome.findings)
