from __future__ import annotations

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.core.ids import TopicId, TopicPartition, Uuid
from kraftjbod.metadata.records import TopicRecord
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.checkpoints import format_offsets, format_partition_metadata
from kraftjbod.storage.dir_names import (
    LOG_START_CHECKPOINT,
    ReplicaDirKind,
    doomed_dir_name,
    future_dir_name,
)
from kraftjbod.storage.replicas.stray_mark import StrayMark, StrayReason, write_stray_mark
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.faults.rig import stamped
from tests.sim.search.cluster_view import ClusterView
from tests.sim.search.invariant_watch import InvariantWatch, records_of
from tests.sim.search.ledgers.ledger import Ledger, Stream, value_of

_VALUES = [value_of("t-0-0", number) for number in range(3)]


def _log(values: list[bytes], first: int = 0) -> bytes:
    return b"".join(
        stamped(build_batch([Record(value=value)]), base_offset=offset, leader_epoch=0)
        for offset, value in enumerate(values, first)
    )


def _disk(*copies: tuple[str, list[bytes]], first: int = 0) -> MemVfs:
    """:param first: the offset of the first record of each replica."""
    vfs = MemVfs()
    for name, values in copies:
        vfs.make_dirs(f"/d/{name}")
        file = vfs.open(f"/d/{name}/{first:020}.log", OpenMode.CREATE)
        file.write_at(0, [_log(values, first)])
    return vfs


def _write(vfs: MemVfs, path: str, data: bytes) -> None:
    vfs.open(path, OpenMode.CREATE).write_at(0, [data])


def _judge(*disks: MemVfs, acked: int = 3, ledger: Ledger | None = None) -> list[str]:
    ledger = ledger or Ledger()
    stream = ledger.add(Stream(name="t-0-0", topic="t", partition=0))
    for number in range(acked):
        stream.take_ack(number, number, at_ms=0)
    findings: list[str] = []
    with SimulatedCluster(1) as cluster:
        watch = InvariantWatch(ClusterView(cluster), ledger, found=findings.append)
        watch.judge_at_rest({number: {"/d": disk} for number, disk in enumerate(disks, 1)})
    return findings


def test_judge_at_rest_accepts_equal_replicas() -> None:
    assert records_of(_log(_VALUES)) == dict(enumerate(_VALUES))
    assert _judge(*[_disk(("t-0", _VALUES))] * 3) == []


def test_judge_at_rest_finds_different_and_incomplete_replicas() -> None:
    findings = _judge(_disk(("t-0", _VALUES)), _disk(("t-0", _VALUES[:2])))
    assert findings[0].startswith("the copies of t-0 differ: broker 1:")
    assert findings[1].startswith("broker 2: t-0 offset 2: t-0-0:2 was acknowledged")
    assert len(findings) == 2


def test_judge_at_rest_finds_replica_in_two_places() -> None:
    future = future_dir_name(TopicPartition("t", 0), Uuid(bytes(16)))
    (finding,) = _judge(_disk(("t-0", _VALUES), (future, _VALUES)))
    assert finding.startswith("t-0 lies in broker 1 in /d/t-0")


def test_in_sync_replica_that_ends_below_a_high_watermark_of_a_consumer_is_found() -> None:
    findings: list[str] = []
    ledger = Ledger()
    ledger.add(Stream(name="t-0-0", topic="t", partition=0))
    with SimulatedCluster(1, brokers=1, log_dirs=1) as cluster:
        watch = InvariantWatch(ClusterView(cluster), ledger, found=findings.append)
        cluster.start()
        client = cluster.client("operator")
        client.run(create_topic(client.kafka, "t", partitions=1, replication_factor=1))
        cluster.run_for(1_000)
        ledger.note_high_watermark("t", 0, 2)
        ledger.note_high_watermark("t", 0, 1)
        watch.look()
    (finding,) = findings
    assert finding.startswith("t-0 is committed up to 2, and in-sync broker 1 holds 0")


def test_broker_that_accepts_metadata_of_empty_controllers_is_found() -> None:
    findings: list[str] = []
    is_lost = False
    with SimulatedCluster(1, brokers=1, log_dirs=1) as cluster:
        watch = InvariantWatch(
            ClusterView(cluster),
            Ledger(),
            found=findings.append,
            is_metadata_lost=lambda: is_lost,
        )
        cluster.start()
        client = cluster.client("operator")
        client.run(create_topic(client.kafka, "t", partitions=1, replication_factor=1))
        cluster.run_for(1_000)
        watch.look()
        is_lost = True
        watch.look()
        assert findings == []
        known = watch.metadata.state
        news = TopicRecord(name="news", topic_id=TopicId(bytes(15) + b"1"))
        watch.metadata.take([news], offset=known.offset + 1, epoch=1)
        watch.look()
        assert findings == [], "the broker had not received it yet"
        wiring = cluster.broker(1).wiring
        assert wiring is not None
        wiring.cluster.cache.replace(MetadataState())
        watch.look()
        assert findings == [
            "broker 1 serves by metadata that knows nothing of topics t, after a majority of it "
            "was lost"
        ]


