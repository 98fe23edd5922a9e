"""Clusters and failing disks for tests, of this project and of its users.

`LocalCluster` runs real daemons as processes on loopback, on disks that can fail for real.
The daemons have no fault switches: a test of such a switch would not show what a real disk does.
Read local_cluster.py first, then log_disks.py.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kraftjbod.testing.local_cluster import ClusterTimeoutError, LocalCluster

__all__ = ["ClusterTimeoutError", "LocalCluster"]


def __getattr__(name: str) -> Any:
    """Import lazily, because pytest loads this package in every run, with or without clusters."""
    if name in __all__:
        from kraftjbod.testing import local_cluster

        return getattr(local_cluster, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
