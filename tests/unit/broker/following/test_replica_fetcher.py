"""``ReplicaFetcher`` between brokers on memory disks, over real listeners."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from errno import EINVAL

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.rig import batch, headers_of, read_log
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.broker_rig import (
    TIMEOUT_MS,
    TP,
    BrokerRig,
    brokers,
    only,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import PATIENCE_S, Gate, settle, until


def end(rig: BrokerRig) -> int:
    handle = rig.logs.get(TP)
    return -1 if handle is None else handle.log_end_offset


def both(rigs: list[BrokerRig], **how: object) -> None:
    for rig in rigs:
        rig.replay(partition(replicas=(1, 2), **how))  # type: ignore[arg-type]  # passed on as is


async def host(rigs: list[BrokerRig]) -> None:
    for rig in rigs:
        await rig.follow(topic(), partition(replicas=(1, 2)))


async def test_produce_with_acks_all_completes_when_the_follower_has_the_records() -> None:
    async with brokers(2) as rigs:
        await host(rigs)
        written = await rigs[0].ask(produce(batch(3)), 9)
        assert written.responses[0].partition_responses[0].error_code == 0
        assert end(rigs[1]) == 3
        await rigs[0].ask(produce(batch(1)), 9)
        replica = rigs[1].parts.hosted.get(TP)
        assert replica is not None and replica.partition is not None
        await until(lambda: replica.partition is not None and replica.partition.high_watermark == 4)


async def test_follower_truncates_records_that_the_leader_lacks() -> None:
    """Broker 2 leads alone for a while; its records are truncated when broker 1 leads again."""
    async with brokers(2) as rigs:
        await host(rigs)
        await rigs[0].ask(produce(batch(2)), 9)
        rigs[1].replay(partition(replicas=(1, 2), leader=2, epoch=1))
        await rigs[1].ask(produce(batch(3), acks=1), 9)
        assert end(rigs[1]) == 5
        both(rigs, leader=1, epoch=2)
        await until(lambda: end(rigs[1]) == 2)
        await rigs[0].ask(produce(batch(1)), 9)
        handle = rigs[1].logs.get(TP)
        assert handle is not None
        read = await read_log(handle, 0, 1 << 20, 100, True)
        assert [h.partition_leader_epoch for h in headers_of(read.records)] == [0, 2]


async def test_follower_behind_the_leaders_log_start_restarts_at_that_offset() -> None:
    async with brokers(2) as rigs:
        await rigs[0].follow(topic(), partition(replicas=(1, 2), isr=[1]))
        leader = rigs[0].logs.get(TP)
        assert leader is not None
        await leader.truncate_fully_and_start_at(100)
        with capture_logs() as logged:
            await rigs[1].follow(topic(), partition(replicas=(1, 2), isr=[1]))
            await until(lambda: end(rigs[1]) == 100)
        assert "replica_log_restarted" in [line["event"] for line in logged]
        # All records were committed, so that a leader without their epochs causes no truncation.
        await rigs[0].follow(partition(replicas=(1, 2), isr=[1], epoch=1))
        follower = rigs[1].logs.get(TP)
        assert follower is not None
        await until(lambda: follower.high_watermark == 100)
        with capture_logs() as logged:
            await rigs[1].follow(partition(replicas=(1, 2), isr=[1], epoch=1))
            await rigs[0].ask(produce(batch(), acks=1), 9)
            await until(lambda: end(rigs[1]) == 101)
        assert "replica_truncated" not in [line["event"] for line in logged]


async def test_new_follower_copies_batch_that_begins_before_leader_log_start() -> None:
    """DeleteRecords set the leader's log start inside a batch (KAFKA-6975)."""
    async with brokers(2) as rigs:
        await rigs[0].follow(topic(), partition(replicas=(1, 2), isr=[1]))
        for _ in range(2):
            await rigs[0].ask(produce(batch(10), acks=1), 9)
        leader = rigs[0].logs.get(TP)
        assert leader is not None
        await until(lambda: leader.high_watermark == 20)
        await leader.start_at(15)
        await rigs[1].follow(topic(), partition(replicas=(1, 2), isr=[1]))
        await until(lambda: end(rigs[1]) == 20)
        follower = rigs[1].logs.get(TP)
        assert follower is not None
        await until(lambda: follower.durable_log_start == 15)
        read = await read_log(follower, 15, 1 << 20, 100, True)
        assert [(h.base_offset, h.last_offset) for h in headers_of(read.records)] == [(10, 19)]


