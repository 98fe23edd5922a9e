"""Directories are reattached, added and forgotten while their broker runs, under load.

Three brokers, RF 3, ``min.insync.replicas`` 2, acks=all, the verifying producer; the tool sends the
requests. No acknowledged record is lost, in-sync sets are complete again, and the broker is the
same process with the same epoch."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from kafka.admin import ConfigResource, ConfigResourceType

from kraftjbod.core.ids import BrokerId
from kraftjbod.local.cluster_process import directory_id
from kraftjbod.metadata.records import ResourceType
from kraftjbod.testing import mounts
from kraftjbod.testing.mounts import Disk, Kind
from tests.integration.checker import Load, judge
from tests.integration.cluster import WAIT_S, Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.tools import tool

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

BROKER = 2
PARTITIONS = 6
TOPIC = "wanted"
MANY = 30
DISK_BYTES = 256 * 1024 * 1024


def _start(make_cluster: MakeCluster, **parameters: object) -> Cluster:
    config = {"broker.session.timeout.ms": "6000"}
    cluster = make_cluster(
        **{"brokers": 3, "dirs": 2, "config": config, **parameters}  # type: ignore[arg-type]
    )
    cluster.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3, min_insync_replicas=2)
    return cluster


def order(cluster: Cluster, *words: str) -> tuple[int, str]:
    """Return exit code and output of the tool."""
    done = tool("log-dirs", cluster, *words)
    return done.returncode, done.stdout + done.stderr


def ordered(cluster: Cluster, *words: str) -> str:
    code, said = order(cluster, *words)
    assert code == 0, said
    return said


def _cordon(path: str) -> ConfigResource:
    changed = {"cordoned.log.dirs": path}
    return ConfigResource(ConfigResourceType.BROKER, str(BROKER), configs=changed)


def refused(cluster: Cluster, *words: str) -> str:
    code, said = order(cluster, *words)
    assert code == 1, said
    return said


def _flowing(cluster: Cluster, load: Load) -> None:
    before = load.acked_by_partition()
    cluster.wait(
        "progress in every partition", lambda: load.flowed_since(before, MANY), explain=load.explain
    )


def _errors(cluster: Cluster) -> dict[str, int]:
    return {path: found.error for path, found in cluster.directories(BROKER).items()}


def _epoch(cluster: Cluster) -> int:
    return cluster.metadata().brokers[BrokerId(BROKER)].epoch


def _go_offline(cluster: Cluster, path: Path, count: int = 1) -> None:
    """Wait until the broker and the cluster know that the directory is offline."""
    cluster.wait_event(cluster.brokers[BROKER], "log_dir_offline", count)
    cluster.wait(
        "the cluster to know",
        lambda: any(BROKER in part.offline for part in cluster.partitions(TOPIC).values()),
    )


class Same:
    """Checks that the broker neither restarts nor gets another epoch."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = (cluster.brokers[BROKER].pid, _epoch(cluster))

    def check(self) -> None:
        now = (self._cluster.brokers[BROKER].pid, _epoch(self._cluster))
        assert now == self._before
        assert self._cluster.brokers[BROKER].is_running


def test_directory_is_reattached_under_load_after_its_permissions_return(
    make_cluster: MakeCluster,
) -> None:
    cluster = _start(make_cluster)
    cluster.create_topic("alone", partitions=4, assignments={n: [BROKER] for n in range(4)})
    same = Same(cluster)
    path = cluster.local.dir_path(BROKER, 1)
    alone = set(cluster.replicas_by_dir(BROKER, "alone")[str(path)])
    assert alone
    with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        _flowing(cluster, load)
        with mounts.closed_to_owner(str(path)):
            _go_offline(cluster, path)
            _flowing(cluster, load)
            said = refused(cluster, "--reattach", f"{BROKER}:{path}")
            assert "Permission denied" in said
        said = ordered(cluster, "--reattach", f"{BROKER}:{path}")
        assert f"is back at {path}" in said
        cluster.wait_whole(TOPIC)
        # Only this broker has replicas of them; their leader is back.
        cluster.wait_whole("alone")
        _flowing(cluster, load)
        load.stop()
    assert set(_errors(cluster).values()) == {0}
    same.check()
    assert judge(cluster.bootstrap, TOPIC, load).findings == []
    said = refused(cluster, "--reattach", f"{BROKER}:{path}")
    assert "is online: only a directory that is OFFLINE is brought back" in said
    # The directory can fail again.
    with mounts.closed_to_owner(str(path)):
        _go_offline(cluster, path, 2)
    ordered(cluster, "--reattach", f"{BROKER}:dirid:{directory_id(path)}")
    cluster.wait_whole(TOPIC)


