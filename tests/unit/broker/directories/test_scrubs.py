"""Scrubs: repair of damage that no read has found, and which directories are scrubbed."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.ids import LOST_DIR, DirectoryId, PartitionEpoch
from kraftjbod.protocol.rpc_messages import AssignReplicasToDirsRequest
from kraftjbod.storage.vfs import OpenMode
from tests.faults.rig import batch
from tests.unit.broker.broker_rig import (
    TP,
    BrokerRig,
    brokers,
    dir_of,
    only,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import until

BATCHES = 20
BODY = bytes(200)
SIZE = len(batch(body=BODY))
FIRST_SEGMENT = f"t-0/{0:020}.log"
SCRUBBED = {"log_segment_bytes": "1024", "log_dir_scrub_interval_ms": "1"}


async def written(rigs: list[BrokerRig], **more: Any) -> None:
    """Produce and flush several closed segments on every broker."""
    for rig in rigs:
        await rig.follow(topic(), partition(replicas=[r.broker_id for r in rigs], **more))
    for _ in range(BATCHES):
        found = only(await rigs[0].ask(produce(batch(body=BODY)), 9))
        assert found.error_code == 0
    for rig in rigs:
        await until(lambda rig=rig: end(rig) == BATCHES)
        handle = rig.logs.get(TP)
        assert handle is not None
        await handle.flush()


def end(rig: BrokerRig) -> int:
    handle = rig.logs.get(TP)
    return -1 if handle is None else handle.log_end_offset


def damaged_from(rig: BrokerRig) -> int | None:
    handle = rig.logs.get(TP)
    return None if handle is None else handle.damaged_from


def damage(rig: BrokerRig, number: int = 2) -> None:
    (log_dir,) = [d for d in rig.dirs if d.vfs.exists(f"{d.path}/{FIRST_SEGMENT}")]
    file = log_dir.vfs.open(f"{log_dir.path}/{FIRST_SEGMENT}", OpenMode.READ_WRITE)
    position = number * SIZE + 80
    file.write_at(position, [bytes([file.read_at(position, 1)[0] ^ 1])])


def contents(rig: BrokerRig) -> bytes:
    handle = rig.logs.get(TP)
    assert handle is not None
    vfs = handle.log_dir.vfs
    return b"".join(vfs.read_if_exists(segment.path) or b"" for segment in handle.view.segments)


def scrub(rig: BrokerRig) -> None:
    rig.tasks.start(rig.parts.scrubs.run_scrubs(), "scrubs")


def assigned(rig: BrokerRig) -> list[DirectoryId]:
    return [
        directory.directory_id
        for request in rig.controller.seen
        if isinstance(request, AssignReplicasToDirsRequest) and request.broker_id == rig.broker_id
        for directory in request.directories
    ]


def events(reported: list[Any]) -> list[str]:
    return [line["event"] for line in reported]


async def test_scrub_truncates_a_damaged_follower_after_it_left_the_isr() -> None:
    async with brokers(2, **SCRUBBED) as rigs:
        await written(rigs)
        sound = contents(rigs[0])
        damage(rigs[1])
        with capture_logs() as logged:
            scrub(rigs[1])
            await until(lambda: assigned(rigs[1])[-2:] == [LOST_DIR, dir_of(2, 1)])
            # Nothing is truncated while the replica is in the ISR.
            assert (damaged_from(rigs[1]), end(rigs[1])) == (2, BATCHES)
            out = partition(replicas=(1, 2), isr=[1])
            for rig in rigs:
                rig.replay(replace(out, partition_epoch=PartitionEpoch(1)))
            await until(lambda: damaged_from(rigs[1]) is None and end(rigs[1]) == BATCHES)
            await until(lambda: contents(rigs[1]) == sound)
        assert events(logged).count("log_damage_found_by_scrub") == 1
        assert events(logged).count("damaged_follower_leaves_in_sync_set") == 1
        assert contents(rigs[0]) == sound
        (figures,) = [s.figures for d, s in rigs[1].parts.scrubs.by_dir.items() if d.path == "/d1"]
        await until(lambda: figures.replicas_repaired == 1)


async def test_scrub_truncates_a_damaged_follower_outside_the_isr_immediately() -> None:
    async with brokers(2, **SCRUBBED) as rigs:
        await written(rigs, isr=[1])
        sound = contents(rigs[0])
        damage(rigs[1])
        scrub(rigs[1])
        await until(lambda: rigs[1].parts.scrubs.by_dir)
        scrubs = rigs[1].parts.scrubs.by_dir[rigs[1].dirs[0]]
        await until(lambda: scrubs.figures.replicas_repaired == 1)
        await until(lambda: contents(rigs[1]) == sound)
        assert LOST_DIR not in assigned(rigs[1])


async def test_scrub_makes_damaged_leader_with_in_sync_followers_step_down() -> None:
    async with brokers(2, **SCRUBBED) as rigs:
        await written(rigs)
        damage(rigs[0])
        with capture_logs() as logged:
            scrub(rigs[0])
            await until(lambda: assigned(rigs[0])[-2:] == [LOST_DIR, dir_of(1, 1)])
        assert {"log_damage_found_by_scrub", "damaged_leader_steps_down"} <= set(events(logged))


async def test_scrub_logs_damage_of_a_sole_replica_once_and_keeps_it() -> None:
    async with brokers(**SCRUBBED) as rigs:
        await written(rigs)
        damage(rigs[0])
        with capture_logs() as logged:
            scrub(rigs[0])
            await until(lambda: rigs[0].parts.scrubs.by_dir)
            figures = rigs[0].parts.scrubs.by_dir[rigs[0].dirs[0]].figures
            await until(lambda: figures.passes >= 3)
        assert events(logged).count("damaged_leader_has_no_heir") == 1
        assert events(logged).count("log_damage_found_by_scrub") == 1
        assert LOST_DIR not in assigned(rigs[0])
        assert end(rigs[0]) == BATCHES


async def test_scrub_makes_damaged_leader_step_down_once_a_follower_is_in_sync() -> None:
    async with brokers(2, **SCRUBBED) as rigs:
        await written(rigs)
        for rig in rigs:
            rig.replay(partition(replicas=(1, 2), isr=[1], epoch=1))
        damage(rigs[0])
        with capture_logs() as logged:
            scrub(rigs[0])
            await until(lambda: "damaged_leader_has_no_heir" in events(logged))
            for rig in rigs:
                rig.replay(partition(replicas=(1, 2), epoch=2))
            await until(lambda: "damaged_leader_steps_down" in events(logged))


@pytest.mark.parametrize("is_enabled", [True, False])
async def test_scrubs_cover_online_directories_if_they_are_enabled(
    is_enabled: bool,
) -> None:
    switch = str(is_enabled).lower()
    async with brokers(log_dir_scrub_enable=switch, **SCRUBBED) as (rig,):
        running = asyncio.ensure_future(rig.parts.scrubs.run_scrubs())
        if not is_enabled:
            await running
            assert rig.parts.scrubs.by_dir == {}
            return
        await until(lambda: set(rig.parts.scrubs.by_dir) == set(rig.dirs))
        rig.dirs[1].go_offline("pulled")
        await until(lambda: set(rig.parts.scrubs.by_dir) == {rig.dirs[0]})
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
