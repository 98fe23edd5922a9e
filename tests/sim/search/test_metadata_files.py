from __future__ import annotations

from kraftjbod.cli.clients.cluster_admin import UpgradeType, create_topic, update_features
from kraftjbod.core.metadata_version import KRAFT_VERSION
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.sim.search.metadata_files import (
    names_voters,
    snapshot_records,
    stored_entries,
)

_CONFIG = {
    "metadata.log.max.record.bytes.between.snapshots": "1000",
    "metadata.log.segment.bytes": "1024",
    "metadata.log.retained.entries": "1000",
}


def test_stored_entries_equal_those_of_the_controller_and_a_removed_snapshot_is_none() -> None:
    with SimulatedCluster(1, brokers=1, log_dirs=1, config=_CONFIG) as cluster:
        cluster.start()
        client = cluster.client("operator")
        for name in "abcdefgh":
            client.run(create_topic(client.kafka, name, partitions=3, replication_factor=1))
        cluster.run_for(2_000)
        host = cluster.controller()
        assert host.daemon is not None and host.daemon.controller is not None
        driver = host.daemon.controller.driver
        last = driver.committed_offset
        found = list(stored_entries(host.metadata_disk, 0, last))
        assert [entry.offset for entry in found] == list(range(last + 1))
        assert found == [driver.committed.cache[offset] for offset in range(last + 1)]
        assert [entry.offset for entry in stored_entries(host.metadata_disk, 3, 5)] == [3, 4, 5]
        snapshot = driver._store.newest_snapshot
        assert snapshot is not None
        records = snapshot_records(host.metadata_disk, snapshot)
        assert records
        path = f"{host.metadata_disk.path}/__cluster_metadata-0/{snapshot.file_name}"
        host.metadata_disk.vfs.unlink_if_exists(path)
        assert snapshot_records(host.metadata_disk, snapshot) is None


def test_names_voters_finds_the_voter_set_that_an_upgrade_appends() -> None:
    with SimulatedCluster(1, brokers=1, log_dirs=1, config=_CONFIG) as cluster:
        cluster.start()
        disk = cluster.controller().metadata_disk
        assert not names_voters(disk)
        client = cluster.client("operator")
        client.run(
            update_features(client.kafka, {KRAFT_VERSION: 1}, upgrade_type=UpgradeType.UPGRADE)
        )
        assert names_voters(disk)