def test_removed_replica_directory_takes_its_log_dir_offline(make_cluster: MakeCluster) -> None:
    """A leader without its directory cannot roll its log: another broker has to lead (KIP-18).

    Both directories are on one file system, so the broker may put all replicas into one of them.
    """
    config = {"broker.session.timeout.ms": "6000", "log.segment.bytes": "16384"}
    cluster = _start(make_cluster, config=config)
    same = Same(cluster)
    by_dir = cluster.replicas_by_dir(BROKER, TOPIC)
    path = Path(max(by_dir, key=lambda path: len(by_dir[path])))
    with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        _flowing(cluster, load)
        for partition in by_dir[str(path)]:
            shutil.rmtree(path / f"{TOPIC}-{partition}")
        _go_offline(cluster, path)
        _flowing(cluster, load)
        ordered(cluster, "--reattach", f"{BROKER}:{path}")
        cluster.wait_whole(TOPIC)
        _flowing(cluster, load)
        load.stop()
    same.check()
    assert judge(cluster.bootstrap, TOPIC, load).findings == []


@contextlib.contextmanager
def disks(kind: Kind = "ext4", count: int = 2) -> Iterator[list[Disk]]:
    """Real disks for the directories of :data:`BROKER`, with mount points that anybody may
    write."""
    if (reason := mounts.why_not(kind)) is not None:
        pytest.skip(reason)
    with contextlib.ExitStack() as stack:
        made = [
            stack.enter_context(mounts.mounted(kind, size_bytes=DISK_BYTES)) for _ in range(count)
        ]
        for disk in made:
            disk.unmount()
            os.chmod(disk.path, 0o777)
            disk.mount()
            os.chmod(disk.path, 0o777)
        yield made


def _on(cluster_disks: list[Disk]) -> dict[str, object]:
    return {"log_dirs": {BROKER: [Path(disk.path) for disk in cluster_disks]}}


def _unmount(cluster: Cluster, disk: Disk) -> None:
    """Unmount once the broker has closed its files on the disk."""

    def is_done() -> bool:
        with contextlib.suppress(mounts.DiskKitError):
            disk.unmount()
        return not disk.is_mounted

    cluster.wait(f"{disk.path} to be unmounted", is_done)


@pytest.mark.sampled(1)
@pytest.mark.disk
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_failed_disk_is_unmounted_repaired_and_reattached(
    make_cluster: MakeCluster, kind: Kind
) -> None:
    """The broker keeps running; it has no open file on the failed disk any more."""
    with disks(kind) as (bad, good), contextlib.ExitStack() as stack:
        cluster = _start(make_cluster, **_on([bad, good]))
        stack.callback(cluster.local.kill)
        uid = directory_id(Path(bad.path))
        assert cluster.replicas_by_dir(BROKER, TOPIC)[bad.path]
        same = Same(cluster)
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            _flowing(cluster, load)
            bad.shut_down()
            _go_offline(cluster, Path(bad.path))
            assert "Input/output error" in refused(cluster, "--reattach", f"{BROKER}:{bad.path}")
            _unmount(cluster, bad)
            said = refused(cluster, "--reattach", f"{BROKER}:{bad.path}")
            assert f"directory {uid} is missing from {bad.path}" in said
            assert os.listdir(bad.path) == []
            bad.repair()
            bad.mount(options="loop,ro")
            said = refused(cluster, "--reattach", f"{BROKER}:{bad.path}")
            assert "Read-only file system" in said
            _unmount(cluster, bad)
            bad.mount()
            _flowing(cluster, load)
            ordered(cluster, "--reattach", f"{BROKER}:dirid:{uid}")
            cluster.wait_whole(TOPIC)
            _flowing(cluster, load)
            load.stop()
        same.check()
        assert set(_errors(cluster).values()) == {0}
        assert judge(cluster.bootstrap, TOPIC, load).findings == []


