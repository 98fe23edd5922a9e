"""``BatchedAppends`` combines the records of one event loop iteration into batches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from kraftjbod.broker.internal.batched_appends import MOST_TOGETHER, BatchedAppends
from kraftjbod.broker.replicas.pending_append import AppendOutcome
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import LeaderEpoch
from kraftjbod.core.loop.completion import Completion
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.protocol.records import Record, build_batch
from tests.unit.broker.broker_rig import TP, BrokerRig, brokers, partition, topic
from tests.unit.broker.internal.test_internal_producer import sender

EPOCH = LeaderEpoch(0)


@pytest.fixture
async def rig() -> AsyncIterator[BrokerRig]:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        yield rig


@pytest.fixture
def appends(rig: BrokerRig) -> BatchedAppends:
    return BatchedAppends(sender(rig), timeout_ms=5_000)


def some(count: int, value: bytes = b"v") -> list[Record]:
    return [Record(value=value) for _ in range(count)]


async def ended(appending: Sequence[Completion[AppendOutcome]]) -> list[tuple[ErrorCode, int]]:
    outcomes = await asyncio.gather(*(each.future() for each in appending))
    return [(outcome.code, outcome.base_offset) for outcome in outcomes]


async def batches(rig: BrokerRig) -> list[int]:
    """Return the number of records of each batch in the log."""
    reader = rig.wiring.internal.reader(1 << 20)
    return [len(batch.records) async for batch in reader.read(TP, EPOCH)]


async def test_batched_append_returns_the_base_offset_of_each_caller(
    rig: BrokerRig, appends: BatchedAppends
) -> None:
    appending = [appends.append_records(TP, some(count), leader_epoch=EPOCH) for count in (2, 1, 3)]
    assert await ended(appending) == [(ErrorCode.NONE, at) for at in (0, 2, 3)]
    # The next event loop iteration starts another batch.
    appending = [appends.append_records(TP, some(1), leader_epoch=EPOCH)]
    assert await ended(appending) == [(ErrorCode.NONE, 6)]
    assert await batches(rig) == [6, 1]


async def test_batched_append_combines_records_of_callers_up_to_a_limit(
    rig: BrokerRig, appends: BatchedAppends
) -> None:
    counts = [MOST_TOGETHER + 100, MOST_TOGETHER, 1, MOST_TOGETHER - 1]
    appending = [appends.append_records(TP, some(count), leader_epoch=EPOCH) for count in counts]
    assert {code for code, _ in await ended(appending)} == {ErrorCode.NONE}
    assert await batches(rig) == [MOST_TOGETHER + 100, MOST_TOGETHER, MOST_TOGETHER]


async def test_batched_appends_flush_appends_immediately(
    rig: BrokerRig, appends: BatchedAppends
) -> None:
    appending = [appends.append_records(TP, some(1), leader_epoch=EPOCH)]
    appends.flush(TP)
    appending.append(appends.append_records(TP, some(1), leader_epoch=EPOCH))
    appends.flush(TP)
    assert await ended(appending) == [(ErrorCode.NONE, 0), (ErrorCode.NONE, 1)]
    assert await batches(rig) == [1, 1]


async def test_oversized_batched_append_fails_no_other_caller(
    rig: BrokerRig, appends: BatchedAppends
) -> None:
    sizes = [600_000, 600_000, 2_000_000, 10]
    appending = [appends.append_records(TP, some(1, bytes(n)), leader_epoch=EPOCH) for n in sizes]
    codes = [code for code, _ in await ended(appending)]
    assert codes == [
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.NONE,
    ]
    assert await batches(rig) == [1, 1, 1]


@pytest.mark.parametrize("is_gate_closed", [False, True])
async def test_append_after_flush_follows_records_that_are_too_large_for_one_batch(
    rig: BrokerRig, appends: BatchedAppends, is_gate_closed: bool
) -> None:
    """A transactional commit is such an append: it must not overtake the group's records."""
    gate = rig.parts.hosted.require(TP).gate
    if is_gate_closed:
        gate.close()
    appending = [
        appends.append_records(TP, some(1, bytes(600_000)), leader_epoch=EPOCH) for _ in "ab"
    ]
    appends.flush(TP)
    later = sender(rig).append_records(
        TP, build_batch(some(1)), leader_epoch=EPOCH, timeout_ms=5_000
    )
    await asyncio.sleep(0)
    if is_gate_closed:
        gate.open()
    assert await ended([*appending, later]) == [(ErrorCode.NONE, at) for at in range(3)]


async def test_batch_that_a_lowered_limit_refuses_is_retriable_for_its_callers(
    rig: BrokerRig, appends: BatchedAppends
) -> None:
    gate = rig.parts.hosted.require(TP).gate
    gate.close()
    appending = [appends.append_records(TP, some(1, bytes(600)), leader_epoch=EPOCH) for _ in "ab"]
    appends.flush(TP)
    appending.append(appends.append_records(TP, some(1, bytes(1200)), leader_epoch=EPOCH))
    appends.flush(TP)
    await rig.follow(
        ConfigRecord(
            resource_type=ResourceType.TOPIC,
            resource_name=TP.topic,
            name="max.message.bytes",
            value="1000",
        )
    )
    gate.open()
    refused = ErrorCode.NOT_ENOUGH_REPLICAS
    codes = [code for code, _ in await ended(appending)]
    assert codes == [refused, refused, ErrorCode.MESSAGE_TOO_LARGE]


async def test_batched_append_in_another_leader_epoch_fails_and_others_succeed(
    rig: BrokerRig, appends: BatchedAppends
) -> None:
    appending = [
        appends.append_records(TP, some(1), leader_epoch=LeaderEpoch(at)) for at in (0, 1, 0)
    ]
    codes = [code for code, _ in await ended(appending)]
    assert codes == [ErrorCode.NONE, ErrorCode.UNKNOWN_LEADER_EPOCH, ErrorCode.NONE]
    assert await batches(rig) == [1, 1]
