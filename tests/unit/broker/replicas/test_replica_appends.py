"""``ReplicaAppends``: the append of a produce to one partition."""

from __future__ import annotations

import asyncio
import gc
import random
import struct
import threading

import uvloop

from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.broker.replicas.pending_append import MarkerToWrite, PendingAppend, TransactionClaim
from kraftjbod.broker.replicas.replica_appends import ReplicaAppends, Verify
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.loop.completion import Completion
from kraftjbod.metadata.records import (
    ConfigRecord,
    PartitionChangeRecord,
    RemoveTopicRecord,
    ResourceType,
)
from kraftjbod.protocol.control_records import TransactionMarker
from kraftjbod.protocol.record_batch import Compression, batches, compute_crc
from kraftjbod.protocol.records import Record, build_batch, read_records
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.each_case import each_case
from tests.faults.rig import batch
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.broker_rig import (
    TOPIC_ID,
    TP,
    BrokerRig,
    brokers,
    fetch,
    only,
    partition,
    topic,
)
from tests.unit.broker.gates import Gate, until
from tests.unit.broker.scripted_controller import RealClock


def appends_of(
    rig: BrokerRig, max_checking_bytes: int = 1 << 20, verify: Verify | None = None
) -> ReplicaAppends:
    return ReplicaAppends(
        verify=verify,
        replicas=rig.parts.hosted,
        topic_configs=TopicConfigs(defaults=rig.config.topic_defaults(), cache=rig.parts.cache),
        clock=RealClock(),
        metrics=rig.around.metrics,
        max_unpacked_bytes=128 * 1024 * 1024,
        max_records=1_000_000,
        max_checking_bytes=max_checking_bytes,
    )


async def test_queued_appends_keep_their_order() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        appends = appends_of(rig)
        pending = [appends.append_records(TP, batch(), acks=1, timeout_ms=1_000) for _ in range(5)]
        outcomes = await appends.outcomes(pending, list, suspect_after_ms=60_000)
        assert [outcome.base_offset for outcome in outcomes] == [0, 1, 2, 3, 4]


CLAIM = TransactionClaim("x", supports_epoch_bump=False)


def in_transaction(sequence: int) -> bytes:
    return build_batch(
        [Record(value=b"%d" % sequence)],
        producer_id=7,
        producer_epoch=0,
        base_sequence=sequence,
        is_transactional=True,
    )


@each_case("seed", range(6))
async def test_transactional_appends_keep_their_order_regardless_of_verification_delay(
    seed: int,
) -> None:
    """Each append follows while earlier ones wait for the disk, the coordinator, or both."""
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()

    def verify(*_asked: object) -> Completion[ErrorCode]:
        asking = Completion[ErrorCode]()
        loop.call_later(rng.choice([0, 0.001, 0.004]), asking.set_result, ErrorCode.NONE)
        return asking

    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        appends, sequence = appends_of(rig, verify=verify), 0
        for _transaction in range(4):
            row = []
            for _ in range(rng.randrange(1, 6)):
                row.append(
                    appends.append_records(
                        TP, in_transaction(sequence), acks=1, timeout_ms=1_000, transaction=CLAIM
                    )
                )
                sequence += 1
                if rng.random() < 0.4:
                    await asyncio.sleep(rng.choice([0, 0.001, 0.003]))
            outcomes = await appends.outcomes(row, list, suspect_after_ms=60_000)
            assert {outcome.code for outcome in outcomes} == {ErrorCode.NONE}, outcomes
            offsets = [outcome.base_offset for outcome in outcomes]
            assert offsets == list(range(offsets[0], offsets[0] + len(row)))
            ends = MarkerToWrite(7, 0, TransactionMarker(is_commit=True, coordinator_epoch=0))
            ended = await appends.append_marker(TP, ends, timeout_ms=1_000)
            assert ended.code is ErrorCode.NONE