@pytest.mark.disk
def test_unreported_failure_with_lost_tail_loses_no_acknowledged_record(
    make_cluster: MakeCluster,
) -> None:
    """The leader's disk loses its unflushed tail and is reattached before a controller runs
    again."""
    with disks() as (bad, good), contextlib.ExitStack() as stack:
        config = {"broker.session.timeout.ms": "6000", "log.dir.failure.timeout.ms": "600000"}
        cluster = _start(make_cluster, **_on([bad, good]), config=config)
        stack.callback(cluster.local.kill)
        broker, controller = cluster.brokers[BROKER], cluster.local.controller
        same, before = Same(cluster), _epochs(cluster)
        # Move a partition that the broker leads to this disk.
        led = {index for index, part in cluster.partitions(TOPIC).items() if part.leader == BROKER}
        _move(cluster, led, bad.path)
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            _flowing(cluster, load)
            controller.kill()
            _flowing(cluster, load)
            bad.shut_down()
            cluster.wait_event(broker, "log_dir_offline")
            _unmount(cluster, bad)
            bad.repair()
            bad.mount()
            with ThreadPoolExecutor(1) as pool:
                coming = pool.submit(ordered, cluster, "--reattach", f"{BROKER}:{bad.path}")
                cluster.wait(
                    "its logs to be loaded",
                    lambda: any(
                        event["done"] == event["total"]
                        for event in broker.events("arriving_logs_loading")
                    ),
                )
                cluster.start_daemon(controller)
                assert "is back at" in coming.result()
            cluster.wait_whole(TOPIC)
            _flowing(cluster, load)
            load.stop()
        same.check()
        assert judge(cluster.bootstrap, TOPIC, load).findings == []
        after = _epochs(cluster)
        assert all(after[index] > before[index] for index in led)


def _epochs(cluster: Cluster) -> dict[int, int]:
    """Return the leader epoch of each partition."""
    topic = cluster.metadata().topic(TOPIC)
    assert topic is not None
    return {index: part.leader_epoch for index, part in topic.partitions.items()}


def _move(cluster: Cluster, partitions: Collection[int], path: str) -> None:
    with cluster.admin(BROKER) as admin:
        admin.alter_replica_log_dirs({(TOPIC, index, BROKER): path for index in partitions})
    cluster.wait(
        f"partitions {partitions} to be in {path}",
        lambda: set(partitions) <= set(cluster.replicas_by_dir(BROKER, TOPIC)[path]),
    )


@pytest.mark.long
@pytest.mark.disk
def test_wiped_disk_is_forgotten_and_added_as_a_new_one(make_cluster: MakeCluster) -> None:
    with disks() as (bad, good), contextlib.ExitStack() as stack:
        cluster = _start(make_cluster, **_on([bad, good]))
        stack.callback(cluster.local.kill)
        path, uid = bad.path, directory_id(Path(bad.path))
        same = Same(cluster)
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            _flowing(cluster, load)
            bad.shut_down()
            _go_offline(cluster, Path(path))
            _unmount(cluster, bad)
            bad.wipe()
            bad.mount()
            os.chmod(path, 0o777)
            said = refused(cluster, "--reattach", f"{BROKER}:{path}")
            assert f"directory {uid} is missing from {path}" in said
            assert "already" in refused(cluster, "--add", f"{BROKER}:{path}")
            said = ordered(cluster, "--forget", f"{BROKER}:{path}")
            assert f"directory {uid} at {path} is forgotten" in said
            cluster.wait_whole(TOPIC)
            assert list(cluster.replicas_by_dir(BROKER, TOPIC)[good.path]) == list(
                range(PARTITIONS)
            )
            said = ordered(cluster, "--add", f"{BROKER}:{path}")
            fresh = directory_id(Path(path))
            assert fresh not in (None, uid)
            assert f"directory {fresh} was added at {path}" in said
            _flowing(cluster, load)
            load.stop()
        same.check()
        cluster.create_topic("spread", assignments={index: [BROKER] for index in range(6)})
        assert cluster.replicas_by_dir(BROKER, "spread")[path]
        assert judge(cluster.bootstrap, TOPIC, load).findings == []
        cluster.stop_daemon(cluster.brokers[BROKER])
        cluster.start_daemon(cluster.brokers[BROKER])
        cluster.wait_whole(TOPIC)
        cluster.wait_whole("spread")
        assert _errors(cluster) == {path: 0, good.path: 0}