def test_judge_at_rest_compares_log_starts_with_requests() -> None:
    ledger = Ledger()
    ledger.asks_start("t", 0, 2)
    whole, shorter = _disk(("t-0", _VALUES)), _disk(("t-0", _VALUES[2:]), first=2)
    (other,) = _judge(whole, shorter, ledger=ledger)
    assert other == ("the copies of t-0 start at different offsets: {'broker 1': 0, 'broker 2': 2}")
    ledger = Ledger()
    ledger.asks_start("t", 0, 2)
    ledger.leaves_start_open("t", 0)
    assert _judge(whole, shorter, ledger=ledger) == []
    # Records before the log start may still be on the disk.
    starts = format_offsets({TopicPartition("t", 0): 2})
    _write(whole, f"/d/{LOG_START_CHECKPOINT}", starts)
    ledger = Ledger()
    ledger.asks_start("t", 0, 2)
    assert _judge(whole, shorter, ledger=ledger) == []
    assert "no client asked for more than 0" in _judge(whole, shorter)[0]


def test_judge_at_rest_with_retention_allows_different_log_starts() -> None:
    whole, shorter = _disk(("t-0", _VALUES)), _disk(("t-0", _VALUES[2:]), first=2)
    ledger = Ledger()
    ledger.retained_bytes["t"] = 10
    assert _judge(whole, shorter, ledger=ledger) == []
    ledger = Ledger()
    ledger.retained_bytes["t"] = 1_000
    (little,) = _judge(whole, shorter, ledger=ledger)
    assert little.startswith("retention left ") and little.endswith("broker 2, not 1000")
    ledger = Ledger()
    ledger.retained_bytes["t"] = 10
    (differ,) = _judge(_disk(("t-0", [*_VALUES[:2], b"x:1"])), shorter, acked=0, ledger=ledger)
    assert differ.startswith("the copies of t-0 differ")


def test_remains_of_deleted_topics_are_found() -> None:
    findings: list[str] = []
    here, gone = TopicId(bytes(15) + b"1"), TopicId(bytes(15) + b"2")
    tp = TopicPartition("t", 0)
    doomed = doomed_dir_name(tp, ReplicaDirKind.DELETE, Uuid(bytes(16)))
    disk = _disk(("t-0", []), ("u-0", []), (doomed, []))
    _write(disk, "/d/t-0/partition.metadata", format_partition_metadata(here))
    _write(disk, f"/d/{doomed}/partition.metadata", format_partition_metadata(gone))
    _write(disk, f"/d/{LOG_START_CHECKPOINT}", format_offsets({tp: 0, TopicPartition("v", 0): 1}))
    with SimulatedCluster(1) as cluster:
        watch = InvariantWatch(ClusterView(cluster), Ledger(), found=findings.append)
        watch.metadata.take([TopicRecord(name="t", topic_id=here)], offset=0, epoch=1)
        assert watch.left_over({1: {"/d": disk}}, lambda _: 0) == [
            f"/d/{name} of broker 1 is of a topic that is gone" for name in (doomed, "u-0")
        ]
        mark = StrayMark(reason=StrayReason.TOPIC_UNKNOWN, set_aside_ms=7)
        write_stray_mark(disk, f"/d/{doomed}", mark)
        (other,) = watch.left_over({1: {"/d": disk}}, lambda _: 6)
        assert "u-0" in other
        assert len(watch.left_over({1: {"/d": disk}}, lambda _: 7)) == 2
        watch.judge_at_rest({1: {"/d": disk}})
    assert findings == [f"/d/{LOG_START_CHECKPOINT} of broker 1 speaks of v-0, which is gone"]


def test_invariant_watch_continues_from_snapshot_after_missed_entries() -> None:
    """A controller was killed after its snapshot, before the next check."""
    findings: list[str] = []
    config = {"metadata.log.max.record.bytes.between.snapshots": "1000"}
    with SimulatedCluster(1, brokers=1, log_dirs=1, config=config) as cluster:
        view = ClusterView(cluster)
        watch = InvariantWatch(view, Ledger(), found=findings.append)
        cluster.start()
        watch.look()
        client = cluster.client("operator")
        for name in ("a", "b", "c"):
            made = create_topic(client.kafka, name, partitions=9, replication_factor=1)
            client.run(made)
        cluster.run_for(5_000)
        next_offset = watch.metadata.state.offset + 1
        cluster.controller().kill()
        cluster.controller().start()
        cluster.wait_for(lambda: view.decided_offset() > next_offset, "it decides again")
        assert list(view.entries_from(next_offset)) == []
        cluster.run_for(1_000)
        watch.look()
        assert {topic.name for topic in watch.metadata.state.topics.values()} == {"a", "b", "c"}
        assert findings == []
