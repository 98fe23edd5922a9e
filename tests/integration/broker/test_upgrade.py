"""Upgrade from metadata versions without directories to several directories, and the downgrade.

The path of KIP-858, "Compatibility, Deprecation, and Migration Plan", with load during all of
it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kraftjbod.core.ids import MIGRATING_DIR, BrokerId, DirectoryId
from kraftjbod.local.cluster_process import directory_id
from tests.checkout import BIN
from tests.integration.checker import Load, judge
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

BROKERS = (BrokerId(1), BrokerId(2))
PARTITIONS = 4
MIGRATING = frozenset({MIGRATING_DIR})


def features(cluster: Cluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(BIN / "kraftjbod-features"), "--bootstrap-server", cluster.bootstrap, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        cwd="/",
    )


def format_controller(cluster: Cluster, release: str) -> None:
    words = ("format", "-t", cluster.local.cluster_id, "--release-version", release)
    config = str(cluster.local.controller.files.config_path)
    command = [*cluster.local.privileges.command_prefix, str(BIN / "kraftjbod-storage"), *words]
    done = subprocess.run(
        [*command, "--config", config], capture_output=True, text=True, check=False, timeout=60
    )
    assert f"with metadata.version {release}" in done.stdout, done.stderr


def give_dirs(cluster: Cluster, broker_id: BrokerId, count: int) -> list[Path]:
    """Configure ``count`` directories for a stopped broker."""
    files = cluster.brokers[broker_id].files
    dirs = [files.directory / f"disk-{number}" for number in range(1, count + 1)]
    for path in dirs:
        path.mkdir(exist_ok=True)
        cluster.local.privileges.give(path)
    lines = files.config_path.read_text().splitlines()
    kept = [line for line in lines if not line.startswith("log.dirs")]
    kept.append(f"log.dirs={','.join(map(str, dirs))}")
    files.config_path.write_text("\n".join(kept) + "\n")
    return dirs


def ids_of(paths: list[Path]) -> set[DirectoryId]:
    return {DirectoryId.parse(directory_id(path) or "") for path in paths}


def placed(cluster: Cluster, topic: str) -> dict[BrokerId, set[DirectoryId]]:
    """Return the directories that the metadata names for each broker's replicas."""
    found = cluster.metadata().topic(topic)
    assert found is not None
    return {
        broker_id: {
            directory
            for partition in found.partitions.values()
            if (directory := partition.directory_of(broker_id)) is not None
        }
        for broker_id in BROKERS
    }


def restart(cluster: Cluster, broker_id: BrokerId, dirs: int, topic: str) -> list[Path]:
    cluster.stop_daemon(cluster.brokers[broker_id])
    paths = give_dirs(cluster, broker_id, dirs)
    cluster.start_daemon(cluster.brokers[broker_id])
    cluster.wait_whole(topic)
    return paths


def refuses_several_dirs(cluster: Cluster, broker_id: BrokerId, topic: str) -> None:
    daemon = cluster.brokers[broker_id]
    cluster.stop_daemon(daemon)
    give_dirs(cluster, broker_id, 2)
    daemon.start()
    assert cluster.wait_exit(daemon) == 77
    assert "kraftjbod-features upgrade --metadata 3.7-IV2" in daemon.last_words()
    give_dirs(cluster, broker_id, 1)
    cluster.start_daemon(daemon)
    cluster.wait_whole(topic)


