"""Damaged logs: the replica is repaired or kept, and its directory stays online."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.replicas.replica_reads import MAX_TIMESTAMP
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import LOST_DIR
from kraftjbod.metadata.records import FeatureLevelRecord
from kraftjbod.protocol.messages import ListOffsetsRequest
from kraftjbod.protocol.rpc_messages import RpcRequest
from kraftjbod.storage.vfs import OpenMode
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch
from tests.faults.vfs_fault import without_cached_reads
from tests.unit.broker.broker_rig import (
    TP,
    BrokerRig,
    assigned,
    brokers,
    dir_of,
    fetch,
    only,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import until

BATCHES = 6
BODY = bytes(100)
SIZE = len(batch(body=BODY))
LOG = "t-0/00000000000000000000.log"


def damage(rig: BrokerRig, number: int, at: int = 80) -> None:
    """Flip a bit in batch ``number`` of the replica on its disk."""
    (directory,) = [d for d in rig.dirs if d.vfs.exists(f"{d.path}/{LOG}")]
    file = directory.vfs.open(f"{directory.path}/{LOG}", OpenMode.READ_WRITE)
    position = number * SIZE + at
    file.write_at(position, [bytes([file.read_at(position, 1)[0] ^ 1])])


def bytes_of(rig: BrokerRig) -> bytes:
    (directory,) = [d for d in rig.dirs if d.vfs.exists(f"{d.path}/{LOG}")]
    return directory.vfs.read_if_exists(f"{directory.path}/{LOG}") or b""


def end(rig: BrokerRig) -> int:
    handle = rig.logs.get(TP)
    return -1 if handle is None else handle.log_end_offset


async def write(rig: BrokerRig, *, acks: int = -1) -> None:
    for _ in range(BATCHES):
        written = only(await rig.ask(produce(batch(body=BODY), acks=acks), 9))
        assert written.error_code == 0


async def hosted(rigs: Sequence[BrokerRig], **more: Any) -> None:
    for rig in rigs:
        await rig.follow(topic(), partition(replicas=(1, 2), **more))


async def test_damaged_leader_reports_its_copy_as_lost_and_then_its_directory() -> None:
    async with brokers(2, without_cached_reads(MemVfs())) as rigs:
        await hosted(rigs)
        await write(rigs[0])
        damage(rigs[0], 3)
        with capture_logs() as logged:
            sound = only(await rigs[0].ask(fetch(0), 12))
            assert (sound.error_code, len(sound.records)) == (0, 3 * SIZE)
            refused = only(await rigs[0].ask(fetch(3), 12))
            assert refused.error_code == ErrorCode.CORRUPT_MESSAGE

            def is_reported(seen: list[RpcRequest]) -> bool:
                return assigned(rigs[0])[-2:] == [LOST_DIR, dir_of(1, 1)]

            await rigs[0].controller.wait_seen(is_reported)
        events = [line["event"] for line in logged]
        assert events.count("log_damaged") == 1
        assert events.count("damaged_leader_steps_down") == 1
        assert rigs[0].dirs[0].is_online
        # Batches after the damaged one are served.
        behind = only(await rigs[0].ask(fetch(4), 12))
        assert (behind.error_code, len(behind.records)) == (0, 2 * SIZE)


async def test_damaged_leader_that_finds_the_damage_in_a_search_by_time_steps_down() -> None:
    async with brokers(2) as rigs:
        await hosted(rigs)
        await write(rigs[0])
        handle = rigs[0].logs.get(TP)
        assert handle is not None
        await handle.roll()
        await write(rigs[0])
        (directory,) = [d for d in rigs[0].dirs if d.vfs.exists(f"{d.path}/{LOG}")]
        directory.vfs.open(f"{directory.path}/{LOG}", OpenMode.READ_WRITE).truncate(3 * SIZE)
        part = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=MAX_TIMESTAMP)
        topics = [ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[part])]
        (answered,) = (await rigs[0].ask(ListOffsetsRequest(topics=topics), 7)).topics
        (refused,) = answered.partitions
        assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        await until(lambda: LOST_DIR in assigned(rigs[0]))


@pytest.mark.parametrize("at", [16, 80])
@pytest.mark.parametrize("number", [0, 3, BATCHES - 1])
async def test_damaged_leader_that_stepped_down_truncates_and_fetches_again(
    number: int, at: int
) -> None:
    async with brokers(2, without_cached_reads(MemVfs())) as rigs:
        await hosted(rigs)
        await write(rigs[0])
        whole = bytes_of(rigs[1])
        damage(rigs[0], number, at)
        await rigs[0].ask(fetch(number), 12)
        for rig in rigs:
            rig.replay(
                partition(
                    replicas=(1, 2),
                    leader=2,
                    isr=[2],
                    epoch=1,
                    directories=[LOST_DIR, dir_of(2, 1)],
                )
            )
        handle = rigs[0].logs.get(TP)
        assert handle is not None
        await until(lambda: handle.damaged_from is None and end(rigs[0]) == BATCHES)
        await until(lambda: bytes_of(rigs[0]) == whole)
        written = only(await rigs[1].ask(produce(batch(body=BODY), acks=1), 9))
        assert written.error_code == 0
        await until(lambda: end(rigs[0]) == BATCHES + 1)


async def test_damaged_leader_without_in_sync_followers_keeps_serving_intact_batches() -> None:
    async with brokers(1, without_cached_reads(MemVfs())) as (rig,):
        await rig.follow(topic(), partition())
        await write(rig)
        damage(rig, 2)
        with capture_logs() as logged:
            for _ in range(3):
                refused = only(await rig.ask(fetch(2), 12))
                assert refused.error_code == ErrorCode.CORRUPT_MESSAGE
                served = only(await rig.ask(fetch(3), 12))
                assert len(served.records) == 3 * SIZE
            written = only(await rig.ask(produce(batch(body=BODY)), 9))
            assert written.error_code == 0
        events = [line["event"] for line in logged]
        assert events.count("damaged_leader_has_no_heir") == 1
        assert events.count("log_damaged") == 1
        assert LOST_DIR not in assigned(rig)


async def test_damaged_batch_that_a_follower_rejects_is_checked_by_the_leader() -> None:
    """Cached pages are sent without a check; the repeated fetch of the follower reveals the
    damage."""
    async with brokers(2) as rigs:
        await rigs[0].follow(topic(), partition(replicas=(1, 2), isr=[1]))
        await write(rigs[0])
        damage(rigs[0], 3)
        with capture_logs() as logged:
            await rigs[1].follow(topic(), partition(replicas=(1, 2), isr=[1]))
            await until(
                lambda: (
                    {"log_damaged", "damaged_leader_has_no_heir"}
                    <= {line["event"] for line in logged}
                )
            )
            await until(lambda: end(rigs[1]) == 3)
        assert rigs[0].dirs[0].is_online
        assert rigs[1].dirs[0].is_online
        # A follower that joins the ISR later becomes leader after the next read of the damage.
        for rig in rigs:
            rig.replay(partition(replicas=(1, 2), isr=[1, 2], epoch=0))
        await until(lambda: LOST_DIR in assigned(rigs[0]))


async def test_repeated_fetch_of_intact_batches_is_detected_per_follower() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        await write(rig, acks=1)
        replica = rig.parts.hosted.get(TP)
        assert replica is not None
        assert replica.partition is not None
        sent = [replica.partition.is_sent_again(b, 3) for b in replica.partition.replicas[1:] * 2]
        assert sent == [False, True]
        assert not replica.partition.is_sent_again(replica.partition.replicas[0], 3)


async def test_damaged_leader_at_a_level_without_directories_stays_leader() -> None:
    async with brokers(2, without_cached_reads(MemVfs())) as rigs:
        await hosted(rigs)
        await write(rigs[0])
        rigs[0].replay(FeatureLevelRecord(name="metadata.version", feature_level=14))
        damage(rigs[0], 2)
        before = assigned(rigs[0])
        with capture_logs() as logged:
            refused = only(await rigs[0].ask(fetch(2), 12))
        assert refused.error_code == ErrorCode.CORRUPT_MESSAGE
        assert "damaged_leader_has_no_heir" in [line["event"] for line in logged]
        assert assigned(rigs[0]) == before
        assert rigs[0].parts.assignments.queued == 0
