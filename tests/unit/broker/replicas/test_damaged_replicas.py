"""A log that is damaged on one broker: its replica heals or stays, and its directory lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import LOST_DIR
from kraftjbod.metadata.records import FeatureLevelRecord
from kraftjbod.protocol.rpc_messages import RpcRequest
from kraftjbod.storage.vfs import OpenMode
from tests.faults.rig import batch
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
    """Flip a bit in the ``number``-th batch of the replica as it lies on the disk."""
    (directory,) = [d for d in rig.dirs if d.vfs.exists(f"{d.path}/{LOG}")]
    file = directory.vfs.open(f"{directory.path}/{LOG}", OpenMode.READ_WRITE)
    position = number * SIZE + at
    file.write_at(position, [bytes([file.read_at(position, 1)[0] ^ 1])])


def bytes_of(rig: BrokerRig) -> bytes:
    (directory,) = [d for d in rig.dirs if d.vfs.exists(f"{d.path}/{LOG}")]
    return directory.vfs.read_if_exists(f"{directory.path}/{LOG}") or b""


def nothing_in_memory(rig: BrokerRig) -> None:
    for log_dir in rig.dirs:
        log_dir._cached_reads = False


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


async def test_a_damaged_leader_reports_its_copy_lost_and_then_where_it_is() -> None:
    async with brokers(2) as rigs:
        await hosted(rigs)
        await write(rigs[0])
        damage(rigs[0], 3)
        nothing_in_memory(rigs[0])
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
        # What stands behind the damage is served.
        behind = only(await rigs[0].ask(fetch(4), 12))
        assert (behind.error_code, len(behind.records)) == (0, 2 * SIZE)


@pytest.mark.parametrize("at", [16, 80])
@pytest.mark.parametrize("number", [0, 3, BATCHES - 1])
async def test_a_leader_that_stepped_down_truncates_the_damage_and_heals(
    number: int, at: int
) -> None:
    async with brokers(2) as rigs:
        await hosted(rigs)
        await write(rigs[0])
        whole = bytes_of(rigs[1])
        damage(rigs[0], number, at)
        nothing_in_memory(rigs[0])
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


async def test_a_leader_without_an_heir_stays_and_serves_what_is_sound() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await write(rig)
        damage(rig, 2)
        nothing_in_memory(rig)
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


async def test_a_follower_that_cannot_use_what_it_gets_makes_its_leader_check() -> None:
    """Pages in memory are sent unchecked; that the follower asks again for the same is the sign."""
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
        # An heir that comes later is found when the damage is met the next time.
        for rig in rigs:
            rig.replay(partition(replicas=(1, 2), isr=[1, 2], epoch=0))
        await until(lambda: LOST_DIR in assigned(rigs[0]))


async def test_a_follower_that_asks_again_for_what_is_sound_gets_it_again() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        await write(rig, acks=1)
        replica = rig.parts.hosted.get(TP)
        assert replica is not None
        assert replica.partition is not None
        sent = [replica.partition.is_sent_again(b, 3) for b in replica.partition.replicas[1:] * 2]
        assert sent == [False, True]
        assert not replica.partition.is_sent_again(replica.partition.replicas[0], 3)


async def test_before_directories_nobody_can_be_reported_so_the_leader_stays() -> None:
    async with brokers(2) as rigs:
        await hosted(rigs)
        await write(rigs[0])
        rigs[0].replay(FeatureLevelRecord(name="metadata.version", feature_level=14))
        damage(rigs[0], 2)
        nothing_in_memory(rigs[0])
        before = assigned(rigs[0])
        with capture_logs() as logged:
            refused = only(await rigs[0].ask(fetch(2), 12))
        assert refused.error_code == ErrorCode.CORRUPT_MESSAGE
        assert "damaged_leader_has_no_heir" in [line["event"] for line in logged]
        assert assigned(rigs[0]) == before
        assert rigs[0].parts.assignments.queued == 0