async def test_follower_counts_consecutive_failures_of_the_same_append() -> None:
    """The leader's responses are valid; only the append of the follower fails."""
    sick = FaultVfs(MemVfs())
    async with brokers(2, sick, MemVfs()) as rigs:
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(2, 1), leader=2))
        await rigs[1].ask(produce(batch(), acks=1), 9)
        # The first fetches may have failed for other reasons.
        await until(lambda: end(rigs[0]) == 1)
        sick.inject(Fault(errno=EINVAL, kinds=frozenset({"write_at"}), path="*.log"))
        with capture_logs() as logged:
            await rigs[1].ask(produce(batch(), acks=1), 9)

            def failures() -> list[int]:
                delayed = [x for x in logged if x["event"] == "replica_fetch_delayed"]
                return [x["failures"] for x in delayed]

            await until(lambda: len(failures()) >= 3)
        assert failures()[:3] == [1, 2, 3]


class RefusingServer:
    """Accepts connections and closes them at once."""

    def __init__(self) -> None:
        self.connections = 0
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        """Listen on a free port and return it."""
        self._server = await asyncio.start_server(self._refuse, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    def _refuse(self, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


async def test_unreachable_leader_is_retried_and_logged_once() -> None:
    async with brokers(2) as rigs:
        leader = rigs[0].registration()
        refusing = RefusingServer()
        nowhere = (dataclasses.replace(leader.listeners[0], port=await refusing.start()),)
        await rigs[0].follow(topic(), partition(replicas=(1, 2), isr=[1]))
        await rigs[0].ask(produce(batch(), acks=1), 9)
        with capture_logs() as logged:
            rigs[1].replay(dataclasses.replace(leader, listeners=nowhere))
            await rigs[1].follow(topic(), partition(replicas=(1, 2), isr=[1]))
            await until(lambda: refusing.connections >= 3)
            rigs[1].replay(leader)
            await until(lambda: end(rigs[1]) == 1)
            await until(lambda: "replica_fetch_resumed" in [line["event"] for line in logged])
        fetches = [line["event"] for line in logged if line["event"].startswith("replica_fetch_")]
        assert fetches == ["replica_fetch_failed", "replica_fetch_resumed"]
        await refusing.stop()


async def test_new_replica_is_fetched_before_a_waiting_fetch_reaches_its_max_wait() -> None:
    async with brokers(2, replica_fetch_wait_max_ms="29000") as rigs:
        await host(rigs)
        await rigs[0].ask(produce(batch(1)), 9)
        for rig in rigs:
            await rig.follow(partition(1, replicas=(1, 2)))
        other = TP._replace(partition=1)
        written = await rigs[0].ask(produce(batch(1), tp=other, timeout_ms=20_000), 9)
        assert written.responses[0].partition_responses[0].error_code == 0


async def test_follower_append_that_fails_without_directory_failure_is_retried() -> None:
    """EINVAL blames the call and not the disk, so that the directory stays online."""
    sick = FaultVfs(MemVfs())
    async with brokers(2, sick, MemVfs()) as rigs:
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(2, 1), leader=2))
        await rigs[1].ask(produce(batch()), 9)
        sick.inject(Fault(errno=EINVAL, kinds=frozenset({"write_at"}), sticky=False))
        written = await rigs[1].ask(produce(batch(), timeout_ms=20_000), 9)
        assert written.responses[0].partition_responses[0].error_code == 0
        assert rigs[0].dirs[0].is_online
        assert end(rigs[0]) == 2


