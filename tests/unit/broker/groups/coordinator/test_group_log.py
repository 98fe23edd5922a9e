"""``GroupLog`` writes batches of group facts and reports their outcome."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kraftjbod.broker.groups.coordinator.group_log import Written
from kraftjbod.broker.groups.records.consumer_group_records import EpochFact, GroupEpoch
from kraftjbod.broker.groups.records.group_records import CommittedOffset, OffsetFact, record_of
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.records import Record
from tests.unit.broker.broker_rig import TP, BrokerRig
from tests.unit.broker.groups.group_rig import coordinator, group_log, lead
from tests.unit.broker.impaired_dirs import answer, stall

E = ErrorCode
RECORDS = [record_of(EpochFact("g", GroupEpoch(epoch=4)), 1)]


@pytest.fixture
async def rig() -> AsyncIterator[BrokerRig]:
    async with coordinator(offsets_commit_timeout_ms="40") as rig:
        yield rig


def parts(rig: BrokerRig) -> tuple[Any, Any]:
    """Return the log, and the led partition."""
    return group_log(rig), rig.parts.coordinator.led_of("g")


async def test_group_records_apply_only_after_replication(rig: BrokerRig) -> None:
    log, led = parts(rig)
    fact = OffsetFact("g", TP, CommittedOffset(offset=5, commit_ms=1))
    assert await log.write(led, [fact]) is E.NONE
    assert led.groups.offsets("g")[TP].offset == 5
    written = await log.write_records(led, RECORDS)
    assert written == Written(E.NONE, may_be_in_log=False, base_offset=1)
    assert await log.write(led, [EpochFact("g" * 40_000, GroupEpoch(epoch=4))]) is E.INVALID_REQUEST
    await lead(rig, 1, isr=(1, 2))
    later = OffsetFact("g", TP, CommittedOffset(offset=6, commit_ms=2))
    assert await log.write(led, [later]) is E.COORDINATOR_NOT_AVAILABLE
    assert led.groups.offsets("g")[TP].offset == 5


async def test_batch_over_the_topics_limit_is_reported_as_too_large(rig: BrokerRig) -> None:
    log, led = parts(rig)
    large = [Record(key=b"k", value=bytes(2 << 20))]
    assert await log.write_records(led, large) == Written(
        E.UNKNOWN_SERVER_ERROR, may_be_in_log=False, is_too_large=True
    )


async def test_write_that_is_not_replicated_in_time_may_be_in_the_log(rig: BrokerRig) -> None:
    log, led = parts(rig)
    await lead(rig, 1, isr=(1, 2))
    assert await log.write_records(led, RECORDS) == Written(
        E.COORDINATOR_NOT_AVAILABLE, may_be_in_log=True
    )


async def test_write_to_a_hanging_disk_may_be_in_the_log(rig: BrokerRig) -> None:
    log, led = parts(rig)
    stall(rig.dirs[0])
    assert await log.write_records(led, RECORDS) == Written(E.NOT_COORDINATOR, may_be_in_log=True)
    await answer(rig.dirs[0])


async def test_write_of_another_leader_epoch_is_refused(rig: BrokerRig) -> None:
    log, led = parts(rig)
    await lead(rig, 5)
    led.leader_epoch = 4
    assert await log.write_records(led, RECORDS) == Written(E.NOT_COORDINATOR, may_be_in_log=False)
