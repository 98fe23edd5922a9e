from __future__ import annotations

import dataclasses

import pytest

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.core.ids import BrokerId, Uuid
from kraftjbod.raft.machine.messages import HardState, node
from kraftjbod.raft.machine.voter_set import ReplicaKey
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.sim.search.cluster_view import ClusterView
from tests.sim.search.quorum_invariants import QuorumInvariants


def test_illegal_behaviour_of_a_quorum_is_found() -> None:
    findings: list[str] = []
    with SimulatedCluster(3, controllers=3, brokers=1, log_dirs=1) as cluster:
        invariants = QuorumInvariants(ClusterView(cluster), found=findings.append)

        def look(after_ms: int = 100) -> list[str]:
            findings.clear()
            cluster.run_for(after_ms)
            invariants.look()
            return findings

        cluster.start()
        assert look() == []
        invariants.judge_replays()
        leader = next(host for host in cluster.controllers if host.is_active)
        follower = next(host for host in cluster.controllers if host is not leader)
        last = max(invariants.committed)
        assert leader.daemon is not None and leader.daemon.controller is not None
        core = leader.daemon.controller.driver.core

        invariants.judge_answers({b"never written"})
        assert look() == []
        invariants.judge_answers({b"never"})
        assert findings == ["b'never' was answered, and no controller ever committed it"]

        core._hard_state = HardState(term=core.term, voted_for=node(follower.node_id))
        assert "votes in term" in " ".join(look())
        core._hard_state = HardState(term=core.term, mute_before_term=core.term + 1)
        assert "may lack what it acknowledged" in " ".join(look())
        core._hard_state = HardState(term=core.term)

        led = core.leadership
        assert led is not None
        led.start_offset, began = led.committed_offset + 1, led.start_offset
        assert f"has counted who holds {led.committed_offset}" in " ".join(look())
        led.start_offset = began

        findings.clear()
        durable = core.log.durable_offset
        core.log.durable_offset += 10
        invariants.look()
        assert f"{leader.name} counts entries up to {durable + 10} as durable" in findings[0]
        core.log.durable_offset = durable

        invariants._leaders[core.term] = follower.name
        assert look() == [f"term {core.term} is led by {follower.name} and {leader.name}"]
        invariants._leaders[core.term] = leader.name

        invariants.committed[last] = dataclasses.replace(
            invariants.committed[last], payload=b"another"
        )
        follower.kill()
        follower.start()
        # The leader's next heartbeat tells the follower the committed offset.
        assert f"{follower.name} has committed entry {last}" in " ".join(look(after_ms=500))

        follower.kill()
        (directory,) = (
            f"{follower.metadata_disk.path}/{entry.name}"
            for entry in follower.metadata_disk.vfs.list_dir(follower.metadata_disk.path)
            if entry.is_dir
        )
        for entry in follower.metadata_disk.vfs.list_dir(directory):
            if entry.name.endswith(".log"):
                follower.metadata_disk.vfs.unlink_if_exists(f"{directory}/{entry.name}")
        # Otherwise the leader sends the lost entries again before the next check.
        cluster.network.partition(follower.name, leader.name)
        follower.start()
        # The others have that term too, so an observer may have sent it.
        invariants._cut_off[leader.name] = core.term - 2
        found = " ".join(look())
        assert f"{follower.name} has its log up to" in found
        assert "while it was cut off" not in found
        core._hard_state = HardState(term=core.term + 1)
        invariants.look()
        raised = f"{leader.name} raised its term to {core.term} while it was cut off"
        assert raised in findings
        core._hard_state = HardState(term=core.term - 1)

        invariants.forgets_all(follower.name)
        assert not invariants.is_lost, "two of three have all entries"
        invariants.forgets_all(leader.name)
        assert invariants.is_lost
        invariants._leaders[core.term] = follower.name
        assert look() == [], "the committed entries are unknown"


_SMALL_CACHES = {
    "metadata.max.cached.bytes": "1024",
    "metadata.log.max.record.bytes.between.snapshots": "2000",
    "metadata.log.retained.entries": "100",
}


def _make_topics(cluster: SimulatedCluster, names: str) -> None:
    client = cluster.client("operator")
    for name in names:
        client.run(create_topic(client.kafka, name, partitions=9, replication_factor=1))