def bytes_of(rig: BrokerRig) -> bytes:
    """The log of the replica on its disk."""
    vfs = rig.dirs[0].vfs
    return b"".join(
        vfs.read_if_exists(f"/d1/t-0/{entry.name}") or b""
        for entry in vfs.list_dir("/d1/t-0")
        if entry.name.endswith(".log")
    )


@each_case("seed", range(4))
async def test_logs_are_identical_after_a_random_sequence_of_leaders(seed: int) -> None:
    """KIP-101, KIP-279: each leader appends records that other replicas must not keep."""
    rng = random.Random(seed)
    async with brokers(3) as rigs:
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2, 3)))
        for epoch in range(1, 8):
            leader = rigs[rng.randrange(3)]
            # Some brokers follow the new leader immediately, the others after its appends.
            behind = [rig for rig in rigs if rig is not leader and rng.random() < 0.6]
            record = partition(replicas=(1, 2, 3), leader=leader.broker_id, epoch=epoch)
            for rig in rigs:
                if rig not in behind:
                    rig.replay(record)
            for _ in range(rng.randrange(3)):
                body = rng.randbytes(rng.randrange(1, 200))
                await leader.ask(produce(batch(rng.randrange(1, 4), body=body), acks=1), 9)
            for rig in behind:
                rig.replay(record)
        record = partition(replicas=(1, 2, 3), leader=2, epoch=9)
        for rig in rigs:
            rig.replay(record)
        written = await rigs[1].ask(produce(batch(), timeout_ms=20_000), 9)
        assert written.responses[0].partition_responses[0].error_code == 0
        assert bytes_of(rigs[0]) == bytes_of(rigs[1]) == bytes_of(rigs[2])
        assert end(rigs[0]) == end(rigs[1]) == end(rigs[2])


async def write_if_it_leads(
    connection: KafkaConnection, body: bytes, acks: int, acknowledged: list[bytes]
) -> None:
    records = batch(2, body=body)
    response = await connection.request(
        produce(records, acks=acks, timeout_ms=300), timeout_ms=TIMEOUT_MS, version=9
    )
    if acks == -1 and only(response).error_code == 0:
        acknowledged.append(body)


@each_case("seed", range(6))
async def test_records_acknowledged_with_acks_all_survive_a_random_sequence_of_leaders(
    seed: int,
) -> None:
    """Producers write continuously, brokers learn of leaders in any order, and one disk is slow."""
    rng = random.Random(seed)
    slow = FaultVfs(MemVfs())
    slow.inject(Fault(effect=DiskFault.SLOW, kinds=frozenset({"write_at"}), delay_s=0.002))
    acknowledged: list[bytes] = []
    async with brokers(3, slow, MemVfs()) as rigs:
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2, 3)))
        connections = [await rig.connect() for rig in rigs]
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as writes:
            for epoch in range(1, 10):
                record = partition(replicas=(1, 2, 3), leader=rng.randint(1, 3), epoch=epoch)
                for rig in rng.sample(rigs, 3):
                    rig.replay(record)
                    body = b"<%d>" % rng.getrandbits(64)
                    connection, acks = rng.choice(connections), rng.choice([1, -1])
                    writes.create_task(write_if_it_leads(connection, body, acks, acknowledged))
                    await asyncio.sleep(rng.choice([0, 0.005]))
        for rig in rigs:
            rig.replay(partition(replicas=(1, 2, 3), leader=2, epoch=10))
        last = only(await rigs[1].ask(produce(batch(), timeout_ms=TIMEOUT_MS), 9))
        assert last.error_code == 0
        assert bytes_of(rigs[0]) == bytes_of(rigs[1]) == bytes_of(rigs[2])
        assert [body for body in acknowledged if body not in bytes_of(rigs[1])] == []


