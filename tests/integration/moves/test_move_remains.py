"""Remains of a move that a killed broker finds at a start without one of its two disks.

The topic has a single replica, so that a missing record has no other copy."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from kraftjbod.local.cluster_process import directory_id
from kraftjbod.protocol.messages import DescribeLogDirsRequest
from kraftjbod.testing import mounts
from tests.integration import clients, faulty_broker, raw
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.faulty_broker import Trap
from tests.integration.moves.test_moves import move

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(200)]

TOPIC: Final = "moved"
RECORDS: Final = 12
# About a third of the bytes to copy is copied at once.
_BYTES_PER_S: Final = 2_000_000
_VALUES: Final = [b"%03d" % n + b"x" * 500_000 for n in range(RECORDS)]


def _write(cluster: Cluster, *values: bytes) -> None:
    for value in values:
        code, _ = raw.produce(cluster.brokers[1].address, TOPIC, raw.batch([value]))
        assert code == 0, code


def _broken_off(make_cluster: MakeCluster, trap: Trap) -> tuple[Cluster, Path, Path]:
    """Kill a broker at ``trap`` during a move; return the cluster, source and target."""
    cluster = make_cluster(
        brokers=1,
        dirs=2,
        broker_command=faulty_broker.COMMAND,
        config={
            "replica.alter.log.dirs.io.max.bytes.per.second": str(_BYTES_PER_S),
            "telemetry.level": "debug",
        },
    )
    cluster.create_topic(TOPIC, segment_bytes=1 << 20)
    _write(cluster, *_VALUES)
    broker = cluster.brokers[1]
    (source,) = (path for path in broker.files.log_dirs if (path / f"{TOPIC}-0").exists())
    (target,) = (path for path in broker.files.log_dirs if path != source)
    faulty_broker.arm(broker, trap)
    assert move(cluster, TOPIC, 0, 1, str(target)) == "NoError"
    cluster.wait("the broker to be killed", lambda: not broker.is_running)
    faulty_broker.disarm(broker)
    return cluster, source, target


def _named(cluster: Cluster) -> str:
    """Return the id of the directory that metadata names for the replica."""
    topic = cluster.metadata().topic(TOPIC)
    assert topic is not None
    return str(topic.partitions[0].directory_of(1))  # type: ignore[arg-type]  # an int


def test_partial_future_replica_never_replaces_missing_source(
    make_cluster: MakeCluster,
) -> None:
    trap = Trap(kind="copy_from", path=f"*/{TOPIC}-0.*-future/*.log", nth=3, kill=True)
    cluster, _, target = _broken_off(make_cluster, trap)
    broker = cluster.brokers[1]
    config = broker.files.config_path.read_text()
    broker.files.config_path.write_text(f"{config}\nlog.dirs={target}\n")
    cluster.start_daemon(broker)
    assert cluster.wait_event(broker, "last_in_sync_replica_lost")["partition"] == f"{TOPIC}-0"
    cluster.wait("broker to lead no partition", lambda: cluster.partitions(TOPIC)[0].leader < 0)
    assert raw.produce(broker.address, TOPIC, raw.batch([b"new"]))[0] != 0
    asked = raw.exchange(broker.address, DescribeLogDirsRequest(topics=[]), 4)
    assert list(asked.lost_replicas) == [f"{TOPIC}-0"]
    assert list(target.glob(f"{TOPIC}-0.*-future")), "the copied part may be all that is left"
    assert not (target / f"{TOPIC}-0").exists()
    # With the source disk back, nothing is lost, and the move continues.
    cluster.stop_daemon(broker)
    broker.files.config_path.write_text(config)
    cluster.start_daemon(broker)
    cluster.wait("the move to end", lambda: _named(cluster) == directory_id(target))
    assert clients.read_confluent(cluster.bootstrap, TOPIC, RECORDS) == _VALUES


@pytest.mark.long
def test_source_serves_after_loss_of_target_with_accepted_assignment(
    make_cluster: MakeCluster,
) -> None:
    trap = Trap(event="replica_move_phase", fields={"phase": "accepted"}, kill=True)
    cluster, source, target = _broken_off(make_cluster, trap)
    broker = cluster.brokers[1]
    assert _named(cluster) == directory_id(target)
    with mounts.closed_to_owner(str(target)):
        cluster.start_daemon(broker)
        cluster.wait("metadata to name it", lambda: _named(cluster) == directory_id(source))
        cluster.wait("it to lead", lambda: cluster.partitions(TOPIC)[0].leader == 1)
        _write(cluster, b"new")
        assert clients.read_confluent(cluster.bootstrap, TOPIC, RECORDS + 1) == [*_VALUES, b"new"]
        cluster.stop_daemon(broker)
    # The target returns with an older copy, which is not served.
    cluster.start_daemon(broker)
    assert clients.read_confluent(cluster.bootstrap, TOPIC, RECORDS + 1) == [*_VALUES, b"new"]
    cluster.wait("the move to end", lambda: _named(cluster) == directory_id(target))
    assert clients.read_confluent(cluster.bootstrap, TOPIC, RECORDS + 1) == [*_VALUES, b"new"]