@pytest.mark.long
def test_upgrade_to_several_directories_under_load_keeps_broker_epochs_and_replicas(
    make_cluster: MakeCluster,
) -> None:
    """Brokers keep epoch and state (KAFKA-16162, KAFKA-16757, KAFKA-16952)."""
    cluster = make_cluster(
        start=False,
        brokers=2,
        dirs=1,
        config={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"},
    )
    format_controller(cluster, "3.6-IV2")
    cluster.start()
    assert "FinalizedVersionLevel: 3.6-IV2 " in features(cluster, "describe").stdout
    cluster.create_topic("t", partitions=PARTITIONS, replication_factor=2)
    before = cluster.metadata()
    assert not any(broker.known_log_dirs for broker in before.brokers.values())
    assert placed(cluster, "t") == dict.fromkeys(BROKERS, MIGRATING)
    with Load(cluster.bootstrap, "t", PARTITIONS) as load:
        refuses_several_dirs(cluster, BROKERS[1], "t")
        epochs = {id_: broker.epoch for id_, broker in cluster.metadata().brokers.items()}
        done = features(cluster, "upgrade", "--metadata", "3.7-IV2")
        assert done.stdout == "metadata.version was upgraded to 17.\n", done.stderr
        single = {id_: ids_of([cluster.local.dir_path(id_, 1)]) for id_ in BROKERS}
        cluster.wait(
            "every replica's directory to be known", lambda: placed(cluster, "t") == single
        )
        state = cluster.metadata()
        assert {id_: broker.epoch for id_, broker in state.brokers.items()} == epochs
        assert not any(broker.fenced for broker in state.brokers.values())
        several = {id_: ids_of(restart(cluster, id_, 3, "t")) for id_ in BROKERS}
        cluster.create_topic("fresh", partitions=6, replication_factor=2)
        cluster.wait(
            "new replicas on new disks",
            lambda: all(
                dirs <= several[id_] and len(dirs) > 1
                for id_, dirs in placed(cluster, "fresh").items()
            ),
        )
        assert placed(cluster, "t") == single
        load.stop()
    assert judge(cluster.bootstrap, "t", load).findings == []
    # A reader with a group id makes its client look for a coordinator, which creates the topic of
    # consumer groups sooner or later; wait for it, because it is counted below.
    with cluster.admin() as admin:
        cluster.wait("the topic of groups", lambda: admin.describe_groups(["checker"]))
    refused = features(cluster, "downgrade", "--metadata", "3.6-IV2")
    assert refused.returncode == 1
    assert "broker 1 has 3, broker 2 has 3" in refused.stdout
    partitions = sum(len(topic.partitions) for topic in cluster.metadata().topics.values())
    assert f"replicas of {partitions} partition(s)" in refused.stdout


def test_unsafe_downgrade_under_load_drops_directory_ids_until_the_next_upgrade(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=2, dirs=1)
    cluster.create_topic("t", partitions=PARTITIONS, replication_factor=2)
    single = {id_: ids_of([cluster.local.dir_path(id_, 1)]) for id_ in BROKERS}
    assert placed(cluster, "t") == single
    with Load(cluster.bootstrap, "t", PARTITIONS) as load:
        refused = features(cluster, "downgrade", "--metadata", "3.6-IV2", "--dry-run")
        assert "eligible.leader.replicas.version 1 needs metadata.version 4.3-IV0" in refused.stdout
        no_elr = "eligible.leader.replicas.version=0"
        assert features(cluster, "downgrade", "--feature", no_elr).returncode == 0
        refused = features(cluster, "downgrade", "--metadata", "3.6-IV2", "--dry-run")
        assert refused.stdout.startswith("Can not downgrade metadata.version to 14. ")
        assert "directories of the replicas of 4 partition(s)" in refused.stdout
        assert refused.stderr.strip().endswith("1 out of 1 operation(s) failed.")
        forced = features(cluster, "downgrade", "--metadata", "3.6-IV2", "--unsafe")
        assert forced.stdout == "metadata.version was downgraded to 14.\n", forced.stderr
        cluster.wait(
            "directories to be forgotten",
            lambda: placed(cluster, "t") == dict.fromkeys(BROKERS, MIGRATING),
        )
        before = load.acked_by_partition()
        cluster.wait(
            "progress of the load", lambda: load.flowed_since(before), explain=load.explain
        )
        assert features(cluster, "upgrade", "--feature", "metadata.version=17").returncode == 0
        cluster.wait(
            "every replica's directory to be known", lambda: placed(cluster, "t") == single
        )
        load.stop()
    assert judge(cluster.bootstrap, "t", load).findings == []


def test_static_cordon_applies_from_the_start(make_cluster: MakeCluster) -> None:
    """It applies at the broker and the controller, without any dynamic configuration."""
    cluster = make_cluster(start=False, brokers=2, dirs=2)
    for broker_id, cordoned in zip(BROKERS, ("disk-1", "*"), strict=True):
        files = cluster.brokers[broker_id].files
        value = cordoned if cordoned == "*" else str(files.directory / cordoned)
        with files.config_path.open("a") as config:
            config.write(f"cordoned.log.dirs={value}\n")
    cluster.start()
    brokers = cluster.metadata().brokers
    assert [len(brokers[id_].cordoned_log_dirs) for id_ in BROKERS] == [1, 2]
    cluster.create_topic("t", partitions=4, replication_factor=1)
    left = ids_of([cluster.local.dir_path(BROKERS[0], 2)])
    assert placed(cluster, "t") == {BROKERS[0]: left, BROKERS[1]: set()}
    with cluster.admin(BROKERS[0]) as admin:
        (answered,) = admin.describe_log_dirs(brokers=[BROKERS[0]])
    cordons = {entry["log_dir"]: entry["is_cordoned"] for entry in answered["log_dirs"]}
    assert sorted(cordons.values()) == [False, True]
    assert cordons[str(cluster.local.dir_path(BROKERS[0], 1))]