async def test_append_by_a_replaced_leader_is_not_acknowledged() -> None:
    """The leader is checked again after the write, because the new leader may truncate it."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        pending = appends_of(rig).append_records(TP, batch(), acks=1, timeout_ms=1_000)
        rig.replay(partition(replicas=(1, 2), leader=2, epoch=1))
        assert (await pending).code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_append_of_a_cancelled_caller_takes_effect() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        appends = appends_of(rig)
        pending = appends.append_records(TP, batch(2), acks=-1, timeout_ms=1_000)
        waiting = appends.outcomes([pending], list, suspect_after_ms=60_000).future()
        await asyncio.sleep(0)
        waiting.cancel()
        replica = rig.parts.hosted.get(TP)
        assert replica is not None and replica.partition is not None
        while replica.partition.high_watermark != 2:
            await asyncio.sleep(0.001)


async def test_append_with_too_few_in_sync_replicas_is_refused_before_the_write() -> None:
    async with brokers(min_insync_replicas="2") as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        appends = appends_of(rig)
        refused = await appends.append_records(TP, batch(), acks=-1, timeout_ms=1_000)
        assert refused.code is ErrorCode.NOT_ENOUGH_REPLICAS
        assert (
            await appends.append_records(TP, batch(), acks=1, timeout_ms=1_000)
        ).base_offset == 0


async def test_acks_all_append_without_follower_fetches_times_out() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        pending = appends_of(rig).append_records(TP, batch(), acks=-1, timeout_ms=1)
        assert (await pending).code is ErrorCode.REQUEST_TIMED_OUT


async def test_waiting_acks_all_append_fails_when_the_isr_becomes_too_small() -> None:
    async with brokers(min_insync_replicas="2") as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2, 3), isr=[1, 2]))
        pending = appends_of(rig).append_records(TP, batch(), acks=-1, timeout_ms=60_000)
        await until(lambda: len(rig.parts.hosted.produces))
        rig.replay(
            PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=(BrokerId(1),)),
        )
        assert (await pending).code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_acks_all_append_fails_when_the_isr_becomes_too_small_during_the_write() -> None:
    slow = FaultVfs(MemVfs())
    async with brokers(1, slow, MemVfs(), min_insync_replicas="2") as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2), isr=[1, 2]))
        with Gate(slow, "write_at", "*.log") as gate:
            pending = appends_of(rig).append_records(TP, batch(), acks=-1, timeout_ms=60_000)
            await gate.reached()
            rig.replay(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=(BrokerId(1),)))
        assert (await pending).code is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND


async def test_idempotent_retry_waits_for_followers_like_the_first_append() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        appends, records = appends_of(rig), batch(2, producer=(9, 0, 0))
        first = appends.append_records(TP, records, acks=-1, timeout_ms=60_000)
        retry = appends.append_records(TP, records, acks=-1, timeout_ms=60_000)
        await until(lambda: len(rig.parts.hosted.produces) == 2)
        replica = rig.parts.hosted.require(TP)
        assert replica.handle is not None and replica.handle.log_end_offset == 2
        rig.replay(
            PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=(BrokerId(1),)),
        )
        outcomes = [await first, await retry]
        assert [(o.code, o.base_offset) for o in outcomes] == [(ErrorCode.NONE, 0)] * 2


async def test_append_to_a_topic_deleted_during_the_write_is_not_acknowledged() -> None:
    slow = FaultVfs(MemVfs())
    async with brokers(1, slow, MemVfs()) as (rig,):
        await rig.follow(topic(), partition())
        with Gate(slow, "write_at", "*.log") as gate:
            pending = appends_of(rig).append_records(TP, batch(), acks=-1, timeout_ms=60_000)
            await gate.reached()
            rig.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
        assert (await pending).code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_append_during_a_directory_failure_returns_storage_error() -> None:
    """The client must learn about the failed disk, not about another leader."""
    slow = FaultVfs(MemVfs())
    async with brokers(1, slow, MemVfs()) as (rig,):
        await rig.follow(topic(), partition())
        with Gate(slow, "write_at", "*.log") as gate:
            pending = appends_of(rig).append_records(TP, batch(), acks=1, timeout_ms=60_000)
            await gate.reached()
            rig.parts.manager.mark_offline(rig.dirs[0])
        assert (await pending).code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_append_failure_of_a_directory_fails_appends_of_all_its_partitions() -> None:
    sick = FaultVfs(MemVfs())
    async with brokers(1, sick, MemVfs()) as (rig,):
        await rig.follow(topic(), partition(), partition(1))
        appends = appends_of(rig)
        sick.inject(Fault(kinds=frozenset({"write_at"})))
        hit = appends.append_records(TP, batch(), acks=-1, timeout_ms=60_000)
        beside = appends.append_records(
            TP._replace(partition=1), batch(), acks=1, timeout_ms=60_000
        )
        assert (await hit).code is ErrorCode.KAFKA_STORAGE_ERROR
        assert (await beside).code is ErrorCode.KAFKA_STORAGE_ERROR
        assert [log_dir.is_online for log_dir in rig.dirs] == [False, True]


async def test_append_that_finishes_after_the_response_is_in_the_log() -> None:
    slow = FaultVfs(MemVfs())
    async with brokers(1, slow, MemVfs()) as (rig,):
        await rig.follow(topic(), partition())
        appends = appends_of(rig)
        with Gate(slow, "write_at", "*.log") as gate:
            pending = appends.append_records(TP, batch(3), acks=-1, timeout_ms=60_000)
            await gate.reached()
            (outcome,) = await appends.outcomes([pending], list, suspect_after_ms=1)
            assert outcome.code is ErrorCode.KAFKA_STORAGE_ERROR
        replica = rig.parts.hosted.require(TP)
        await until(lambda: replica.partition and replica.partition.high_watermark == 3)
        assert rig.dirs[0].is_online


async def test_appends_wait_at_the_gate_in_order_without_abandoned_ones() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        appends, replica = appends_of(rig), rig.parts.hosted.get(TP)
        assert replica is not None
        replica.gate.close()
        abandoned = appends.append_records(TP, batch(), acks=1, timeout_ms=1_000)
        (outcome,) = await appends.outcomes([abandoned], list, suspect_after_ms=1)
        assert outcome.code is ErrorCode.KAFKA_STORAGE_ERROR
        pending = [appends.append_records(TP, batch(), acks=1, timeout_ms=1_000) for _ in range(3)]
        assert not any(one.done() for one in pending)
        replica.gate.open()
        outcomes = await appends.outcomes(pending, list, suspect_after_ms=60_000)
        assert [one.base_offset for one in outcomes] == [0, 1, 2]


async def test_append_waiting_at_the_gate_of_a_deleted_topic_is_refused() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        appends, replica = appends_of(rig), rig.parts.hosted.get(TP)
        assert replica is not None
        replica.gate.close()
        pending = appends.append_records(TP, batch(), acks=1, timeout_ms=1_000)
        rig.replay(RemoveTopicRecord(topic_id=TOPIC_ID))
        replica.gate.open()
        assert (await pending).code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


LARGE = [Record(value=bytes(1000))] * 2000
"""More than is checked on the loop, as soon as it is compressed."""


async def test_batch_checked_in_a_thread_keeps_its_order_within_the_partition() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), partition(1))
        appends, other = appends_of(rig), TP._replace(partition=1)
        large = build_batch(LARGE, compression=Compression.ZSTD)
        sent = [batch(), large, batch(2), large, batch(3)]
        pending = [appends.append_records(TP, one, acks=1, timeout_ms=1_000) for one in sent]
        beside = appends.append_records(other, batch(), acks=1, timeout_ms=1_000)
        assert [one.is_being_checked for one in (*pending, beside)] == [False, *[True] * 4, False]
        outcomes = await appends.outcomes([*pending, beside], list, suspect_after_ms=60_000)
        assert [one.base_offset for one in outcomes] == [0, 1, 2001, 2003, 4003, 0]
        appends.close()


async def test_batches_are_recompressed_by_topic_config_and_retries_are_recognized() -> None:
    async with brokers() as (rig,):
        compression = ConfigRecord(
            resource_type=ResourceType.TOPIC,
            resource_name="t",
            name="compression.type",
            value="zstd",
        )
        await rig.follow(topic(), partition(), compression)
        appends = appends_of(rig)
        records, producer = [Record(value=bytes(500))] * 3, {"producer_id": 9, "producer_epoch": 0}
        sent = [
            build_batch(records, base_sequence=sequence, compression=compression, **producer)
            for sequence, compression in (
                (0, Compression.NONE),
                (3, Compression.ZSTD),
                (6, Compression.GZIP),
                (0, Compression.NONE),
            )
        ]
        pending = [appends.append_records(TP, one, acks=1, timeout_ms=1_000) for one in sent]
        assert all(one.is_being_checked for one in pending)
        outcomes = await appends.outcomes(pending, list, suspect_after_ms=60_000)
        assert [one.base_offset for one in outcomes] == [0, 3, 6, 0]
        read = only(await rig.ask(fetch(), 11)).records
        assert [header.compression for _, header in batches(read)] == [Compression.ZSTD] * 3
        assert [r.value for r in read_records(read)] == [bytes(500)] * 3
        appends.close()


async def test_invalid_large_batch_does_not_block_later_batches() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        appends = appends_of(rig)
        large = bytearray(build_batch(LARGE, compression=Compression.ZSTD))
        large[-20:] = bytes(20)
        struct.pack_into(">I", large, 17, compute_crc(large, 0, len(large)))
        bad = appends.append_records(TP, bytes(large), acks=1, timeout_ms=1_000)
        good = appends.append_records(TP, batch(), acks=1, timeout_ms=1_000)
        assert (await bad).code is ErrorCode.INVALID_RECORD
        assert (await good).base_offset == 0
        appends.close()


async def test_append_abandoned_during_its_check_is_not_written() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        appends = appends_of(rig)
        large = build_batch(LARGE, compression=Compression.ZSTD)
        busy = threading.Event()
        appends._checker.begin_op(busy.wait)
        pending = [
            appends.append_records(TP, one, acks=1, timeout_ms=9) for one in (large, batch())
        ]
        outcomes = await appends.outcomes(pending, list, suspect_after_ms=0)
        assert [one.code for one in outcomes] == [ErrorCode.REQUEST_TIMED_OUT] * 2
        busy.set()
        after = appends.append_records(TP, batch(), acks=1, timeout_ms=1_000)
        assert (await after).base_offset == 0
        appends.close()


async def test_append_by_a_leader_replaced_during_the_check_is_not_written() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        appends = appends_of(rig)
        large = build_batch(LARGE, compression=Compression.ZSTD)
        pending = appends.append_records(TP, large, acks=1, timeout_ms=1_000)
        assert pending.is_being_checked
        rig.replay(partition(replicas=(1, 2), leader=2, epoch=1))
        assert (await pending).code is ErrorCode.NOT_LEADER_OR_FOLLOWER
        replica = rig.parts.hosted.require(TP)
        assert replica.handle is not None and replica.handle.log_end_offset == 0
        appends.close()


async def test_bytes_waiting_for_a_check_are_limited() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), partition(1))
        appends = appends_of(rig, max_checking_bytes=1)
        large = build_batch(LARGE, compression=Compression.ZSTD)
        # The first batch is always accepted; otherwise no large batch could be.
        first = appends.append_records(TP, large, acks=1, timeout_ms=1_000)
        other = appends.append_records(TP._replace(partition=1), large, acks=1, timeout_ms=1_000)
        assert (await other).code is ErrorCode.REQUEST_TIMED_OUT
        assert (await first).base_offset == 0
        appends.close()


def test_append_with_elapsed_deadline_fails_on_uvloop() -> None:
    """uvloop runs an elapsed timer in the next event loop iteration."""

    async def scene() -> None:
        async with brokers() as (rig,):
            await rig.follow(topic(), partition(replicas=(1, 2)))
            appends = appends_of(rig)
            waiting = [
                appends.outcomes(
                    [appends.append_records(TP, batch(), acks=-1, timeout_ms=1)],
                    list,
                    suspect_after_ms=ms,
                )
                for ms in (0, 0, 1)
            ]
            for outcomes in waiting:
                (outcome,) = await outcomes
                assert outcome.code is not ErrorCode.NONE

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())


def _pending() -> set[int]:
    """Ids of all ``PendingAppend`` objects, including those of other tests in this process."""
    return {id(one) for one in gc.get_objects() if isinstance(one, PendingAppend)}


async def test_finished_append_is_freed_without_garbage_collection() -> None:
    """The collector would free megabytes as late as bytes."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        appends = appends_of(rig)
        gc.disable()
        others = _pending()
        try:
            pending = appends.append_records(TP, batch(), acks=1, timeout_ms=1_000)
            (outcome,) = await appends.outcomes([pending], list, suspect_after_ms=60_000)
            assert outcome.code is ErrorCode.NONE
            del pending
            await asyncio.sleep(0)
            assert not _pending() - others
        finally:
            gc.enable()
