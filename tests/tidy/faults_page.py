"""docs/faults.md: the faults that test tools inject, drawn from the constants of the tools."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from kraftjbod.gameday import scenarios
from kraftjbod.testing import fuse_server, log_disks
from kraftjbod.testing.faults import DiskFault, Fault, ProcessFault
from kraftjbod.testing.simulation import disk_faults, simulated_host
from tests.faults import vfs_fault
from tests.soak import plan

#: The faults that each tool supports, by the head of its column.
TOOLS: Final[Mapping[str, Collection[Fault]]] = {
    "`LogDisk`": log_disks.FAULTS,
    "`FaultFs`": fuse_server.FAULTS,
    "simulation": {*disk_faults.FAULTS, DiskFault.ROT, *simulated_host.FAULTS},
    "game day": set(scenarios.FAULTS.values()),
    "soak": plan.FAULTS,
    "`FaultVfs`": vfs_fault.FAULTS,
}

_HEAD: Final = """# Faults of disks and processes

All test tools use the names of [testing/faults.py](../kraftjbod/testing/faults.py) for the faults that they inject.
`make docs` draws this page from the constants of the tools, and a test compares it with them.

- `LogDisk`: the disks of a `LocalCluster`, of several kinds; [testing.md](testing.md) lists the faults of each kind.
- `FaultFs`: a FUSE file system over a directory ([testing/fault_fs.py](../kraftjbod/testing/fault_fs.py)).
- simulation: [simulation.md](simulation.md) has the calls.
- game day: `kraftjbod-gameday` ([game-day.md](game-day.md)).
- soak and `FaultVfs`: tests of kraftjbod itself (`make soak`, `tests/faults/vfs_fault.py`).
"""


def page() -> str:
    """Return the text of docs/faults.md."""
    tables = [("Disks", list[Fault](DiskFault)), ("Processes and hosts", list[Fault](ProcessFault))]
    return "\n".join([_HEAD, *(_table(title, faults) for title, faults in tables)])


def _table(title: str, faults: Collection[Fault]) -> str:
    lines = [
        f"## {title}\n",
        f"| fault | meaning | {' | '.join(TOOLS)} |",
        "|---" * (2 + len(TOOLS)) + "|",
        *(
            f"| `{fault}` | {fault.meaning} | "
            + " | ".join("yes" if fault in supported else "" for supported in TOOLS.values())
            + " |"
            for fault in faults
        ),
    ]
    return "\n".join(lines) + "\n"
