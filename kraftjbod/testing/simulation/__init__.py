"""Whole clusters in one process, under virtual time, broken at random from a seed.

`SimulatedCluster` builds the daemons as they are. Read first
`kraftjbod.testing.simulation.simulated_cluster`, then simulated_host.py and world.py.
`kraftjbod.testing.simulation.search.seed_run` breaks one and judges it, search.shrink
(`kraftjbod.testing.simulation.search.shrink`) says by which faults.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster

__all__ = ["SimulatedCluster"]


def __getattr__(name: str) -> Any:
    """Imported when it is asked for: the disks in memory are of use without daemons, too."""
    if name in __all__:
        from kraftjbod.testing.simulation import simulated_cluster

        return getattr(simulated_cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
