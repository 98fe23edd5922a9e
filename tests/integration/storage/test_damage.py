"""Corrupt bytes of one replica on a real disk: the replica heals, and directory and broker stay
online.

Three brokers, RF 3, acks=all. After each test every record is there, the three replicas are
identical, and no directory went offline."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import FetchRequest
from kraftjbod.protocol.record_batch import batches
from tests.integration import checker, raw
from tests.integration.cluster import Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

BROKERS = (1, 2, 3)
BATCHES = 30
PER_BATCH = 10
FETCH_VERSION = 12
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(
        brokers=3,
        dirs=2,
        config={"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500"},
    )


@pytest.fixture
def topic(cluster: Cluster) -> str:
    """A topic led by broker 1, with records whose values are their offsets."""
    name = f"damage-{next(_numbers)}"
    cluster.create_topic(name, assignments={0: BROKERS}, index_interval_bytes=1000)
    assert cluster.partitions(name)[0].leader == 1
    for number in range(BATCHES):
        values = [b"%06d" % (number * PER_BATCH + i) + b"." * 94 for i in range(PER_BATCH)]
        request = raw.produce_request(name, raw.batch(values))
        answer = raw.exchange(cluster.brokers[1].address, request, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
    return name


def replica(cluster: Cluster, broker: int, topic: str) -> Path:
    """Return the replica's directory on a broker."""
    (path,) = [p for p, held in cluster.replicas_by_dir(broker, topic).items() if held == [0]]
    return Path(path, f"{topic}-0")


def log_of(directory: Path) -> Path:
    return directory / f"{0:020}.log"


def damage(directory: Path, number: int) -> None:
    """Overwrite some bytes of the ``number``-th batch."""
    path = log_of(directory)
    position = [at for at, _ in batches(path.read_bytes())][number]
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"rubbish", position + 100)


def fetch_code(cluster: Cluster, broker: int, topic: str, offset: int) -> int:
    """Return the error code for a consumer's fetch at ``offset``."""
    kind = FetchRequest
    part = kind.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    body = kind(max_wait_ms=100, topics=[kind.FetchTopic(topic=topic, partitions=[part])])
    answer = raw.exchange(cluster.brokers[broker].address, body, FETCH_VERSION)
    code: int = answer.responses[0].partitions[0].error_code
    return code


def require_healed(cluster: Cluster, topic: str, copies: list[Path]) -> None:
    cluster.wait_whole(topic)
    cluster.wait(
        "the copies to be the same", lambda: len({log_of(c).read_bytes() for c in copies}) == 1
    )
    found = {offset: int(value[:6]) for offset, value in checker.read(cluster.bootstrap, topic, 0)}
    assert found == {offset: offset for offset in range(BATCHES * PER_BATCH)}
    for broker in BROKERS:
        assert {d.error for d in cluster.directories(broker).values()} == {0}
        assert not cluster.brokers[broker].events("log_dir_offline")


def restart_with(cluster: Cluster, broker: int, copies: list[Path], *, kill: bool = False) -> None:
    """Stop or kill a broker, corrupt its batch 20, and start it again."""
    daemon = cluster.brokers[broker]
    if kill:
        daemon.kill()
    else:
        cluster.stop_daemon(daemon)
    damage(copies[broker - 1], 20)
    cluster.start_daemon(daemon)


def test_corrupt_batch_fetched_by_follower_makes_leader_step_down(
    cluster: Cluster, topic: str
) -> None:
    """The leader trusts its own pages in memory; a follower that fetches them checks the CRC."""
    copies = [replica(cluster, broker, topic) for broker in BROKERS]
    cluster.stop_daemon(cluster.brokers[3])
    shutil.rmtree(copies[2])
    damage(copies[0], 12)
    cluster.start_daemon(cluster.brokers[3])
    cluster.wait_event(cluster.brokers[1], "damaged_leader_steps_down")
    cluster.wait_whole(topic)
    require_healed(cluster, topic, [replica(cluster, broker, topic) for broker in BROKERS])


def test_replica_corrupted_while_down_steps_down_once_it_leads(
    cluster: Cluster, topic: str
) -> None:
    """Recovery scans nothing after an orderly stop; the first read from the disk is checked."""
    copies = [replica(cluster, broker, topic) for broker in BROKERS]
    logged = len(cluster.brokers[1].events("damaged_leader_steps_down"))
    restart_with(cluster, 1, copies)
    cluster.wait_whole(topic)
    cluster.stop_daemon(cluster.brokers[2])
    cluster.wait("broker 1 to lead", lambda: cluster.partitions(topic)[0].leader == 1)
    assert fetch_code(cluster, 1, topic, 20 * PER_BATCH) == ErrorCode.CORRUPT_MESSAGE
    cluster.wait_event(cluster.brokers[1], "damaged_leader_steps_down", logged + 1)
    cluster.wait("broker 3 to lead", lambda: cluster.partitions(topic)[0].leader == 3)
    cluster.start_daemon(cluster.brokers[2])
    require_healed(cluster, topic, copies)


def test_corrupt_follower_is_truncated_by_recovery_and_catches_up(
    cluster: Cluster, topic: str
) -> None:
    copies = [replica(cluster, broker, topic) for broker in BROKERS]
    restart_with(cluster, 3, copies, kill=True)
    cluster.wait_event(cluster.brokers[3], "log_tail_truncated")
    require_healed(cluster, topic, copies)


def test_corrupt_indexes_are_rebuilt(cluster: Cluster, topic: str) -> None:
    copies = [replica(cluster, broker, topic) for broker in BROKERS]
    cluster.stop_daemon(cluster.brokers[1])
    for suffix in (".index", ".timeindex"):
        path = log_of(copies[0]).with_suffix(suffix)
        size = path.stat().st_size
        assert size > 0
        path.write_bytes(b"\x5a" * size)
    cluster.start_daemon(cluster.brokers[1])
    cluster.wait_whole(topic)
    cluster.stop_daemon(cluster.brokers[2])
    cluster.wait("broker 1 to lead", lambda: cluster.partitions(topic)[0].leader == 1)
    assert fetch_code(cluster, 1, topic, 15 * PER_BATCH) == ErrorCode.NONE
    cluster.wait_event(cluster.brokers[1], "log_index_mended")
    cluster.start_daemon(cluster.brokers[2])
    require_healed(cluster, topic, copies)
