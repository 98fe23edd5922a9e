"""From which disk a voter votes while the log names nobody."""

from __future__ import annotations

import json

import pytest

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster, SimulatedController


def _file_of(host: SimulatedController) -> str:
    return f"{host.metadata_disk.path}/__cluster_metadata-0/voter-directories"


def _known_by(host: SimulatedController) -> dict[int, str]:
    text = host.metadata_disk.vfs.read_if_exists(_file_of(host))
    return {int(node): directory for node, directory in json.loads(text or b"{}").items()}


def _restart_without_memory(cluster: SimulatedCluster, host: SimulatedController) -> None:
    host.stop()
    cluster.wait_for(lambda: not host.is_up, "it has stopped")
    host.metadata_disk.vfs.unlink_if_exists(_file_of(host))
    host.start()


def test_all_voters_of_a_static_quorum_know_each_other_s_disks() -> None:
    """Two that only follow knew of each other what a new disk of one of them said first."""
    with SimulatedCluster(2, controllers=3, brokers=1, log_dirs=1) as cluster:
        cluster.start()
        cluster.run_for(3_000)
        disks = {int(host.node_id): host.directory_id for host in cluster.controllers}
        for host in cluster.controllers:
            others = {n: str(disk) for n, disk in disks.items() if n != host.node_id}
            assert _known_by(host) == others, host.name


def test_one_that_never_heard_a_voter_asks_who_did_before_it_believes_another_disk() -> None:
    """It elected itself with an empty disk's vote; what the third had committed was lost."""
    with SimulatedCluster(2, controllers=3, brokers=1, log_dirs=1) as cluster:
        cluster.start()
        cluster.run_for(3_000)
        leader = next(host for host in cluster.controllers if host.is_active)
        away, replaced = (host for host in cluster.controllers if host is not leader)
        away.kill()
        client = cluster.client("client")
        client.run(create_topic(client.kafka, "t", partitions=1))
        for host in (leader, replaced):
            host.kill()
        away.metadata_disk.vfs.unlink_if_exists(_file_of(away))
        cluster.replace_metadata_disk(replaced, is_voter=True)
        for host in cluster.controllers:
            host.start()
        cluster.wait_for(lambda: any(host.is_active for host in cluster.controllers), "one leads")
        cluster.run_for(3_000)
        states = [host.state for host in (leader, away)]
        assert all(state is not None and "t" in state.topic_ids for state in states)
        assert _known_by(leader)[replaced.node_id] != str(replaced.directory_id)
        assert replaced.node_id not in _known_by(away)


@pytest.mark.parametrize("runs_already", [False, True])
def test_the_manual_s_way_back_for_a_disk_that_was_replaced(runs_already: bool) -> None:
    """Each other one forgets it in turn; what the next one still knows keeps it out until then."""
    with SimulatedCluster(3, controllers=3, brokers=1, log_dirs=1) as cluster:
        cluster.start()
        cluster.run_for(3_000)
        replaced, *others = sorted(cluster.controllers, key=lambda host: host.is_active)
        replaced.kill()
        cluster.replace_metadata_disk(replaced, is_voter=True)
        if runs_already:
            replaced.start()
        for host in others:
            cluster.run_for(3_000)
            assert replaced.state is None or not replaced.state.brokers, "it is refused"
            _restart_without_memory(cluster, host)
            cluster.wait_for(
                lambda: any(one.is_active for one in cluster.controllers), "one leads again"
            )
        if not runs_already:
            replaced.start()
        cluster.wait_for(
            lambda: replaced.state is not None and bool(replaced.state.brokers), "it follows"
        )
        cluster.run_for(3_000)
        for host in others:
            assert _known_by(host)[replaced.node_id] == str(replaced.directory_id)
