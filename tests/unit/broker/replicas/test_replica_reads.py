"""``ReplicaReads``: reads of one partition."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from kraftjbod.broker.partitions.fetch_sessions import REPLICA_READER, FetchFrom
from kraftjbod.broker.partitions.follower_state import Speaker
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.broker.replicas.replica_reads import (
    MAX_TIMESTAMP,
    NO_OFFSET,
    FoundOffset,
    ReplicaReads,
)
from kraftjbod.core.errors import ErrorCode, NotLeaderOrFollowerError
from kraftjbod.core.ids import BrokerId, PartitionEpoch
from kraftjbod.protocol.raw_records import empty_batch
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from tests.faults.rig import batch, headers_of
from tests.unit.broker.broker_rig import TP, BrokerRig, brokers, partition, produce, topic
from tests.unit.broker.gates import until
from tests.unit.broker.impaired_dirs import fill, stall
from tests.unit.broker.scripted_controller import RealClock

caught_up: list[BrokerId] = []
met: list[HostedReplica] = []


def reads_of(
    rig: BrokerRig, *, may_be_deposed: bool = False, has_heir: bool = False
) -> ReplicaReads:
    def note_damage(replica: HostedReplica) -> bool:
        met.append(replica)
        return has_heir

    def note(_replica: HostedReplica, follower: BrokerId) -> None:
        caught_up.append(follower)

    caught_up.clear()
    met.clear()
    return ReplicaReads(
        replicas=rig.parts.hosted,
        clock=RealClock(),
        follower_caught_up=note,
        damage_met=note_damage,
        may_be_deposed=lambda: may_be_deposed,
    )


def follower_from(offset: int, replica_id: int = 2) -> FetchFrom:
    return FetchFrom(TP, offset, 1000, 0, replica_id=BrokerId(replica_id), speaker=Speaker())


async def test_read_returns_committed_records_to_consumers_and_all_to_followers() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        await rig.ask(produce(batch(), acks=1), 9)
        reads = reads_of(rig)
        consumer = reads.read(FetchFrom(TP, 0, 1000), min_one_batch=True, is_first_read=True)
        follower = reads.read(follower_from(0), min_one_batch=True, is_first_read=True)
        assert (len(consumer.records) > 0, len(follower.records) > 0) == (False, True)


async def test_read_without_space_reports_omitted_records() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch()), 9)
        reads = reads_of(rig)
        wanted = FetchFrom(TP, 0, 0)
        assert reads.read(wanted, min_one_batch=False, is_first_read=True).is_left_out
        assert reads.read(wanted, min_one_batch=True, is_first_read=True).records


async def test_read_from_disk_returns_the_batch_that_contains_the_offset() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(2)), 9)
        data = await reads_of(rig).read_from_disk(FetchFrom(TP, 1, 1000), min_one_batch=True)
        assert [h.base_offset for h in headers_of(data.records)] == [0]
        gone = await reads_of(rig).read_from_disk(FetchFrom(TP, 9, 1000), min_one_batch=True)
        assert gone.code in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.NONE)


async def test_fetch_beyond_the_end_of_a_leader_in_doubt_returns_not_leader() -> None:
    """A leader that resumes after its session may lack records of a newer leader."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch()), 9)
        beyond = FetchFrom(TP, 9, 1000)
        for may_be_deposed, code in (
            (False, ErrorCode.OFFSET_OUT_OF_RANGE),
            (True, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ):
            reads = reads_of(rig, may_be_deposed=may_be_deposed)
            assert reads.read(beyond, min_one_batch=True, is_first_read=True).code is code
            found = await reads.read_from_disk(beyond, min_one_batch=True)
            assert found.code in (code, ErrorCode.NONE)


async def test_read_by_a_follower_outside_the_isr_is_reported_and_by_another_broker_refused() -> (
    None
):
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        reads = reads_of(rig)
        wanted = follower_from(0)
        reads.read(wanted, min_one_batch=True, is_first_read=True)
        reads.read(wanted, min_one_batch=True, is_first_read=False)
        assert caught_up == [2]
        stranger = wanted._replace(replica_id=BrokerId(9))
        refused = reads.read(stranger, min_one_batch=True, is_first_read=True)
        assert refused.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_repeated_read_of_a_follower_is_read_from_disk_and_checked() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        await rig.ask(produce(batch(2), acks=1), 9)
        reads = reads_of(rig)
        wanted = follower_from(0)
        looks = [
            reads.read(wanted, min_one_batch=True, is_first_read=is_first).is_in_memory
            for is_first in (True, False, True)
        ]
        assert looks == [True, True, False]
        # A repeated read of a consumer is no sign of damage.
        consumer = wanted._replace(replica_id=BrokerId(-1))
        for again in (consumer, consumer):
            assert reads.read(again, min_one_batch=True, is_first_read=True).is_in_memory


async def test_read_of_damaged_records_returns_corrupt_message_and_reports_the_damage() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        for _ in range(2):
            await rig.ask(produce(batch(2)), 9)
        handle = rig.logs.get(TP)
        assert handle is not None
        file = handle.view.segments[0].open()
        file.write_at(file.size() - 1, [b"!"])
        reads = reads_of(rig)
        sound = await reads.read_from_disk(FetchFrom(TP, 0, 1000), min_one_batch=True)
        assert (sound.code, len(sound.records)) == (ErrorCode.NONE, len(batch(2)))
        assert len(met) == 1
        for damaged in (
            await reads.read_from_disk(FetchFrom(TP, 2, 1000), min_one_batch=True),
            reads.read(FetchFrom(TP, 3, 1000), min_one_batch=True, is_first_read=True),
        ):
            assert damaged.code is ErrorCode.CORRUPT_MESSAGE
            assert (damaged.log_start_offset, damaged.high_watermark) == (0, 4)
        assert len(met) == 3


async def test_read_in_a_full_directory_succeeds() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        await rig.ask(produce(batch(), acks=1), 9)
        await fill(rig.dirs[0])
        for replica_id in (-1, 2):
            wanted = follower_from(0, replica_id)
            cached = reads_of(rig).read(wanted, min_one_batch=True, is_first_read=True)
            cold = await reads_of(rig).read_from_disk(wanted, min_one_batch=True)
            assert cached.records and cold.records


async def test_read_in_a_stalled_directory_is_empty_for_consumers_and_an_error_for_followers() -> (
    None
):
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        await rig.ask(produce(batch(), acks=1), 9)
        stall(rig.dirs[0])
        wanted = FetchFrom(TP, 0, 1000)
        cached = reads_of(rig).read(wanted, min_one_batch=True, is_first_read=True)
        cold = await reads_of(rig).read_from_disk(wanted, min_one_batch=True)
        for data in (cached, cold):
            assert (data.code, len(data.records), data.high_watermark) == (ErrorCode.NONE, 0, 1)
            assert data.is_in_memory, "no read in the directory's thread is needed"
        data = reads_of(rig).read(follower_from(0), min_one_batch=True, is_first_read=True)
        assert data.code is ErrorCode.KAFKA_STORAGE_ERROR
        rig.parts.manager.mark_offline(rig.dirs[0])
        data = await reads_of(rig).read_from_disk(FetchFrom(TP, 0, 1000), min_one_batch=True)
        assert data.code is ErrorCode.KAFKA_STORAGE_ERROR


async def test_consumer_read_skips_batches_without_records() -> None:
    """Compaction leaves batches without records.

    librdkafka treats a response with such batches only as too small, and fails after some. A
    follower receives them unchanged.
    """
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        handle = rig.logs.get(TP)
        assert handle is not None
        empty = [empty_batch(headers_of(batch(2, base_offset=offset))[0]) for offset in (0, 2, 4)]
        await handle.append_as_follower(b"".join(empty))
        await rig.ask(produce(batch(2)), 9)
        reads, wanted = reads_of(rig), FetchFrom(TP, 0, 100)
        data = reads.read(wanted, min_one_batch=True, is_first_read=True)
        assert [h.base_offset for h in headers_of(data.records)] == [6]
        data = await reads.read_from_disk(wanted, min_one_batch=True)
        assert [h.base_offset for h in headers_of(data.records)] == [6]
        follower = follower_from(0)._replace(max_bytes=100)
        data = await reads.read_from_disk(follower, min_one_batch=True)
        assert [h.base_offset for h in headers_of(data.records)] == [0]


async def test_debug_consumer_reads_a_follower_up_to_its_high_watermark() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2), leader=2))
        handle, hosted = rig.logs.get(TP), rig.parts.hosted.get(TP)
        assert handle is not None and hosted is not None and hosted.partition is not None
        empty = empty_batch(headers_of(batch(2))[0])
        await handle.append_as_follower(empty + batch(2, base_offset=2) + batch(2, base_offset=4))
        hosted.partition.fetched_from_leader(leader_high_watermark=4, log_end_offset=6)
        wanted = FetchFrom(TP, 0, 1000, replica_id=REPLICA_READER)
        reads = reads_of(rig)
        cached = reads.read(wanted, min_one_batch=True, is_first_read=True)
        cold = await reads.read_from_disk(wanted, min_one_batch=True)
        for data in (cached, cold):
            assert [h.base_offset for h in headers_of(data.records)] == [0, 2]
            assert (data.code, data.high_watermark) == (ErrorCode.NONE, 4)
        consumer = reads.read(FetchFrom(TP, 0, 1000), min_one_batch=True, is_first_read=True)
        assert consumer.code is ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_debug_consumer_read_of_a_follower_reports_damage_and_checks_the_epoch() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2), leader=2, epoch=3))
        handle, hosted = rig.logs.get(TP), rig.parts.hosted.get(TP)
        assert handle is not None and hosted is not None and hosted.partition is not None
        await handle.append_as_follower(batch(2))
        hosted.partition.fetched_from_leader(leader_high_watermark=2, log_end_offset=2)
        file = handle.view.segments[0].open()
        file.write_at(file.size() - 1, [b"!"])
        wanted = FetchFrom(TP, 0, 1000, replica_id=REPLICA_READER)
        reads = reads_of(rig)
        damaged = await reads.read_from_disk(wanted, min_one_batch=True)
        assert (damaged.code, met) == (ErrorCode.CORRUPT_MESSAGE, [hosted])
        fenced = wanted._replace(current_leader_epoch=2)
        data = reads.read(fenced, min_one_batch=True, is_first_read=True)
        assert data.code is ErrorCode.FENCED_LEADER_EPOCH


