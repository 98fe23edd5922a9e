"""``python -m tests.bench.broker.groups``: the cost of groups and transactions on a cluster.

Without options a cluster of three brokers is started and removed, as in the bench.
``--bootstrap-server`` measures an existing cluster, and ``--pid`` names the processes whose CPU
time and memory are measured. So two clusters can be measured in turn.

Each member and each committing client is a coroutine with a separate connection and one request in
flight. Transactions use librdkafka, with a thread per producer. Rebalances are measured with both
group protocols. ``--protocol`` measures only rebalances with that protocol.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import click
import confluent_kafka
import uvloop
from confluent_kafka.admin import AdminClient, NewTopic

from kraftjbod.core.errors import ErrorCode
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.messages import (
    ConsumerGroupHeartbeatRequest,
    FindCoordinatorRequest,
    HeartbeatRequest,
    JoinGroupRequest,
    OffsetCommitRequest,
    SyncGroupRequest,
)
from tests.bench.broker.latency import percentile
from tests.bench.figures import Report, running_cluster

GROUPS: Final = 100
MEMBERS: Final = 1_000
COMMITTERS: Final = 100
COMMITS_S: Final = 10.0
#: In the group that is rebalanced, which has so many partitions; one more member comes.
REBALANCED: Final = 30
PARTITIONS: Final = 300
PRODUCERS: Final = 10
TRANSACTIONS_S: Final = 10.0
_TIMEOUT_MS: Final = 60_000
_SESSION_MS: Final = 30_000
_BEAT_S: Final = 0.1
_RETRY_S: Final = 0.05
#: Of the classic protocol, as clients of Kafka speak it.
_JOIN, _SYNC, _COMMIT = 9, 5, 9
_NEWER: Final = 1
_AGAIN: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


class Cost:
    """CPU time and memory of the processes that serve."""

    def __init__(self, pids: Sequence[int]) -> None:
        self.pids = pids

    def cpu_s(self) -> float:
        ticks = 0
        for pid in self.pids:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def rss_kb(self) -> float:
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.pids)
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e3


class Coordinators:
    """Finds the coordinator of a group and connects to it."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.split(",")[0].rpartition(":")
        self._address = host, int(port)
        self._open: list[KafkaConnection] = []

    async def connected(self, group: str) -> KafkaConnection:
        asked = await self._connect(*self._address)
        while True:
            request = FindCoordinatorRequest(key_type=0, coordinator_keys=[group])
            (found,) = (await asked.request(request, timeout_ms=_TIMEOUT_MS)).coordinators
            if found.error_code == ErrorCode.NONE:
                break
            await asyncio.sleep(_RETRY_S)
        asked.close()
        return await self._connect(found.host, found.port)

    async def _connect(self, host: str, port: int) -> KafkaConnection:
        made = await KafkaConnection.connect(
            host, port, client_id="bench", timeout_ms=_TIMEOUT_MS, max_in_flight=2
        )
        self._open.append(made)
        return made

    def close(self) -> None:
        for connection in self._open:
            connection.close()


