"""Recovery times: a restart after ``kill -9``, and a dead directory.

*Restart*: a broker with 4,000 replicas of one record each is killed. Measured is the time from the
start of the new process until the broker serves and each partition has a leader.

*Dead directory*: three brokers, N replicas in one directory of broker 1, a third of them leaders.
``chmod 000`` (found by the directory check) under load on 12 measured partitions with one producer
each, acks=all. Reported are the times from the failure until the broker notices it and until the
last new leader is in another broker's metadata, and the longest time between two acknowledged
writes of one partition.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from kraftjbod.protocol import kafka_codec
from kraftjbod.testing import mounts
from tests.bench import machine
from tests.bench.figures import Report, rss_mb, running_cluster
from tests.integration import raw
from tests.integration.checker import Load, judge
from tests.integration.cluster import Cluster

RESTARTED: Final = 4000
MEASURED: Final = "measured"
MEASURED_PARTITIONS: Final = 12
VICTIM: Final = 1
_TOPIC_PARTITIONS: Final = 500
_POLL_S: Final = 0.03
_DEADLINE_S: Final = 120.0
_METADATA_VERSION: Final = 9
_PRODUCE_VERSION: Final = 9
#: Short, so that leaders return soon after the restart that adds the second directory.
_CONTROLLER: Final = {"leader.imbalance.check.interval.seconds": "1"}


def restart(report: Report) -> None:
    """Time until a killed broker with 4,000 replicas serves again."""
    with running_cluster(brokers=1, dirs=3) as local:
        cluster = Cluster(local)
        broker = cluster.brokers[1]
        started = time.perf_counter()
        create_many(cluster, RESTARTED, replication_factor=1)
        seconds = time.perf_counter() - started
        report.add(f"create {RESTARTED:,} partitions, 1 broker", seconds, "s")
        _write_everywhere(broker.address)
        for daemon in local.daemons:
            report.add(f"RSS of {daemon.files.name}", rss_mb(daemon), "MB", how=_many(RESTARTED))
        broker.kill()
        started = time.perf_counter()
        broker.start()
        asyncio.run(local.wait_healthy(timeout_s=_DEADLINE_S))
        served = time.perf_counter() - started
        wait("a leader everywhere", lambda: count(broker.address, _is_led) == RESTARTED)
        seconds = time.perf_counter() - started
        beside = f"page-cache write {machine.page_cache_write_mb_s(str(local.run_dir)):,.0f} MB/s"
        how = f"kill -9, {_many(RESTARTED)} with a record each"
        waited = "the 9 s session of the one that was killed has to end first"
        report.add("restart until it serves", served, "s", beside=beside, how=f"{how}; {waited}")
        report.add("restart until all lead", seconds, "s", beside=beside, how=how)
        own = at(broker.events("broker_started")[-1]) - at(
            broker.events("registered_with_controller")[-1]
        )
        report.add("of which loading and recovery", own, "s", beside=beside, how=how)


def one_dead_replica(report: Report) -> None:
    """Fail one of twelve directories that have one measured replica each."""
    _one_of(report, MEASURED_PARTITIONS)


def one_of_many_dirs(report: Report) -> None:
    """The same with 3 to 36 directories per broker."""
    for dirs in (3, MEASURED_PARTITIONS, 24, 36):
        _one_of(report, dirs)


def _one_of(report: Report, dirs: int) -> None:
    with running_cluster(brokers=3, dirs=dirs) as local:
        cluster = Cluster(local)
        create_measured(cluster)
        led = {
            index for index, part in cluster.partitions(MEASURED).items() if part.leader == VICTIM
        }
        by_dir = cluster.replicas_by_dir(VICTIM, MEASURED)
        # The directory with the most leaders; with twelve directories it holds one replica.
        victim_dir = max(by_dir, key=lambda path: len(led.intersection(by_dir[path])))
        held = len(by_dir[victim_dir])
        _measure_death(report, cluster, victim_dir, held, f"1 of {dirs} directories")


def many_dead_replicas(report: Report, replicas: int) -> None:
    """Fail a directory with ``replicas`` replicas, measured ones included."""
    with running_cluster(brokers=3, dirs=1, controller_config=_CONTROLLER) as local:
        cluster = Cluster(local)
        create_many(cluster, replicas - MEASURED_PARTITIONS, replication_factor=3)
        create_measured(cluster)
        # A broker needs a second directory to survive the failure of the first.
        _add_dir(cluster)
        _measure_death(report, cluster, str(cluster.local.dir_path(VICTIM, 1)), replicas)
        for daemon in local.daemons:
            report.add(f"RSS of {daemon.files.name}", rss_mb(daemon), "MB", how=_many(replicas))


def _measure_death(
    report: Report, cluster: Cluster, victim_dir: str, replicas: int, what: str = ""
) -> None:
    survivor = cluster.brokers[VICTIM + 1].address
    none = [0] * MEASURED_PARTITIONS
    with ExitStack() as stack:
        load = stack.enter_context(Load(cluster.bootstrap, MEASURED, MEASURED_PARTITIONS))
        cluster.wait("load", lambda: load.flowed_since(none, 200))
        lost = set(cluster.directories(VICTIM)[victim_dir].sizes)
        assert len(lost) == replicas, f"{len(lost)} replicas in {victim_dir}"
        died = time.time()
        stack.enter_context(mounts.closed_to_owner(victim_dir))
        # Topic by topic: responses with all topics would cost more CPU than the failure.
        for topic in sorted({name.rpartition("-")[0] for name in lost}):
            wait("new leaders", partial(led_elsewhere, survivor, topic, lost))
        seconds = time.time() - died
        before = load.acked_by_partition()
        cluster.wait("load to go on", lambda: load.flowed_since(before, 200))
        load.stop()
        findings = judge(cluster.bootstrap, MEASURED, load).findings
        assert not findings, findings
    noticed = at(cluster.wait_event(cluster.brokers[VICTIM], "log_dir_offline"))
    name = f"dead dir, {what or _many(replicas)}"
    how = "chmod 000 of a directory of broker 1 under load"
    report.add(f"{name}: until it is noticed", noticed - died, "s", how=how)
    report.add(f"{name}: until the last new leader", seconds, "s", how=how)
    gaps = sorted(load.gaps_s().values())
    how = f"worst of {len(gaps)} partitions, one producer each; median {gaps[len(gaps) // 2]:.2f} s"
    report.add(f"{name}: longest gap between acks", gaps[-1], "s", how=how)


def at(event: Mapping[str, Any]) -> float:
    """Return when an event was logged, in seconds since 1970."""
    return datetime.datetime.fromisoformat(event["timestamp"]).timestamp()


def _many(replicas: int) -> str:
    return f"{replicas:,} replica{'s' if replicas > 1 else ''}"


def create_measured(cluster: Cluster) -> None:
    cluster.create_topic(
        MEASURED, partitions=MEASURED_PARTITIONS, replication_factor=3, min_insync_replicas=2
    )


def create_many(cluster: Cluster, partitions: int, *, replication_factor: int) -> None:
    """Create ``partitions`` partitions in topics of 500 each; wait until all are in sync."""
    address = cluster.brokers[VICTIM].address
    with cluster.admin() as admin:
        for number, first in enumerate(range(0, partitions, _TOPIC_PARTITIONS)):
            size = min(_TOPIC_PARTITIONS, partitions - first)
            options = {"num_partitions": size, "replication_factor": replication_factor}
            admin.create_topics({f"many-{number}": options})
    wait("all replicas in sync", lambda: count(address, is_whole) == partitions)


def _write_everywhere(address: str) -> None:
    """Write a record to each partition of the cluster."""
    records = raw.batch([bytes(1000)])
    request = kafka_codec.message("ProduceRequest")
    for topic in _topics(address):
        parts = [
            request.PartitionProduceData(index=part.partition_index, records=records)
            for part in topic.partitions
        ]
        body = request(
            acks=1,
            timeout_ms=10_000,
            topic_data=[request.TopicProduceData(name=topic.name, partition_data=parts)],
        )
        # A replica can be led before its directory exists; until then the broker refuses.
        wait("every partition to take a record", partial(_is_taken, address, body))


def _is_taken(address: str, body: Any) -> bool:
    answer = raw.exchange(address, body, _PRODUCE_VERSION)
    return all(part.error_code == 0 for part in answer.responses[0].partition_responses)


def _add_dir(cluster: Cluster) -> None:
    """Give the victim a second directory, which takes a restart."""
    broker = cluster.brokers[VICTIM]
    address = cluster.brokers[VICTIM + 1].address
    leaders = count(address, _is_led_by_victim)
    cluster.stop_daemon(broker)
    new = broker.files.directory / "disk-2"
    new.mkdir()
    cluster.local.privileges.give(new)
    with broker.files.config_path.open("a", encoding="utf-8") as config:
        config.write(f"\nlog.dirs={cluster.local.dir_path(VICTIM, 1)},{new}\n")
    cluster.start_daemon(broker)
    everything = count(address, lambda part: True)
    wait("all replicas in sync", lambda: count(address, is_whole) == everything)
    wait("its leaders to be back", lambda: count(address, _is_led_by_victim) >= leaders * 0.9)


def _is_led(part: Any) -> bool:
    return bool(part.leader_id >= 0)


def is_whole(part: Any) -> bool:
    return part.leader_id >= 0 and len(part.isr_nodes) == len(part.replica_nodes)


def _is_led_by_victim(part: Any) -> bool:
    return bool(part.leader_id == VICTIM)


def led_elsewhere(address: str, name: str, lost: set[str]) -> bool:
    """Whether each of the topic's partitions in ``lost`` has a leader other than the victim."""
    return not any(
        part.leader_id in (VICTIM, -1) and f"{topic.name}-{part.partition_index}" in lost
        for topic in _topics(address, name)
        for part in topic.partitions
    )


def count(address: str, wanted: Callable[[Any], bool]) -> int:
    return sum(wanted(part) for topic in _topics(address) for part in topic.partitions)


def _topics(address: str, name: str | None = None) -> Iterator[Any]:
    """Yield one topic or all topics of a broker's metadata response."""
    request = kafka_codec.message("MetadataRequest")
    asked = None if name is None else [request.MetadataRequestTopic(name=name)]
    answer = raw.exchange(address, request(topics=asked), _METADATA_VERSION)
    yield from answer.topics


def wait(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {_DEADLINE_S:.0f} s for {what}"
        time.sleep(_POLL_S)