def test_quorum_invariants_without_cached_entries_read_the_disk() -> None:
    findings: list[str] = []
    with SimulatedCluster(3, controllers=3, brokers=1, log_dirs=1, config=_SMALL_CACHES) as cluster:
        view = ClusterView(cluster)
        invariants = QuorumInvariants(view, found=findings.append)
        cluster.start()
        _make_topics(cluster, "abcdef")
        assert len(list(view.entries_from(0))) == 0, "the first entries have left the caches"
        invariants.look()
        assert sorted(invariants.committed) == list(range(max(invariants.committed) + 1))
        invariants.judge_answers({b"f", b"never"})
    assert findings == ["b'never' was answered, and no controller ever committed it"]


def test_snapshot_that_differs_from_replayed_entries_is_found() -> None:
    findings: list[str] = []
    with SimulatedCluster(3, controllers=3, brokers=1, log_dirs=1, config=_SMALL_CACHES) as cluster:
        invariants = QuorumInvariants(ClusterView(cluster), found=findings.append)
        cluster.start()
        _make_topics(cluster, "abcdef")
        cluster.run_for(1_000)
        invariants.look()
        assert invariants._snapshots
        invariants.judge_snapshots()
        assert findings == []
        for offset, (name, records) in invariants._snapshots.items():
            invariants._snapshots[offset] = name, records[:-1]
        invariants._compared_snapshots.clear()
        invariants.look()
        invariants.judge_snapshots()
    assert any("snapshots of" in one and "differ" in one for one in findings), findings
    assert any("is not what entries replay to" in one for one in findings), findings


@pytest.mark.parametrize("late_ms", [900, 1_100])
def test_controller_that_acts_after_its_lease_is_found(late_ms: int) -> None:
    findings: list[str] = []
    with SimulatedCluster(3, controllers=3, brokers=1, log_dirs=1) as cluster:
        invariants = QuorumInvariants(ClusterView(cluster), found=findings.append)
        cluster.start()
        invariants.look()
        leader = next(host for host in cluster.controllers if host.is_active)
        assert leader.daemon is not None and leader.daemon.controller is not None
        term = leader.daemon.controller.driver.term
        invariants._leaders[term + 1] = "another"
        invariants._led_from_ms[term + 1] = cluster.now_ms - late_ms
        invariants.look()
    assert bool(findings) is (late_ms > 1_000)
    if findings:
        assert findings == [
            f"{leader.name} acts as the leader of term {term} more than 1000 ms after another "
            f"began to lead term {term + 1}"
        ]


def test_controller_that_follows_another_log_without_a_new_disk_is_found() -> None:
    findings: list[str] = []
    with SimulatedCluster(3, controllers=3, brokers=1, log_dirs=1) as cluster:
        invariants = QuorumInvariants(ClusterView(cluster), found=findings.append)
        cluster.start()
        invariants.look()
        (host, other, _), another = cluster.controllers, Uuid(bytes(15) + b"1")
        invariants.forgets_all(other.name)
        for one in (host, other):
            assert one.state is not None
            one.state.metadata_log_id = another
        invariants.look()
    assert len(findings) == 1, findings
    assert findings[0].startswith(f"{host.name} followed metadata log")
    assert findings[0].endswith(f"and follows {another}")


def test_voter_that_follows_a_controller_of_another_log_is_found() -> None:
    findings: list[str] = []
    with SimulatedCluster(3, controllers=3, brokers=1, log_dirs=1) as cluster:
        invariants = QuorumInvariants(ClusterView(cluster), found=findings.append)
        cluster.start()
        cluster.run_for(100)
        invariants.look()
        follower, mistaken = [host for host in cluster.controllers if not host.is_active]
        mistaken.kill()
        cluster.replace_metadata_disk(mistaken, is_standalone=True)
        invariants.forgets_all(mistaken.name)
        mistaken.start()
        cluster.run_for(1_000)
        invariants.look()
        assert findings == []
        assert follower.daemon is not None and follower.daemon.controller is not None
        key = ReplicaKey(BrokerId(mistaken.node_id), mistaken.directory_id)
        follower.daemon.controller.driver.core.leader = key
        invariants.look()
        assert findings == [f"{follower.name} follows {key}, which has another metadata log"]