@pytest.mark.parametrize(
    ("kind", "path"), [("truncate", "*.log"), ("write_at", "*/recovery-point-offset-checkpoint*")]
)
async def test_replica_being_truncated_becomes_leader_after_the_truncation(
    kind: str, path: str
) -> None:
    """The records to truncate do not count as part of the new leader's log."""
    sick = FaultVfs(MemVfs())
    async with brokers(2, sick, MemVfs()) as rigs:
        await host(rigs)
        await rigs[0].ask(produce(batch(2)), 9)
        # Another replica keeps the fetcher of broker 1 running.
        for rig in rigs:
            await rig.follow(partition(1, replicas=(1, 2), leader=2))
        # Broker 1 does not know yet that broker 2 leads.
        rigs[1].replay(partition(replicas=(1, 2), leader=2, epoch=1))
        await rigs[0].ask(produce(batch(3), acks=1), 9)
        handle, replica = rigs[0].logs.get(TP), rigs[0].parts.hosted.require(TP)
        assert handle is not None and replica.partition is not None
        await handle.flush()
        await rigs[0].logs.checkpoint_offsets(handle.log_dir)
        assert (end(rigs[0]), end(rigs[1])) == (5, 2)
        with Gate(sick, kind, path) as gate:
            rigs[0].replay(partition(replicas=(1, 2), leader=2, epoch=1))
            await gate.reached()
            rigs[0].replay(partition(replicas=(1, 2), isr=[1], leader=1, epoch=2))
            asked = asyncio.ensure_future(rigs[0].ask(produce(batch(1), acks=1), 9))
            await settle()
            gate.open()
            refused = only(await asked)
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until(lambda: replica.partition is not None and replica.partition.is_leader)
        assert end(rigs[0]) == 2
        assert replica.partition.leader_epoch_start_offset == replica.partition.log_end_offset == 2
        # Broker 2 has the same records and may rejoin the ISR.
        assert only(await rigs[0].ask(produce(batch(1), acks=1), 9)).base_offset == 2


async def test_replica_being_appended_to_becomes_leader_after_the_append() -> None:
    """The late append is below the start of the new leader epoch and is replicated."""
    sick = FaultVfs(MemVfs())
    async with brokers(3, sick, MemVfs()) as rigs:
        three = {"replicas": (1, 2, 3)}
        for rig in rigs:
            await rig.follow(topic(), partition(**three, leader=2))
        await rigs[1].ask(produce(batch(1)), 9)
        replica = rigs[0].parts.hosted.require(TP)
        with Gate(sick, "write_at", "*.log") as gate:
            written = asyncio.ensure_future(rigs[1].ask(produce(batch(1), acks=1), 9))
            await gate.reached()
            await written
            rigs[0].replay(partition(**three, leader=1, epoch=1))
            gate.open()
        await until(lambda: replica.partition is not None and replica.partition.is_leader)
        assert replica.partition is not None
        assert replica.partition.leader_epoch_start_offset == replica.partition.log_end_offset == 2
        for rig in rigs[1:]:
            rig.replay(partition(**three, leader=1, epoch=1))
        await until(lambda: replica.partition is not None and replica.partition.high_watermark == 2)


async def test_log_whose_truncation_failed_is_not_fetched_into() -> None:
    """The log still diverges from the leader's log."""
    sick = FaultVfs(MemVfs())
    async with brokers(2, sick, MemVfs()) as rigs:
        for rig in rigs:
            await rig.follow(topic(), partition(replicas=(1, 2)))
        await rigs[0].ask(produce(batch(2)), 9)
        handle = rigs[0].logs.get(TP)
        assert handle is not None
        await rigs[0].ask(produce(batch(3), acks=1), 9)
        await until(lambda: end(rigs[1]) == 5)
        rigs[1].replay(partition(replicas=(1, 2), leader=2, epoch=1))
        follower = rigs[1].logs.get(TP)
        assert follower is not None
        await follower.truncate_to(2)
        sick.inject(Fault(errno=EINVAL, kinds=frozenset({"truncate"})))
        with capture_logs() as logged:

            def delays() -> int:
                return [line["event"] for line in logged].count("replica_fetch_delayed")

            rigs[0].replay(partition(replicas=(1, 2), leader=2, epoch=1))
            await until(lambda: delays() >= 1)
            # These records have the offsets 2 to 7: a fetch from offset 5 would find some of them.
            for _ in range(3):
                await rigs[1].ask(produce(batch(2), acks=1), 9)
            before = delays()
            await until(lambda: delays() > before)
        assert end(rigs[0]) == 5
        sick.clear()
        await until(lambda: end(rigs[0]) == 8)


