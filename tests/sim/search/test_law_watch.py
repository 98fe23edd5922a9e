from __future__ import annotations

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.core.ids import TopicId, TopicPartition, Uuid
from kraftjbod.metadata.records import TopicRecord
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.dir_names import future_dir_name
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.cluster_view import ClusterView
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from kraftjbod.testing.simulation.search.law_watch import LawWatch, records_of
from kraftjbod.testing.simulation.search.ledger import Ledger, Stream, value_of
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.faults.rig import stamped

_VALUES = [value_of("t-0-0", number) for number in range(3)]


def _log(values: list[bytes]) -> bytes:
    return b"".join(
        stamped(build_batch([Record(value=value)]), base_offset=offset, leader_epoch=0)
        for offset, value in enumerate(values)
    )


def _disk(*copies: tuple[str, list[bytes]]) -> MemVfs:
    vfs = MemVfs()
    for name, values in copies:
        vfs.make_dirs(f"/d/{name}")
        file = vfs.open(f"/d/{name}/{0:020}.log", OpenMode.CREATE)
        file.write_at(0, [_log(values)])
    return vfs


def _judge(*disks: MemVfs, acked: int = 3) -> list[str]:
    ledger = Ledger()
    stream = ledger.add(Stream(name="t-0-0", topic="t", partition=0))
    for number in range(acked):
        stream.take_ack(number, number, at_ms=0)
    findings: list[str] = []
    with SimulatedCluster(1) as cluster:
        watch = LawWatch(ClusterView(cluster), ledger, found=findings.append)
        watch.judge_at_rest({number: {"/d": disk} for number, disk in enumerate(disks, 1)})
    return findings


def test_equal_and_whole_copies_pass() -> None:
    assert records_of(_log(_VALUES)) == dict(enumerate(_VALUES))
    assert _judge(*[_disk(("t-0", _VALUES))] * 3) == []


def test_copies_that_differ_or_lack_what_was_acknowledged_are_found() -> None:
    findings = _judge(_disk(("t-0", _VALUES)), _disk(("t-0", _VALUES[:2])))
    assert findings[0].startswith("the copies of t-0 differ: broker 1:")
    assert findings[1].startswith("broker 2: t-0 offset 2: t-0-0:2 was acknowledged")
    assert len(findings) == 2


def test_a_replica_in_two_places_is_found() -> None:
    future = future_dir_name(TopicPartition("t", 0), Uuid(bytes(16)))
    (finding,) = _judge(_disk(("t-0", _VALUES), (future, _VALUES)))
    assert finding.startswith("t-0 lies in broker 1 in /d/t-0")


def test_a_broker_that_takes_what_empty_controllers_write_is_found() -> None:
    findings: list[str] = []
    is_lost = False
    with SimulatedCluster(1, brokers=1, log_dirs=1) as cluster:
        watch = LawWatch(
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
        gone = TopicRecord(name="gone", topic_id=TopicId(bytes(15) + b"1"))
        watch.metadata.take([gone], offset=known.offset + 1, epoch=1)
        watch.look()
        assert findings == [
            "broker 1 serves by metadata that knows nothing of topics gone, after a majority of it "
            "was lost"
        ]
