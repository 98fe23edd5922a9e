"""``InternalReader`` reads a led partition from its start to its end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from kraftjbod.broker.internal.internal_reader import InternalReader
from kraftjbod.core.errors import ErrorCode, NotLeaderOrFollowerError, OperatingError
from kraftjbod.core.ids import LeaderEpoch
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.protocol.record_batch import Compression
from kraftjbod.protocol.records import Record, build_batch
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from tests.unit.broker.broker_rig import TP, BrokerRig, brokers, partition, produce, topic
from tests.unit.broker.gates import settle
from tests.unit.broker.impaired_dirs import answer, stall

EPOCH = LeaderEpoch(0)


def reader(rig: BrokerRig, slice_bytes: int = 1) -> InternalReader:
    return InternalReader(
        replicas=rig.parts.hosted,
        damage_met=rig.parts.damaged.met,
        backoff=ExponentialBackoff(initial_ms=1, max_ms=5, random_unit=lambda: 0.5),
        slice_bytes=slice_bytes,
    )


async def write(rig: BrokerRig, *values: bytes, compression: int = Compression.NONE) -> None:
    batch = build_batch([Record(value=value) for value in values], compression=compression)
    await rig.ask(produce(batch, acks=1), 9)


async def read(rig: BrokerRig, slice_bytes: int = 1) -> list[tuple[int, bytes | None]]:
    return [
        (record.offset, record.value)
        async for batch in reader(rig, slice_bytes).read(TP, EPOCH)
        for record in batch.records
    ]


@pytest.mark.parametrize("slice_bytes", [1, 100, 1 << 20])
async def test_internal_reader_returns_all_records_in_order(slice_bytes: int) -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        assert await read(rig, slice_bytes) == []
        await write(rig, b"a", b"b")
        await write(rig, *[b"c"] * 500, compression=Compression.GZIP)
        await write(rig, b"d")
        found = await read(rig, slice_bytes)
        assert found == list(enumerate([b"a", b"b", *[b"c"] * 500, b"d"]))


async def test_internal_reader_waits_until_the_log_end_is_committed() -> None:
    """A leader without in-sync followers may lose the end of the log together with its power."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        await write(rig, b"a")
        reading = asyncio.ensure_future(read(rig))
        await settle()
        assert not reading.done()
        await rig.follow(partition(replicas=(1, 2), isr=(1,)))
        assert await reading == [(0, b"a")]


async def test_internal_reader_omits_deleted_records() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await write(rig, b"a", b"b")
        await write(rig, b"c")
        handle = rig.logs.get(TP)
        assert handle is not None
        await handle.start_at(1)
        assert await read(rig) == [(1, b"b"), (2, b"c")]


async def test_internal_reader_waits_for_a_stalled_directory() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await write(rig, b"a")
        stall(rig.dirs[0])
        reading = asyncio.ensure_future(read(rig))
        await settle()
        assert not reading.done()
        await answer(rig.dirs[0])
        assert await reading == [(0, b"a")]


async def test_internal_reader_stops_when_the_leadership_ends() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        await write(rig, b"a")
        await write(rig, b"b")
        reading = reader(rig).read(TP, EPOCH)
        assert (await anext(reading)).records[0].value == b"a"
        await rig.follow(partition(replicas=(1, 2), leader=2, epoch=1))
        with pytest.raises(OperatingError) as lost:
            await anext(reading)
        assert lost.value.code is ErrorCode.FENCED_LEADER_EPOCH
        with pytest.raises(NotLeaderOrFollowerError):
            await anext(reader(rig).read(TP, LeaderEpoch(1)))


async def test_internal_reader_returns_an_append_in_flight_to_an_empty_log() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        may_continue = threading.Event()
        busy = [
            log_dir.run_operation(OpKind.READ, lambda: may_continue.wait(5)) for log_dir in rig.dirs
        ]
        waiting = [asyncio.ensure_future(each) for each in busy]
        await asyncio.sleep(0)
        batch = build_batch([Record(value=b"a")])
        appending = rig.parts.appends.append_records(TP, batch, acks=1, timeout_ms=5_000)
        reading = asyncio.ensure_future(read(rig))
        await asyncio.sleep(0)
        may_continue.set()
        assert await reading == [(0, b"a")]
        await asyncio.gather(appending.future(), *waiting)
