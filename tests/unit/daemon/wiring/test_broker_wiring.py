"""``build_wiring``: the parts of a broker, built on its disks."""

from __future__ import annotations

from pathlib import Path

from kraftjbod.broker.cluster.lifecycle.lifecycle_state import BrokerState
from kraftjbod.daemon.process.environment import Environment
from tests.faults.rig import CLUSTER_ID
from tests.unit.daemon.daemon_rig import wiring_on


async def test_build_wiring_starts_nothing(tmp_path: Path) -> None:
    async with wiring_on(tmp_path) as wiring:
        assert wiring.cluster.lifecycle.broker_epoch == -1
        assert wiring.cluster.lifecycle.state is not BrokerState.RUNNING
        assert wiring.cluster.cache.cluster_id == CLUSTER_ID
        assert len(wiring.replicas.hosted) == 0


async def test_build_wiring_registers_metrics_of_the_broker(tmp_path: Path) -> None:
    around = Environment()
    async with wiring_on(tmp_path, around):
        figures = around.metrics.snapshot()
    expected = {
        "BackgroundJobFailures",
        "LeaderCount",
        "OfflineLogDirectoryCount",
        "OfflineReplicaCount",
        "PartitionCount",
        "ReplicaFetcherCount",
        "UnderMinIsrPartitionCount",
        "UnderReplicatedPartitions",
    }
    assert expected <= figures.keys()
    assert {figures[name] for name in expected} == {0}
