"""The parts of a broker: what is built on its disks."""

from __future__ import annotations

import threading
from pathlib import Path

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.lifecycle_state import BrokerState
from kraftjbod.core.node_config import Endpoint
from kraftjbod.daemon.broker_disks import BrokerDisks, open_disks
from kraftjbod.daemon.broker_parts import BrokerParts
from kraftjbod.daemon.runner import Environment
from tests.faults.rig import CLUSTER_ID
from tests.unit.daemon.daemon_rig import broker_config, format_disk

NO_CONTROLLER = 9


async def _close(disks: BrokerDisks) -> None:
    await disks.logs.close(broker_epoch=-1)
    disks.metadata_dir.close()


async def test_nothing_runs_when_the_parts_are_built(tmp_path: Path) -> None:
    path = format_disk(tmp_path / "d1", 1)
    config = broker_config(NO_CONTROLLER, path)
    around, tasks = Environment(), BackgroundTasks()
    disks = await open_disks(config, around)
    threads = threading.active_count()
    advertised = [Endpoint("PLAINTEXT", "127.0.0.1", 9)]
    parts = BrokerParts(config, around, disks, advertised, tasks)
    assert len(tasks) == 0
    assert threading.active_count() == threads
    assert parts.lifecycle.broker_epoch == -1
    assert parts.lifecycle.state is not BrokerState.RUNNING
    assert parts.cache.cluster_id == CLUSTER_ID
    assert len(parts.hosted) == 0
    parts.channel.close()
    await _close(disks)


async def test_the_figures_of_a_broker_are_there_from_the_start(tmp_path: Path) -> None:
    path = format_disk(tmp_path / "d1", 1)
    config, around = broker_config(NO_CONTROLLER, path), Environment()
    disks = await open_disks(config, around)
    parts = BrokerParts(config, around, disks, (), BackgroundTasks())
    figures = around.metrics.snapshot()
    expected = {
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
    parts.channel.close()
    await _close(disks)