@contextmanager
def busy(log_dir: LogDir) -> Iterator[None]:
    """Occupy the directory's thread, so that later operations wait until the context ends."""
    gate = threading.Event()
    log_dir.submit_operation(OpKind.READ, gate.wait)
    try:
        yield
    finally:
        gate.set()


async def begin_search(reads: ReplicaReads, timestamp_ms: int) -> asyncio.Task[FoundOffset]:
    """Return a search whose first operation is queued."""
    search = asyncio.create_task(reads.find_offset(TP, timestamp_ms, current_leader_epoch=-1))
    await asyncio.sleep(0)
    return search


@pytest.mark.parametrize("timestamp_ms", [MAX_TIMESTAMP, 1_500, 9_999])
@pytest.mark.parametrize("leader", [1, 2])
async def test_find_offset_during_a_change_of_the_leader_epoch_raises_not_leader(
    timestamp_ms: int, leader: int
) -> None:
    """The log may be truncated or restarted meanwhile, and then nothing is found in it."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2), isr=[1]))
        await rig.ask(produce(batch(2, timestamp=2_000), acks=1), 9)
        hosted = rig.parts.hosted.get(TP)
        assert hosted is not None and hosted.partition is not None
        changed = hosted.partition
        with busy(rig.dirs[0]):
            search = await begin_search(reads_of(rig), timestamp_ms)
            rig.replay(partition(replicas=(1, 2), isr=[1, 2], leader=leader, epoch=1))
            await until(lambda: changed.leader_epoch == 1)
        with pytest.raises(NotLeaderOrFollowerError):
            await search


@pytest.mark.parametrize("timestamp_ms", [MAX_TIMESTAMP, 1_500])
async def test_find_offset_finds_records_that_are_committed_during_the_search(
    timestamp_ms: int,
) -> None:
    async with brokers() as (rig,):
        both = partition(replicas=(1, 2))
        await rig.follow(topic(), both)
        await rig.ask(produce(batch(2, timestamp=2_000), acks=1), 9)
        reads = reads_of(rig)
        uncommitted = await reads.find_offset(TP, timestamp_ms, current_leader_epoch=-1)
        assert uncommitted.offset == NO_OFFSET
        with busy(rig.dirs[0]):
            search = await begin_search(reads, timestamp_ms)
            rig.replay(replace(both, isr=(BrokerId(1),), partition_epoch=PartitionEpoch(1)))
            hosted = rig.parts.hosted.get(TP)
            assert hosted is not None and hosted.partition is not None
            assert hosted.partition.high_watermark == 2
        assert await search == FoundOffset(2_000, 0, 0)


@pytest.mark.parametrize("has_heir", [True, False])
async def test_find_offset_after_damage_is_refused_if_another_replica_has_the_records(
    has_heir: bool,
) -> None:
    """A search that skips the damage would answer an offset after an acknowledged record."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        for timestamp in (1_000, 2_000, 3_000):
            await rig.ask(produce(batch(timestamp=timestamp)), 9)
            handle = rig.logs.get(TP)
            assert handle is not None
            await handle.roll()
        handle.view.segments[1].open().truncate(0)
        reads = reads_of(rig, has_heir=has_heir)
        before = await reads.find_offset(TP, 500, current_leader_epoch=-1)
        assert (before.offset, len(met)) == (0, 0)
        if not has_heir:
            after = await reads.find_offset(TP, 1_500, current_leader_epoch=-1)
            assert after.offset == 2
        else:
            for timestamp in (1_500, 4_000, MAX_TIMESTAMP):
                with pytest.raises(NotLeaderOrFollowerError):
                    await reads.find_offset(TP, timestamp, current_leader_epoch=-1)
        assert (await reads.find_offset(TP, 500, current_leader_epoch=-1)).offset == 0
        assert met
