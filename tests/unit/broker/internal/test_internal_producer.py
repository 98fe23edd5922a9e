"""``InternalProducer`` sends batches of the broker to the leader of a partition."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.broker.internal.internal_producer import InternalProducer
from kraftjbod.core.errors import ConnectionLostError, ErrorCode, OperatingError
from kraftjbod.core.ids import LeaderEpoch, TopicId, TopicPartition
from kraftjbod.core.loop.timing import Deadline, ExponentialBackoff
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.protocol.telemetry.storage_telemetry import TOPIC
from tests.unit.broker.broker_rig import BrokerRig, brokers, partition, topic
from tests.unit.broker.gates import settle
from tests.unit.broker.impaired_dirs import answer, stall
from tests.unit.broker.scripted_controller import RealClock

ID = TopicId(b"s" * 16)
BATCH = build_batch([Record(value=b"a"), Record(value=b"b")])
LONG_MS = 20_000


class Sender(InternalProducer):
    """Sends as telemetry does, to the partition with this broker's id."""

    async def to_topic(self, deadline: Deadline) -> None:
        await self.send(
            TOPIC,
            BATCH,
            acks=1,
            deadline=deadline,
            choose=lambda partitions: self._broker_id % partitions,
        )


def sender(rig: BrokerRig) -> Sender:
    return Sender(
        broker_id=rig.broker_id,
        cache=rig.parts.cache,
        appends=rig.parts.appends,
        connector=rig.parts.connector,
        clock=RealClock(),
        backoff=ExponentialBackoff(initial_ms=5, max_ms=20, random_unit=lambda: 0.5),
        suspect_after_ms=50,
        purpose="test",
    )


def within(ms: int = LONG_MS) -> Deadline:
    return Deadline.after(RealClock().now_ms(), ms)


def end_of(rig: BrokerRig, index: int = 0) -> int:
    handle = rig.logs.get(TopicPartition(TOPIC, index))
    assert handle is not None
    return handle.log_end_offset


async def test_internal_producer_appends_locally_when_it_leads() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(TOPIC, ID), partition(topic_id=ID))
        await sender(rig).to_topic(within())
        assert end_of(rig) == 2


async def test_internal_producer_reuses_the_connection_to_another_leader() -> None:
    async with brokers(2) as rigs:
        for rig in rigs:
            await rig.follow(topic(TOPIC, ID), partition(replicas=(2,), leader=2, topic_id=ID))
        one = sender(rigs[0])
        for _ in range(3):
            await one.to_topic(within())
        assert end_of(rigs[1]) == 6
        assert rigs[1].listener.connection_count == 1
        one.close()


async def test_internal_producer_chooses_the_partition_by_broker_id() -> None:
    async with brokers() as (rig,):
        parts = [partition(index, topic_id=ID) for index in range(2)]
        await rig.follow(topic(TOPIC, ID), *parts)
        await sender(rig).to_topic(within())
        assert (end_of(rig, 0), end_of(rig, 1)) == (0, 2)


async def test_internal_producer_waits_for_topic_and_leader() -> None:
    async with brokers() as (rig,):
        sending = asyncio.ensure_future(sender(rig).to_topic(within()))
        await settle()
        await rig.follow(topic(TOPIC, ID), partition(leader=-1, topic_id=ID))
        await settle()
        assert not sending.done()
        await rig.follow(partition(topic_id=ID, epoch=1))
        await sending
        assert end_of(rig) == 2


async def test_internal_producer_waits_for_a_stalled_directory() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(TOPIC, ID), partition(topic_id=ID))
        stall(rig.dirs[0])
        sending = asyncio.ensure_future(sender(rig).to_topic(within()))
        await settle()
        assert not sending.done()
        await answer(rig.dirs[0])
        await sending
        assert end_of(rig) == 2


async def test_internal_producer_retries_with_the_next_leader() -> None:
    async with brokers(2) as rigs:
        for rig in rigs:
            await rig.follow(topic(TOPIC, ID), partition(replicas=(1, 2), leader=2, topic_id=ID))
        one = sender(rigs[0])
        await one.to_topic(within())
        await rigs[1].listener.close(timeout_ms=100)
        sending = asyncio.ensure_future(one.to_topic(within()))
        await settle()
        assert not sending.done()
        await rigs[0].follow(partition(replicas=(1, 2), isr=(1,), topic_id=ID, epoch=1))
        await sending
        one.close()


@pytest.mark.parametrize(
    ("records", "code"),
    [
        ([], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (
            [topic(TOPIC, ID), partition(leader=-1, topic_id=ID)],
            ErrorCode.LEADER_NOT_AVAILABLE,
        ),
    ],
    ids=["no topic", "no leader"],
)
async def test_internal_producer_after_its_deadline_raises_the_last_error(
    records: list, code: ErrorCode
) -> None:
    async with brokers() as (rig,):
        await rig.follow(*records)
        with pytest.raises(OperatingError) as found:
            await sender(rig).to_topic(within(30))
        assert found.value.code is code


async def test_internal_producer_does_not_connect_to_a_fenced_leader() -> None:
    async with brokers(2) as (rig, other):
        await rig.follow(topic(TOPIC, ID), partition(replicas=(2,), leader=2, topic_id=ID))
        await rig.follow(other.registration(fenced=True))
        with pytest.raises(ConnectionLostError):
            await sender(rig).to_topic(within(30))
        assert other.listener.connection_count == 0


# --- append in one leader epoch ------------------------------------------------------------------


async def append(rig: BrokerRig, epoch: int, timeout_ms: int = LONG_MS) -> ErrorCode:
    appending = sender(rig).append_records(
        TopicPartition(TOPIC, 0), BATCH, leader_epoch=LeaderEpoch(epoch), timeout_ms=timeout_ms
    )
    return (await appending).code


async def test_internal_append_in_an_old_leader_epoch_is_fenced() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(TOPIC, ID), partition(topic_id=ID, epoch=4))
        assert await append(rig, 4) is ErrorCode.NONE
        await rig.follow(partition(topic_id=ID, epoch=5))
        assert await append(rig, 4) is ErrorCode.FENCED_LEADER_EPOCH
        assert end_of(rig) == 2


async def test_internal_append_without_replication_times_out() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(TOPIC, ID), partition(replicas=(1, 2), topic_id=ID))
        assert await append(rig, 0, timeout_ms=30) is ErrorCode.REQUEST_TIMED_OUT
        assert end_of(rig) == 2


async def test_internal_append_to_a_stalled_directory_fails_immediately() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(TOPIC, ID), partition(topic_id=ID))
        stall(rig.dirs[0])
        assert await append(rig, 0) is ErrorCode.KAFKA_STORAGE_ERROR
        await answer(rig.dirs[0])
