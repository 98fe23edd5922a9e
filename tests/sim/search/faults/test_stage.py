from __future__ import annotations

import asyncio

from kraftjbod.core.ids import TopicPartition
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.sim.search.cluster_view import ClusterView
from tests.sim.search.faults.stage import Stage


def test_start_leaves_broker_down_while_a_fault_keeps_it_down() -> None:
    notes: list[str] = []
    with SimulatedCluster(3, log_dirs=1) as cluster:
        stage = Stage(cluster, ClusterView(cluster), topics={"t": 1}, note=notes.append)
        cluster.start()
        client = cluster.client("operator")

        async def stay_down() -> None:
            async with stage.broker_down(2):
                cluster.broker(2).kill()
                stage.start(2)
                assert not cluster.broker(2).is_up and notes == []

        client.run(stay_down())
        assert cluster.broker(2).is_serving and notes == ["broker 2 is started"]
        assert stage.replicas_in(2, "/broker-2/d0") == []
        assert stage.some_partitions(cluster.world.rng_of("test")) == [TopicPartition("t", 0)]


def test_stop_host_ends_although_the_broker_is_started_at_once() -> None:
    """A fault that starts brokers may do so before the fault that stopped one looks again."""
    with SimulatedCluster(4, log_dirs=1) as cluster:
        stage = Stage(cluster, ClusterView(cluster), topics={"t": 1}, note=lambda _: None)
        cluster.start()
        host = cluster.broker(2)
        stopped = host.process

        async def start_at_once() -> None:
            while host.process is stopped:
                await asyncio.sleep(0.001)
            stage.start(2)

        async def stop() -> None:
            starting = asyncio.create_task(start_at_once())
            await stage.stop_host(host)
            await starting

        cluster.client("operator").run(stop())
        assert host.process is not None and host.past == [stopped]
