from __future__ import annotations

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.sim.search.cluster_view import ClusterView


def test_cluster_view_lists_reasons_why_cluster_is_not_recovered() -> None:
    with SimulatedCluster(5, log_dirs=2) as cluster:
        view = ClusterView(cluster)
        assert view.not_whole(2) == ["no controller leads"]
        cluster.start()
        client = cluster.client("alice")
        client.run(create_topic(client.kafka, "t", partitions=2, replication_factor=3))
        cluster.wait_for(lambda: not view.not_whole(2), "the topic is there")
        assert [str(one.tp) for one in view.partitions()] == ["t-0", "t-1"]
        assert view.left_behind() == view.not_replayed() == []
        entries = list(view.entries_from(0))
        assert entries[-1].offset == view.committed_offset()

        ((_, registration, topic_id), *_) = view.partitions()
        assert view.newest_epoch(topic_id, 0) == registration.leader_epoch >= 0
        assert view.newest_epoch(topic_id, 9) == view.newest_epoch(TopicId(bytes(16)), 0) == -1

        leader, tp = registration.leader, TopicPartition("t", 0)
        assert [view.settled_end(broker, tp) for broker in view.broker_ids].count(0) == 1
        assert view.settled_end(leader, tp) == 0
        assert view.settled_end(leader, TopicPartition("t", 9)) is None

        replica = view.replica(2, TopicPartition("t", 0))
        assert replica is not None and replica.handle is not None
        assert view.misconfigured() == []
        config = replica.handle.config
        replica.handle.set_config(config.model_copy(update={"retention_ms": 7}))
        assert view.misconfigured() == ["t-0 has another configuration in broker 2"]
        replica.handle.set_config(config)
        path = replica.handle.log_dir.path
        cluster.disks[path].faults.begin_fault(DiskFault.EIO)
        cluster.run_for(2_000)
        assert view.dir_state(2, path) is LogDirState.OFFLINE
        assert "broker 2 has 1 of 2 directories online" in view.not_whole(2)
        cluster.broker(2).kill()
        assert view.not_whole(2) == ["broker 2 does not serve"]
        assert view.dirs(2) == view.replicas(2) == []
        assert [one.split(" has")[0] for one in view.not_replayed()] == ["broker 2"]