@pytest.mark.long
@pytest.mark.disk
def test_disks_with_swapped_mount_points_are_found_by_id(make_cluster: MakeCluster) -> None:
    with disks() as (one, other), contextlib.ExitStack() as stack:
        cluster = _start(make_cluster, **_on([one, other]))
        stack.callback(cluster.local.kill)
        before = cluster.replicas_by_dir(BROKER, TOPIC)
        ids = {path: directory_id(Path(path)) for path in (one.path, other.path)}
        cluster.stop_daemon(cluster.brokers[BROKER])
        one.unmount()
        other.unmount()
        one.mount(at=other.path)
        other.mount(at=one.path)
        cluster.start_daemon(cluster.brokers[BROKER])
        cluster.wait_whole(TOPIC)
        assert directory_id(Path(one.path)) == ids[other.path]
        after = cluster.replicas_by_dir(BROKER, TOPIC)
        assert (after[one.path], after[other.path]) == (before[other.path], before[one.path])


def test_permanently_lost_directory_is_forgotten(make_cluster: MakeCluster) -> None:
    """Its replicas are recreated from others; the last in-sync replica is not abandoned."""
    cluster = _start(make_cluster)
    cluster.create_topic("alone", partitions=4, assignments={n: [BROKER] for n in range(4)})
    same = Same(cluster)
    gone, left = (cluster.local.dir_path(BROKER, n) for n in (1, 2))
    with cluster.admin() as admin:
        admin.alter_configs([_cordon(str(gone))])
    alone = cluster.replicas_by_dir(BROKER, "alone")[str(gone)]
    assert alone
    said = refused(cluster, "--forget", f"{BROKER}:{gone}")
    assert "is online and holds" in said
    with (
        mounts.closed_to_owner(str(gone)),
        Load(cluster.bootstrap, TOPIC, PARTITIONS) as load,
    ):
        _flowing(cluster, load)
        _go_offline(cluster, gone)
        said = refused(cluster, "--forget", f"{BROKER}:{gone}")
        assert "holds the last in-sync replica of " in said
        assert all(f"alone-{index}" in said for index in alone)
        assert TOPIC not in said
        assert "alone" in refused(cluster, "--forget", f"{BROKER}:{gone}", "--force")
        with cluster.admin() as admin:
            admin.delete_topics(["alone"])
        assert "its cordon is lifted" in ordered(cluster, "--forget", f"{BROKER}:{gone}")
        cluster.wait_whole(TOPIC)
        _flowing(cluster, load)
        load.stop()
        assert _errors(cluster) == {str(left): 0}
        own = cluster.metadata().configs[ResourceType.BROKER, str(BROKER)]
        assert own["cordoned.log.dirs"] == "", "a new disk there accepts replicas"
        same.check()
        assert judge(cluster.bootstrap, TOPIC, load).findings == []
        said = refused(cluster, "--forget", f"{BROKER}:{left}")
        assert "is the last directory of this broker" in said


def test_forget_of_last_replica_with_unclean_election_enabled_requires_force(
    make_cluster: MakeCluster,
) -> None:
    cluster = _start(make_cluster)
    cluster.create_topic(
        "cache",
        partitions=4,
        assignments={n: [BROKER] for n in range(4)},
        unclean_leader_election_enable=True,
    )
    gone = cluster.local.dir_path(BROKER, 1)
    with mounts.closed_to_owner(str(gone)):
        _go_offline(cluster, gone)
        assert "cache-" in refused(cluster, "--forget", f"{BROKER}:{gone}")
        ordered(cluster, "--forget", f"{BROKER}:{gone}", "--force")
        cluster.wait_whole("cache")
        cluster.wait_whole(TOPIC)


