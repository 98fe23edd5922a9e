"""Disk operations of a role change, for logs of 1, 10 and 100 times the size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from kraftjbod.storage.checkpoints import format_offsets
from kraftjbod.storage.vfs import OpenMode, write_atomically
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.large_log import KIB, MIB, CountingVfs, LargeLog, put_large_log
from tests.unit.broker.broker_rig import TOPIC_ID, TP, brokers, partition, topic

#: 8 MiB segments of 16 KiB batches, of one producer.
SMALL = LargeLog.of_size(8 * MIB, 16 * KIB, producer_id=7)


def larger_segments(times: int) -> LargeLog:
    return replace(SMALL, batches_per_segment=SMALL.batches_per_segment * times)


def more_segments(times: int) -> LargeLog:
    return replace(SMALL, segments=times)


GROWN = pytest.mark.parametrize("grown", [larger_segments, more_segments])
SIZES = pytest.mark.parametrize("times", [1, 10, 100])


def disk_with(shape: LargeLog) -> CountingVfs:
    """A directory after a clean stop, with one replica of the given shape."""
    mem = MemVfs()
    put_large_log(mem, "/d1", shape, topic_id=TOPIC_ID)
    mem.open("/d1/.kafka_cleanshutdown", OpenMode.CREATE)
    for name, offset in (("recovery-point", shape.end_offset), ("log-start", 0)):
        write_atomically(mem, f"/d1/{name}-offset-checkpoint", format_offsets({TP: offset}))
    return CountingVfs(mem)


@GROWN
@SIZES
async def test_become_leader_touches_no_file_of_the_log(
    times: int, grown: Callable[[int], LargeLog]
) -> None:
    shape = grown(times)
    vfs = disk_with(shape)
    async with brokers(1, vfs, opens=False) as (rig,):
        handle = rig.logs.get(TP)
        assert handle is not None
        rig.replay(topic(), partition())
        vfs.reset()
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        role = rig.parts.hosted.get(TP).partition
        assert role is not None
        assert role.is_leader
        assert role.log_end_offset == shape.end_offset
        assert vfs.bytes_read == 0
        assert vfs.operations["open"] == 0


@GROWN
@SIZES
async def test_become_follower_touches_no_file_and_truncation_reads_one_index_and_interval(
    times: int, grown: Callable[[int], LargeLog]
) -> None:
    """The truncation happens if the new leader has one record less."""
    shape = grown(times)
    vfs = disk_with(shape)
    async with brokers(1, vfs, opens=False) as (rig,):
        rig.replay(topic(), partition(replicas=(1, 2)))
        rig.parts.publisher.open()
        await rig.parts.publisher.disk_work_done()
        vfs.reset()
        await rig.follow(partition(replicas=(1, 2), leader=2, epoch=1))
        replica = rig.parts.hosted.get(TP)
        assert replica.partition is not None
        assert not replica.partition.is_leader
        assert vfs.bytes_read == 0
        assert vfs.operations["open"] == 0
        assert replica.handle is not None
        await replica.handle.truncate_to(shape.end_offset - 1)
        replayed = rig.config.producer_snapshot_interval_bytes // shape.batch_bytes
        assert vfs.bytes_read <= (
            shape.index_bytes + shape.interval_bytes + shape.batch_bytes + (8 + replayed) * 4 * KIB
        )
        assert vfs.operation_count <= 60 + replayed
