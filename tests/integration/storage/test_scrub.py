"""Corrupt bytes in segments that no client reads, found by the scrub of a running cluster.

No broker restarts and no client fetches the corrupt bytes. Afterwards every record is there, the
replicas are identical, and no directory went offline."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import FetchRequest
from kraftjbod.protocol.record_batch import batches
from tests.checkout import BIN
from tests.integration import checker, raw
from tests.integration.cluster import Cluster, read_metrics
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.long, pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]

BROKERS = (1, 2, 3)
BATCHES = 30
PER_BATCH = 10
# Batches per segment.
PER_SEGMENT = 3
SEGMENT_BYTES = 4_000
FETCH_VERSION = 12
_numbers = itertools.count()


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(
        brokers=3,
        dirs=2,
        config={
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
            "log.dir.scrub.interval.ms": "1000",
        },
    )


def make_topic(cluster: Cluster, replicas: tuple[int, ...]) -> str:
    """Create a topic with records whose values are their offsets, in flushed closed segments."""
    name = f"scrub-{next(_numbers)}"
    cluster.create_topic(
        name,
        assignments={0: replicas},
        segment_bytes=SEGMENT_BYTES,
        index_interval_bytes=1000,
    )
    write(cluster, name, replicas[0], range(BATCHES))
    for broker in replicas:
        copy = replica(cluster, broker, name)
        cluster.wait(
            "the segments to be there",
            lambda copy=copy: len(list(copy.glob("*.log"))) == BATCHES // PER_SEGMENT,
        )
    return name


def write(cluster: Cluster, topic: str, leader: int, numbers: range) -> None:
    for number in numbers:
        values = [b"%06d" % (number * PER_BATCH + i) + b"." * 94 for i in range(PER_BATCH)]
        request = raw.produce_request(topic, raw.batch(values))
        answer = raw.exchange(cluster.brokers[leader].address, request, 9)
        assert answer.responses[0].partition_responses[0].error_code == 0


def replica(cluster: Cluster, broker: int, topic: str) -> Path:
    (path,) = [p for p, held in cluster.replicas_by_dir(broker, topic).items() if held == [0]]
    return Path(path, f"{topic}-0")


def segment_of(copy: Path, number: int) -> Path:
    return copy / f"{number // PER_SEGMENT * PER_SEGMENT * PER_BATCH:020}.log"


def damage(copy: Path, number: int) -> None:
    """Overwrite some bytes of the ``number``-th batch."""
    path = segment_of(copy, number)
    position = [at for at, _ in batches(path.read_bytes())][number % PER_SEGMENT]
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), b"rubbish", position + 100)


def contents(copy: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(copy.glob("*.log")))


def times_logged(cluster: Cluster, broker: int, event: str, topic: str) -> int:
    """Return how often a broker logged the event for the topic."""
    events = cluster.brokers[broker].events(event)
    return sum(line.get("partition") == f"{topic}-0" for line in events)


def wait_reported(cluster: Cluster, broker: int, event: str, topic: str) -> None:
    cluster.wait(f"{event} of {topic}", lambda: times_logged(cluster, broker, event, topic))


def fetch_code(cluster: Cluster, broker: int, topic: str, offset: int) -> int:
    kind = FetchRequest
    part = kind.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    body = kind(max_wait_ms=100, topics=[kind.FetchTopic(topic=topic, partitions=[part])])
    answer = raw.exchange(cluster.brokers[broker].address, body, FETCH_VERSION)
    code: int = answer.responses[0].partitions[0].error_code
    return code


def describe(cluster: Cluster, path: Path) -> dict[str, object]:
    """Return the entry of kraftjbod-log-dirs for the directory of a replica."""
    command = [BIN / "kraftjbod-log-dirs", "--bootstrap-server", cluster.bootstrap, "--describe"]
    shown = subprocess.run(
        [*command, "--json"], capture_output=True, text=True, check=True, timeout=60
    )
    (found,) = [
        log_dir
        for broker in json.loads(shown.stdout)["brokers"]
        for log_dir in broker["logDirs"]
        if log_dir["logDir"] == str(path.parent)
    ]
    assert isinstance(found, dict)
    return found


def require_healed(cluster: Cluster, topic: str, copies: list[Path], upto: int = BATCHES) -> None:
    cluster.wait_whole(topic)
    cluster.wait("the copies to be the same", lambda: len({contents(c) for c in copies}) == 1)
    found = {offset: int(value[:6]) for offset, value in checker.read(cluster.bootstrap, topic, 0)}
    assert found == {offset: offset for offset in range(upto * PER_BATCH)}
    for broker in BROKERS:
        assert {d.error for d in cluster.directories(broker).values()} == {0}
        assert not cluster.brokers[broker].events("log_dir_offline")


def test_scrubbed_follower_leaves_isr_truncates_and_fetches_again(cluster: Cluster) -> None:
    topic = make_topic(cluster, BROKERS)
    copies = [replica(cluster, broker, topic) for broker in BROKERS]
    damage(copies[2], 8)
    wait_reported(cluster, 3, "log_damage_found_by_scrub", topic)
    wait_reported(cluster, 3, "damaged_follower_leaves_in_sync_set", topic)
    cluster.wait(
        "the follower to cut its log", lambda: times_logged(cluster, 3, "replica_truncated", topic)
    )
    write(cluster, topic, 1, range(BATCHES, BATCHES + 3))
    require_healed(cluster, topic, copies, BATCHES + 3)
    assert cluster.partitions(topic)[0].leader == 1
    assert times_logged(cluster, 3, "damaged_follower_leaves_in_sync_set", topic) == 1


def test_scrubbed_leader_steps_down_and_heals_as_follower(cluster: Cluster) -> None:
    topic = make_topic(cluster, BROKERS)
    copies = [replica(cluster, broker, topic) for broker in BROKERS]
    damage(copies[0], 13)
    wait_reported(cluster, 1, "log_damage_found_by_scrub", topic)
    wait_reported(cluster, 1, "damaged_leader_steps_down", topic)
    cluster.wait("another to lead", lambda: cluster.partitions(topic)[0].leader in (2, 3))
    require_healed(cluster, topic, copies)


def test_scrubbed_only_replica_serves_intact_batches_and_is_reported(cluster: Cluster) -> None:
    topic = make_topic(cluster, (2,))
    copy = replica(cluster, 2, topic)
    cluster.wait("a pass", lambda: describe(cluster, copy)["lastScrubMs"])
    damage(copy, 5)
    wait_reported(cluster, 2, "log_damage_found_by_scrub", topic)
    wait_reported(cluster, 2, "damaged_leader_has_no_heir", topic)
    assert fetch_code(cluster, 2, topic, 5 * PER_BATCH) == ErrorCode.CORRUPT_MESSAGE
    for number in (0, 4, 6, BATCHES - 1):
        assert fetch_code(cluster, 2, topic, number * PER_BATCH) == ErrorCode.NONE
    write(cluster, topic, 2, range(BATCHES, BATCHES + 1))
    cluster.wait("later passes", lambda: len(cluster.brokers[2].events("log_scrub_completed")) > 3)
    assert times_logged(cluster, 2, "log_damage_found_by_scrub", topic) == 1
    assert times_logged(cluster, 2, "damaged_leader_has_no_heir", topic) == 1


def test_scrub_rewrites_corrupt_index_file(cluster: Cluster) -> None:
    topic = make_topic(cluster, BROKERS)
    copy = replica(cluster, 2, topic)
    path = segment_of(copy, 10).with_suffix(".index")
    sound = path.read_bytes()
    assert sound
    path.write_bytes(b"\x5a" * len(sound))
    wait_reported(cluster, 2, "log_index_mended", topic)
    cluster.wait("the file to be right", lambda: path.read_bytes() == sound)


def test_scrub_metrics_are_in_the_snapshot(cluster: Cluster) -> None:
    topic = make_topic(cluster, BROKERS)
    copies = [replica(cluster, broker, topic) for broker in BROKERS]
    names = ("ScrubReplicasRepaired", "ScrubDamagesFound", "ScrubbedBytes")
    before = {name: figure(cluster, copies[2], name) for name in names}
    damage(copies[2], 2)
    cluster.wait(
        "a replica to be repaired",
        lambda: figure(cluster, copies[2], names[0]) > before[names[0]],
    )
    for name in names:
        assert figure(cluster, copies[2], name) > before[name]
    require_healed(cluster, topic, copies)


def figure(cluster: Cluster, copy: Path, name: str) -> float:
    """Return a metric of the directory on broker 3 that holds `copy`, or 0 if there is none."""
    return read_metrics(cluster.brokers[3]).get(
        f'LogDirectory{name},logDirectory="{copy.parent}"', 0
    )
