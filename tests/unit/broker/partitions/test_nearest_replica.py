"""Fetch from the nearest replica (KIP-392): replica selection, and fetches from followers."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from kraftjbod.core.config import RACK_AWARE_SELECTOR
from kraftjbod.core.errors import ConfigError, ErrorCode
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.metadata.records import (
    BrokerRegistrationChangeRecord,
    ImpairedLogDir,
    PartitionChangeRecord,
    Record,
)
from kraftjbod.protocol.messages import FetchRequest
from kraftjbod.protocol.record_batch import batches
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import (
    TOPIC_ID,
    TP,
    BrokerRig,
    brokers,
    dir_of,
    fetch,
    only,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import until

SELECTOR = {"replica_selector_class": RACK_AWARE_SELECTOR, "replica_fetch_wait_max_ms": "20000"}
NOT_HERE = ErrorCode.NOT_LEADER_OR_FOLLOWER


def near(rack: str, offset: int = 0, **more: Any) -> Any:
    request = fetch(offset, **more)
    assert isinstance(request, FetchRequest)
    request.rack_id = rack
    return request


async def asked(rig: BrokerRig, rack: str, offset: int = 0, **more: Any) -> tuple[int, int, int]:
    """Return the error code, the preferred read replica, and the number of batches."""
    part = only(await rig.ask(near(rack, offset, **more), 12))
    return part.error_code, part.preferred_read_replica, len(list(batches(part.records or b"")))


async def in_racks(rigs: list[BrokerRig], *racks: str, **more: Any) -> None:
    """Put each broker into its rack, with a partition that the first broker leads and all host."""
    registered: list[Record] = [
        dataclasses.replace(rig.registration(), rack=rack)
        for rig, rack in zip(rigs, racks, strict=True)
    ]
    replicas = range(1, len(rigs) + 1)
    for rig in rigs:
        await rig.follow(*registered, topic(), partition(replicas=tuple(replicas), **more))


async def replicated(rigs: list[BrokerRig], end: int) -> None:
    for rig in rigs:
        replica = rig.parts.hosted.require(TP)
        await until(lambda r=replica: r.handle is not None and r.handle.high_watermark == end)


async def test_fetch_with_rack_is_redirected_to_the_replica_of_that_rack() -> None:
    async with brokers(2, **SELECTOR) as rigs:
        await in_racks(rigs, "a", "b")
        leader, follower = rigs
        for _ in range(2):
            await leader.ask(produce(batch(2)), 9)
        # Fetches of followers wait longer than this test takes, so that they complete immediately.
        await replicated(rigs, 4)
        assert await asked(leader, "b") == (0, 2, 0)
        assert await asked(leader, "b", 4) == (0, 2, 0)
        for rack in ("a", "", "elsewhere"):
            assert await asked(leader, rack) == (0, -1, 2)
        assert await asked(follower, "b") == (0, -1, 2)
        # A record committed by the leader completes a fetch that waits at the follower.
        waiting = asyncio.ensure_future(asked(follower, "b", 4, max_wait_ms=20_000))
        await until(lambda: len(follower.parts.hosted.consumer_fetches) == 1)
        await leader.ask(produce(batch(2)), 9)
        assert await waiting == (0, -1, 1)
        # An offset above the follower's log is decided by the leader.
        beyond = await asked(follower, "b", 7)
        assert beyond == (ErrorCode.OFFSET_OUT_OF_RANGE, -1, 0)
        assert await asked(leader, "b", 7) == (ErrorCode.OFFSET_OUT_OF_RANGE, -1, 0)
        # Another leader epoch has another leader.
        old = await asked(follower, "b", current_leader_epoch=1)
        assert old == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1, 0)


async def test_fetch_is_not_redirected_to_replicas_outside_the_isr_or_with_impaired_disk() -> None:
    async with brokers(2, **SELECTOR) as rigs:
        await in_racks(rigs, "a", "b")
        leader, follower = rigs
        await leader.ask(produce(batch(2)), 9)
        await replicated(rigs, 2)
        stalled = BrokerRegistrationChangeRecord(
            broker_id=BrokerId(2),
            broker_epoch=BrokerEpoch(-1),
            impaired_log_dirs=(ImpairedLogDir(dir_of(2, 1), LogDirState.STALLED),),
        )
        await leader.follow(stalled)
        assert await asked(leader, "b") == (0, -1, 1)
        await leader.follow(dataclasses.replace(stalled, impaired_log_dirs=()))
        assert await asked(leader, "b") == (0, 2, 0)
        # The follower leaves the ISR; it answers with an error, and the leader redirects no fetch.
        lagging = PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=(BrokerId(1),))
        for rig in rigs:
            await rig.follow(lagging)
        assert await asked(leader, "b") == (0, -1, 1)
        assert await asked(follower, "b") == (NOT_HERE, -1, 0)
        follower.dirs[0].go_offline("test")
        await until(lambda: not follower.dirs[0].is_online)
        assert (await asked(follower, "b"))[0] in (ErrorCode.KAFKA_STORAGE_ERROR, NOT_HERE)


async def test_fetch_without_a_replica_selector_is_served_by_the_leader_only() -> None:
    async with brokers(2) as rigs:
        await in_racks(rigs, "a", "b")
        await rigs[0].ask(produce(batch(2)), 9)
        assert await asked(rigs[0], "b") == (0, -1, 1)
        assert await asked(rigs[1], "b") == (NOT_HERE, -1, 0)


async def test_unknown_replica_selector_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="is not known here"):
        async with brokers(1, replica_selector_class="com.example.Selector"):
            pass