# --- KIP-73 --------------------------------------------------------------------------------------

RATE = "follower.replication.throttled.rate"
LISTED = "follower.replication.throttled.replicas"
UNLIMITED = str(2**63 - 1)
OTHER = TopicPartition("t", 1)


def setting(kind: ResourceType, name: str, key: str, value: str) -> ConfigRecord:
    return ConfigRecord(resource_type=kind, resource_name=name, name=key, value=value)


def end_of(rig: BrokerRig, tp: TopicPartition) -> int:
    handle = rig.logs.get(tp)
    return -1 if handle is None else handle.log_end_offset


async def host_throttled(rigs: list[BrokerRig], listed: str, *, isr: tuple[int, ...]) -> None:
    """Broker 1 leads partitions 0 and 1 with a record each; broker 2 may fetch one byte per
    second."""
    parts = [partition(i, replicas=(1, 2), isr=isr) for i in (0, 1)]
    settings = [
        setting(ResourceType.TOPIC, "t", LISTED, listed),
        setting(ResourceType.BROKER, "2", RATE, "1"),
    ]
    await rigs[0].follow(topic(), *settings, *parts)
    for tp in (TP, OTHER):
        await rigs[0].ask(produce(batch(), acks=1, tp=tp), 9)
    await rigs[1].follow(topic(), *settings, *parts)


async def test_throttled_replica_waits_and_unthrottled_replica_does_not() -> None:
    async with brokers(2) as rigs:
        await host_throttled(rigs, "0:2", isr=(1,))
        # The first bytes overdraw the quota for longer than this test takes.
        await until(lambda: end_of(rigs[1], TP) == 1 and end_of(rigs[1], OTHER) == 1)
        replica = rigs[1].parts.hosted.require(TP)
        await until(lambda: replica.partition is not None and replica.partition.high_watermark == 1)
        rigs[0].replay(partition(0, replicas=(1, 2), isr=(1,), epoch=1))
        rigs[1].replay(partition(0, replicas=(1, 2), isr=(1,), epoch=1))
        for tp in (TP, OTHER, OTHER, OTHER):
            await rigs[0].ask(produce(batch(), acks=1, tp=tp), 9)
        await until(lambda: end_of(rigs[1], OTHER) == 4)
        assert end_of(rigs[1], TP) == 1
        rigs[1].replay(setting(ResourceType.BROKER, "2", RATE, UNLIMITED))
        await until(lambda: end_of(rigs[1], TP) == 2)


async def test_throttled_replicas_are_all_fetched_after_the_rate_is_raised() -> None:
    """At one byte per second the first response overdraws the quota for longer than the test."""
    async with brokers(
        2, replica_fetch_max_bytes="1000", replica_fetch_response_max_bytes="1000"
    ) as rigs:
        await host_throttled(rigs, "*", isr=(1,))
        await until(lambda: end_of(rigs[1], TP) + end_of(rigs[1], OTHER) >= 1)
        rigs[1].replay(setting(ResourceType.BROKER, "2", RATE, UNLIMITED))
        await until(lambda: end_of(rigs[1], TP) + end_of(rigs[1], OTHER) == 2)


async def test_in_sync_follower_is_not_throttled() -> None:
    async with brokers(2) as rigs:
        await host_throttled(rigs, "*", isr=(1, 2))
        for _ in range(3):
            written = await rigs[0].ask(produce(batch(), acks=-1), 9)
            assert only(written).error_code == 0
        assert end(rigs[1]) == 4
