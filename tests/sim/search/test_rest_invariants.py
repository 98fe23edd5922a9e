from __future__ import annotations

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.core.ids import TopicPartition, Uuid
from kraftjbod.storage.dir_names import ReplicaDirKind, doomed_dir_name, future_dir_name
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_file import MemFile
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.sim.search.cluster_view import ClusterView
from tests.sim.search.rest_invariants import left_open, unfinished

_TP = TopicPartition("t", 0)


def _disk(*paths: str) -> MemVfs:
    vfs = MemVfs()
    for path in paths:
        vfs.make_dirs(path.rpartition("/")[0])
        vfs.open(path, OpenMode.CREATE)
    return vfs


def test_unfinished_files_and_directories_are_found() -> None:
    doomed = doomed_dir_name(_TP, ReplicaDirKind.DELETE, Uuid(bytes(16)))
    future = future_dir_name(_TP, Uuid(bytes(16)))
    disk = _disk(
        "/d/t-0/0.log",
        "/d/t-0/0.log.swap",
        "/d/t-0/0.index.deleted",
        "/d/snapshot.part",
        f"/d/{doomed}/0.log",
        f"/d/{future}/0.log",
    )
    left = ("snapshot.part", "t-0/0.index.deleted", "t-0/0.log.swap", doomed, future)
    assert unfinished({"/d": disk}) == sorted(f"/d/{name} is left" for name in left)


def test_unfinished_files_of_strays_are_allowed() -> None:
    """A retired segment may belong to the stray's log, and is taken back if the stray is loaded."""
    stray = doomed_dir_name(_TP, ReplicaDirKind.STRAY, Uuid(bytes(16)))
    disk = _disk(f"/d/{stray}/0.log.expired", f"/d/{stray}/5.log.swap", "/d/t-0/0.log.expired")
    assert unfinished({"/d": disk}) == ["/d/t-0/0.log.expired is left"]


def test_open_files_of_deleted_and_of_foreign_logs_are_found() -> None:
    disk = _disk("/d/t-0/0.log", "/d/u-0/0.log", "/d/u-0/1.log", "/d/meta.properties")
    opened: list[tuple[str, MemFile]] = [
        (path, disk.open(path, OpenMode.READ))
        for path in ("/d/t-0/0.log", "/d/u-0/0.log", "/d/u-0/1.log", "/d/meta.properties")
    ]
    disk.unlink_if_exists("/d/u-0/1.log")
    assert left_open("b", opened, {"/d": disk}, {"t-0", "u-0"}) == [
        "b has /d/u-0/1.log open, which is deleted"
    ]
    assert left_open("b", opened[:2], {"/d": disk}, {"t-0"}) == [
        "b has /d/u-0/0.log open, and hosts no such log"
    ]


def test_open_files_are_hosted_logs_while_running_and_none_when_stopped() -> None:
    with SimulatedCluster(1, brokers=1, log_dirs=2) as cluster:
        cluster.start()
        client = cluster.client("operator")
        client.run(create_topic(client.kafka, "t", partitions=4, replication_factor=1))
        cluster.run_for(1_000)
        broker, view = cluster.broker(1), ClusterView(cluster)
        process = broker.process
        assert process is not None
        disks = {path: disk.vfs for path, disk in broker.disks.items()}
        hosted = view.hosted_names(1)
        assert hosted == {f"t-{number}" for number in range(4)}
        assert left_open("b", process.open_files, disks, hosted) == []
        findings = left_open("b", process.open_files, disks, hosted - {"t-2"})
        assert any("t-2/" in finding and "hosts no such log" in finding for finding in findings)
        controller = cluster.controller().process
        assert controller is not None and controller.open_files
        broker.stop()
        cluster.wait_for(lambda: not broker.is_up, "the broker has stopped")
        cluster.controller().stop()
        cluster.wait_for(lambda: not cluster.controller().is_up, "the controller has stopped")
        assert process.left_open == controller.left_open == []
        for ended in (process, controller):
            assert not any(thread.is_busy for thread in ended.loop.threads)