def _new_dir(cluster: Cluster, name: str = "disk-9") -> Path:
    new = cluster.brokers[BROKER].files.directory / name
    new.mkdir()
    cluster.local.privileges.give(new)
    return new


def test_new_directory_is_added_under_load_and_forgotten_when_empty(
    make_cluster: MakeCluster,
) -> None:
    """It is known after a restart, configured or not; an empty directory can be forgotten."""
    cluster = _start(make_cluster)
    broker = cluster.brokers[BROKER]
    same, new = Same(cluster), _new_dir(cluster)
    with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        _flowing(cluster, load)
        ordered(cluster, "--add", f"{BROKER}:{new}")
        cluster.create_topic("spread", assignments={index: [BROKER] for index in range(6)})
        assert cluster.replicas_by_dir(BROKER, "spread")[str(new)]
        same.check()
        cluster.stop_daemon(broker)
        cluster.start_daemon(broker)
        assert broker.events("added_log_dir_not_configured")[-1]["log_dir"] == str(new)
        cluster.wait_whole("spread")
        cluster.wait_whole(TOPIC)
        _flowing(cluster, load)
        load.stop()
    same = Same(cluster)
    assert "drain it first" in refused(cluster, "--forget", f"{BROKER}:{new}")
    with cluster.admin() as admin:
        admin.delete_topics(["spread"])
    for index in cluster.replicas_by_dir(BROKER, TOPIC)[str(new)]:
        raise AssertionError(f"{TOPIC}-{index} was made before the directory came")
    # The topic is deleted before its replicas are.
    forget = ("--forget", f"{BROKER}:{new}")
    cluster.wait("the directory to be empty and go", lambda: order(cluster, *forget)[0] == 0)
    same.check()
    assert str(new) not in _errors(cluster)
    # Its lock is released, and it can be added like any disk of this node.
    ordered(cluster, "--add", f"{BROKER}:{new}")
    assert _errors(cluster)[str(new)] == 0
    assert judge(cluster.bootstrap, TOPIC, load).findings == []


def test_add_refuses_unusable_directories_and_logs_the_reason(make_cluster: MakeCluster) -> None:
    cluster = _start(make_cluster)
    home = cluster.brokers[BROKER].files.directory
    full = _new_dir(cluster, "full")
    (full / "a-file").touch()
    barred = _new_dir(cluster, "barred")
    barred.chmod(0o555)
    foreign = _new_dir(cluster, "foreign")
    meta = (cluster.local.dir_path(BROKER, 1) / "meta.properties").read_text()
    (foreign / "meta.properties").write_text(meta.replace("node.id=2", "node.id=1"))
    cluster.local.privileges.give(foreign / "meta.properties")
    for path, said in {
        str(cluster.local.dir_path(BROKER, 1) / "below"): "is below the other",
        str(home): "is refused: name a directory below",
    }.items():
        assert said in refused(cluster, "--add", f"{BROKER}:{path}"), path
    answers = set()
    reasons = {
        "/etc": "not below log.dirs.allowed.roots",
        str(home / "nowhere"): "does not exist",
        str(full / "a-file"): "is no directory",
        str(full): "neither empty nor formatted for this node: it holds a-file",
        str(foreign): "belongs to node 1, and this is node 2",
        str(barred): "Permission denied",
    }
    for count, (path, reason) in enumerate(reasons.items(), start=2):  # the first is home's
        answers.add(refused(cluster, "--add", f"{BROKER}:{path}").replace(path, "PATH"))
        logged = cluster.wait_event(cluster.brokers[BROKER], "new_log_dir_not_taken", count)
        assert logged["log_dir"] == path
        assert reason in logged["reason"]
    assert len(answers) == 1
    assert "is none of this broker's directories" in refused(
        cluster, "--reattach", f"{BROKER}:/nowhere"
    )
    assert set(_errors(cluster).values()) == {0}