class Member:
    """A member of a classic group. As leader it gives all members the same assignment."""

    def __init__(self, connection: KafkaConnection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._id = ""
        self.generation = -1

    async def join(self) -> None:
        """Join the group and return when the assignment arrived."""
        while not await self._try_to_join():
            pass

    async def beat(self) -> None:
        """Send heartbeats until cancelled, and rejoin at each rebalance."""
        while True:
            await asyncio.sleep(_BEAT_S)
            beat = HeartbeatRequest(
                group_id=self._group, generation_id=self.generation, member_id=self._id
            )
            answer = await self._connection.request(beat, timeout_ms=_TIMEOUT_MS)
            if answer.error_code != ErrorCode.NONE:
                await self.join()

    async def _try_to_join(self) -> bool:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(
            name="range", metadata=b"\0\0\0\0\0\1\0\6groups\xff\xff\xff\xff"
        )
        joining = JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_TIMEOUT_MS,
            member_id=self._id,
            protocol_type="consumer",
            protocols=[protocol],
        )
        joined = await self._connection.request(joining, timeout_ms=_TIMEOUT_MS, version=_JOIN)
        self._id = joined.member_id
        if joined.error_code != ErrorCode.NONE:
            if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
                await asyncio.sleep(_RETRY_S)
            return False
        assignment = SyncGroupRequest.SyncGroupRequestAssignment
        indexes = b"".join(number.to_bytes(4, "big") for number in range(PARTITIONS // REBALANCED))
        given = b"\0\0\0\0\0\1\0\6groups" + (len(indexes) // 4).to_bytes(4, "big") + indexes
        syncing = SyncGroupRequest(
            group_id=self._group,
            generation_id=joined.generation_id,
            member_id=self._id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[
                assignment(member_id=one.member_id, assignment=given + b"\xff\xff\xff\xff")
                for one in joined.members
            ],
        )
        synced = await self._connection.request(syncing, timeout_ms=_TIMEOUT_MS, version=_SYNC)
        if synced.error_code != ErrorCode.NONE:
            return False
        self.generation = joined.generation_id
        return True


async def _joins(bootstrap: str, cost: Cost, report: Report) -> None:
    coordinators = Coordinators(bootstrap)
    # __consumer_offsets and all connections exist before the measurement begins.
    names = [f"joins-{uuid.uuid4().hex}" for _ in range(GROUPS)]
    members = [
        Member(await coordinators.connected(names[number % GROUPS]), names[number % GROUPS])
        for number in range(MEMBERS)
    ]
    rss_kb, cpu_s, began_s = cost.rss_kb(), cost.cpu_s(), time.monotonic()
    await asyncio.gather(*(member.join() for member in members))
    took_s = time.monotonic() - began_s
    how = f"{MEMBERS:,} members in {GROUPS} groups at once; the initial delay is in it"
    report.add("groups: until all have an assignment", took_s, "s", how=how)
    report.add("groups: CPU of the cluster for it", cost.cpu_s() - cpu_s, "s")
    report.add("groups: memory per group", (cost.rss_kb() - rss_kb) / GROUPS, "kB", how="resident")
    coordinators.close()


async def _commits(bootstrap: str, cost: Cost, report: Report) -> None:
    coordinators = Coordinators(bootstrap)
    names = [f"commits-{uuid.uuid4().hex}" for _ in range(COMMITTERS)]
    connections = [await coordinators.connected(name) for name in names]
    times: list[float] = []
    cpu_s, began_s = cost.cpu_s(), time.monotonic()
    until_s = began_s + COMMITS_S
    await asyncio.gather(
        *(
            _commit(connection, name, until_s, times)
            for connection, name in zip(connections, names, strict=True)
        )
    )
    took_s = time.monotonic() - began_s
    how = f"{COMMITTERS} groups, one commit of one partition at a time each"
    report.add("commits", len(times) / took_s, "1/s", how=how)
    report.add("commits: CPU of the cluster", (cost.cpu_s() - cpu_s) / len(times) * 1e6, "us each")
    _add_percentiles(report, "commits", times)
    coordinators.close()


async def _commit(
    connection: KafkaConnection, group: str, until_s: float, times: list[float]
) -> None:
    kinds = OffsetCommitRequest
    offset = 0
    while (now_s := time.monotonic()) < until_s:
        offset += 1
        part = kinds.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
        topics = [kinds.OffsetCommitRequestTopic(name="groups", partitions=[part])]
        request = kinds(group_id=group, generation_id_or_member_epoch=-1, topics=topics)
        answer = await connection.request(request, timeout_ms=_TIMEOUT_MS, version=_COMMIT)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE, answer
        times.append((time.monotonic() - now_s) * 1e3)


class NewerMember:
    """A member with the newer protocol (KIP-848). It releases revoked partitions immediately."""

    def __init__(self, connection: KafkaConnection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._id = str(uuid.uuid4())
        self._epoch = 0
        self.owned: frozenset[tuple[bytes, int]] = frozenset()

    async def join(self) -> None:
        """Join the group and return after the coordinator's response."""
        await self._beat()

    async def beat(self) -> None:
        """Send heartbeats until cancelled; after a change immediately, as clients do."""
        while True:
            await asyncio.sleep(_BEAT_S)
            while await self._beat():
                pass

    async def _beat(self) -> bool:
        """Send a heartbeat. Return whether the assignment changed."""
        kind = ConsumerGroupHeartbeatRequest
        owned: dict[bytes, list[int]] = {}
        for topic_id, index in self.owned:
            owned.setdefault(topic_id, []).append(index)
        request = kind(
            group_id=self._group,
            member_id=self._id,
            member_epoch=self._epoch,
            rebalance_timeout_ms=_TIMEOUT_MS,
            subscribed_topic_names=["groups"],
            topic_partitions=[
                kind.TopicPartitions(topic_id=topic_id, partitions=indexes)
                for topic_id, indexes in owned.items()
            ],
        )
        answer = await self._connection.request(request, timeout_ms=_TIMEOUT_MS, version=_NEWER)
        if answer.error_code in _AGAIN:
            await asyncio.sleep(_RETRY_S)
            return True
        assert answer.error_code == ErrorCode.NONE, answer
        self._epoch, before = answer.member_epoch, self.owned
        if answer.assignment is not None:
            self.owned = frozenset(
                (bytes(topic.topic_id), index)
                for topic in answer.assignment.topic_partitions
                for index in topic.partitions
            )
        return self.owned != before


def _share(members: Sequence[NewerMember]) -> bool:
    """Whether each partition has one owner and the members' counts differ by at most one."""
    sizes = [len(member.owned) for member in members]
    owned = {one for member in members for one in member.owned}
    return len(owned) == sum(sizes) == PARTITIONS and max(sizes) - min(sizes) <= 1


async def _newer_rebalance(bootstrap: str, cost: Cost, report: Report) -> None:
    coordinators = Coordinators(bootstrap)
    name = f"rebalance-{uuid.uuid4().hex}"
    members = [NewerMember(await coordinators.connected(name), name) for _ in range(REBALANCED + 1)]
    *first, last = members
    await asyncio.gather(*(member.join() for member in first))
    beats = [asyncio.create_task(member.beat()) for member in first]
    while not _share(first):
        await asyncio.sleep(0.001)
    # Wait longer than the assignment interval since the last assignment.
    await asyncio.sleep(2)
    cpu_s, began_s = cost.cpu_s(), time.monotonic()
    await last.join()
    beats.append(asyncio.create_task(last.beat()))
    while not _share(members):
        await asyncio.sleep(0.001)
        for beat in beats:
            if beat.done():
                beat.result()
    took_s = time.monotonic() - began_s
    for beat in beats:
        beat.cancel()
    how = f"{REBALANCED} members, {PARTITIONS} partitions; heartbeats each {_BEAT_S * 1e3:.0f} ms"
    report.add("rebalance by the newer protocol: a member more", took_s * 1e3, "ms", how=how)
    report.add("rebalance by the newer protocol: CPU", (cost.cpu_s() - cpu_s) * 1e3, "ms")
    coordinators.close()


async def _rebalance(bootstrap: str, report: Report) -> None:
    coordinators = Coordinators(bootstrap)
    name = f"rebalance-{uuid.uuid4().hex}"
    members = [Member(await coordinators.connected(name), name) for _ in range(REBALANCED + 1)]
    *first, last = members
    await asyncio.gather(*(member.join() for member in first))
    beats = [asyncio.create_task(member.beat()) for member in first]
    began_s = time.monotonic()
    await last.join()
    while any(member.generation != last.generation for member in members):
        await asyncio.sleep(0.001)
    took_s = time.monotonic() - began_s
    for beat in beats:
        beat.cancel()
    how = f"{REBALANCED} members, {PARTITIONS} partitions; heartbeats each {_BEAT_S * 1e3:.0f} ms"
    report.add("rebalance: a member more", took_s * 1e3, "ms", how=how)
    coordinators.close()


def _transactions(bootstrap: str, cost: Cost, report: Report) -> None:
    times: list[list[float]] = [[] for _ in range(PRODUCERS)]
    producers = []
    for _ in times:
        settings = {"bootstrap.servers": bootstrap, "transactional.id": uuid.uuid4().hex}
        producers.append(confluent_kafka.Producer({**settings, "linger.ms": 0}))
        producers[-1].init_transactions(_TIMEOUT_MS / 1e3)
    cpu_s, began_s = cost.cpu_s(), time.monotonic()
    until_s = began_s + TRANSACTIONS_S
    threads = [
        threading.Thread(target=_transact, args=(producer, until_s, mine))
        for producer, mine in zip(producers, times, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - began_s
    all_ms = [each for mine in times for each in mine]
    assert all(times), "a producer failed"
    how = f"{PRODUCERS} producers, two partitions each time; librdkafka"
    report.add("transactions", len(all_ms) / took_s, "1/s", how=how)
    used_ms = (cost.cpu_s() - cpu_s) / len(all_ms) * 1e3
    report.add("transactions: CPU of the cluster", used_ms, "ms each")
    _add_percentiles(report, "transactions", all_ms)


def _transact(producer: confluent_kafka.Producer, until_s: float, times: list[float]) -> None:
    while (now_s := time.monotonic()) < until_s:
        producer.begin_transaction()
        for partition in range(2):
            producer.produce("groups", b"value", partition=partition)
        producer.commit_transaction(_TIMEOUT_MS / 1e3)
        times.append((time.monotonic() - now_s) * 1e3)


def _add_percentiles(report: Report, name: str, times: list[float]) -> None:
    for percent in (50, 99):
        report.add(f"{name}, p{percent}", percentile(sorted(times), percent), "ms")


def measure(
    bootstrap: str, pids: Sequence[int], report: Report, protocol: str | None = None
) -> None:
    """Measure everything, or rebalances with ``protocol``. Create the topic ``groups``."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    # An existing cluster may be measured several times, to warm up a just-in-time compiler.
    if "groups" not in admin.list_topics(timeout=_TIMEOUT_MS / 1e3).topics:
        for made in admin.create_topics([NewTopic("groups", PARTITIONS, -1)]).values():
            made.result(_TIMEOUT_MS / 1e3)
    cost = Cost(pids)
    if protocol is None:
        uvloop.run(_joins(bootstrap, cost, report))
        uvloop.run(_commits(bootstrap, cost, report))
    if protocol != "consumer":
        uvloop.run(_rebalance(bootstrap, report))
    if protocol != "classic":
        uvloop.run(_newer_rebalance(bootstrap, cost, report))
    if protocol is None:
        _transactions(bootstrap, cost, report)


def on_own_cluster(
    report: Report, config: Mapping[str, str] | None = None, protocol: str | None = None
) -> None:
    """Measure a cluster of three brokers with two directories each and defaults plus ``config``."""
    with running_cluster(brokers=3, dirs=2, config=config) as cluster:
        pids = [daemon.pid for daemon in cluster.brokers.values() if daemon.pid is not None]
        measure(cluster.bootstrap_servers, pids, report, protocol)


@click.command(help=__doc__)
@click.option("--bootstrap-server", help="Of a cluster that runs; else one is started.")
@click.option("--pid", "pids", multiple=True, type=int, help="A process of it; may be repeated.")
@click.option("--config", "pairs", multiple=True, help="KEY=VALUE of a cluster that is started.")
@click.option("--protocol", type=click.Choice(["classic", "consumer"]), help="A rebalance by it.")
def main(
    bootstrap_server: str | None,
    pids: tuple[int, ...],
    pairs: tuple[str, ...],
    protocol: str | None,
) -> None:
    report = Report()
    if bootstrap_server is None:
        on_own_cluster(report, dict(pair.split("=", 1) for pair in pairs), protocol)
    else:
        measure(bootstrap_server, pids, report, protocol)
    report.print()


if __name__ == "__main__":
    main()
