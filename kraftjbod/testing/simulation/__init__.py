"""Whole clusters in one process, under virtual time, with faults on request.

ADR 85 explains the design. `SimulatedCluster` builds the real daemons. Read first
`kraftjbod.testing.simulation.simulated_cluster`, then simulated_host.py and world.py.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster

__all__ = ["SimulatedCluster"]


def __getattr__(name: str) -> Any:
    """Import lazily, so that the disks in memory can be used without importing the daemons."""
    if name in __all__:
        from kraftjbod.testing.simulation import simulated_cluster

        return getattr(simulated_cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