def test_failed_directory_is_reattached_automatically_if_configured(
    make_cluster: MakeCluster,
) -> None:
    config = {"broker.session.timeout.ms": "6000"}
    cluster = _start(
        make_cluster,
        config=config,
        broker_config={BROKER: {"log.dir.reattach.interval.ms": "200"}},
    )
    same, path = Same(cluster), cluster.local.dir_path(BROKER, 1)
    with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        _flowing(cluster, load)
        with mounts.closed_to_owner(str(path)):
            _go_offline(cluster, path)
            logged = cluster.wait_event(cluster.brokers[BROKER], "log_dir_still_offline")
            assert "Permission denied" in logged["reason"]
        cluster.wait_event(cluster.brokers[BROKER], "log_dir_operation_done")
        cluster.wait_whole(TOPIC)
        load.stop()
    same.check()
    assert len(cluster.brokers[BROKER].events("log_dir_still_offline")) == 1
    assert judge(cluster.bootstrap, TOPIC, load).findings == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("operation", ["reattach", "add", "forget"])
@pytest.mark.parametrize("moment", ["log_dir_operation_began", "log_dir_operation_done"])
def test_broker_killed_during_directory_operation_restarts(
    make_cluster: MakeCluster, operation: str, moment: str
) -> None:
    """The kill comes at the beginning of the operation, or at its end while replicas are
    assigned."""
    cluster = _start(make_cluster)
    broker = cluster.brokers[BROKER]
    path = _new_dir(cluster) if operation == "add" else cluster.local.dir_path(BROKER, 1)
    with contextlib.ExitStack() as faults, Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
        _flowing(cluster, load)
        if operation != "add":
            faults.enter_context(mounts.closed_to_owner(str(path)))
            _go_offline(cluster, path)
            if operation == "reattach":
                faults.close()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kraftjbod.cli.log_dirs_tool"),
                *("--bootstrap-server", cluster.bootstrap, f"--{operation}", f"{BROKER}:{path}"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            cluster.wait_event(broker, moment)
            broker.kill()
        finally:
            process.wait(WAIT_S)
        cluster.start_daemon(broker)
        if operation == "forget" and path.name in {Path(p).name for p in _errors(cluster)}:
            # The directory was forgotten before the kill, or it can be forgotten now.
            assert order(cluster, "--forget", f"{BROKER}:{path}")[0] == 0
        cluster.wait_whole(TOPIC)
        _flowing(cluster, load)
        load.stop()
    assert judge(cluster.bootstrap, TOPIC, load).findings == []


@pytest.mark.disk
def test_forgotten_empty_disk_can_be_unmounted(make_cluster: MakeCluster) -> None:
    """Deleted replicas stay there until their last readers are done; then their files are
    closed."""
    with disks() as (one, other), contextlib.ExitStack() as stack:
        cluster = _start(make_cluster, **_on([one, other]))
        stack.callback(cluster.local.kill)
        with Load(cluster.bootstrap, TOPIC, PARTITIONS) as load:
            _flowing(cluster, load)
            load.stop()
        with cluster.admin() as admin:
            admin.delete_topics([TOPIC])
        cluster.wait(
            "the directories to be empty",
            lambda: not any(d.sizes for d in cluster.directories(BROKER).values()),
        )
        cluster.wait("them to be renamed", lambda: any(Path(other.path).glob("*-delete")))
        ordered(cluster, "--forget", f"{BROKER}:{other.path}")
        _unmount(cluster, other)
        assert _errors(cluster) == {one.path: 0}


@pytest.mark.long
def test_directory_missing_at_start_is_reattached_later(make_cluster: MakeCluster) -> None:
    cluster = _start(make_cluster)
    broker, path = cluster.brokers[BROKER], cluster.local.dir_path(BROKER, 1)
    cluster.stop_daemon(broker)
    aside = path.with_name("aside")
    path.rename(aside)
    cluster.start_daemon(broker)
    same = Same(cluster)
    assert "does not exist" in refused(cluster, "--reattach", f"{BROKER}:{path}")
    aside.rename(path)
    ordered(cluster, "--reattach", f"{BROKER}:{path}")
    cluster.wait_whole(TOPIC)
    same.check()
    assert set(_errors(cluster).values()) == {0}
