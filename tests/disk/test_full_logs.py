"""Logs on a small real disk that fills up and gets free space again, a hundred times.

Three replicas share one directory. They are written to until the disk is full, retention frees
space, the directory heals, and writing continues. Acknowledged records are present once and in
order at any time and after a restart; refused records are not.
ext4 allocates late (delayed allocation): accepted bytes must still fit when they are written.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from kraftjbod.core.errors import LogDirImpairedError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.record_batch import HEADER_BYTES
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.vfs import RealVfs
from kraftjbod.testing import mounts
from kraftjbod.testing.mounts import Disk, Kind
from tests.faults.rig import (
    TOPIC_ID,
    ManualClock,
    batch,
    chores,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
)

pytestmark = pytest.mark.disk

MIB = 1 << 20
NO_LIMIT = 2**62
CYCLES = 100
RESERVE_BYTES = MIB
KEEPS_ALL = TopicConfig(segment_bytes=300_000, retention_bytes=-1, retention_ms=-1)
#: Retention that keeps a segment or two of each replica.
KEEPS_LITTLE = KEEPS_ALL.model_copy(update={"retention_bytes": 400_000})
REPLICAS = [TopicPartition("t", i) for i in range(3)]


@dataclass
class Node:
    """One directory on one disk, and the acknowledged bodies of each replica by offset."""

    disk: Disk
    rng: random.Random
    acknowledged: dict[TopicPartition, list[bytes]] = field(
        default_factory=lambda: {tp: [] for tp in REPLICAS}
    )
    refused: int = 0
    manager: LogManager = field(init=False)

    @property
    def log_dir(self) -> LogDir:
        return self.manager.dirs()[0]

    async def start(self) -> None:
        log_dir = open_dir(
            RealVfs(),
            self.disk.path,
            1,
            clock=ManualClock(),
            check_interval_ms=5,
            reserve_bytes=RESERVE_BYTES,
        )
        log_dir.identify(log_dir.directory_id, RealVfs().device(self.disk.path))
        try:
            await log_dir.secure_reserve()
        except LogDirImpairedError:
            assert log_dir.state is LogDirState.SATURATED
        self.manager = manager_of([log_dir], KEEPS_ALL)
        await self.manager.load()
        for handle in self.manager.handles():
            handle.high_watermark = handle.log_end_offset
        log_dir.start_watches()

    async def write_until_full(self) -> None:
        while True:
            tp = self.rng.choice(REPLICAS)
            handle = self.manager.get(tp)
            assert handle is not None
            data = batch(1, body=self.rng.randbytes(self.rng.randint(1, 60_000)))
            body = data[HEADER_BYTES:]
            expected = self.acknowledged[tp]
            try:
                result = await handle.append_as_leader(data, headers_of(data), 0)
                if self.rng.random() < 0.02:
                    await handle.flush()
            except LogDirImpairedError:
                self.refused += 1
                if handle.log_end_offset > len(expected):
                    expected.append(body)  # The append had succeeded; the flush failed.
                return
            assert result.base_offset == len(expected)
            expected.append(body)
            handle.high_watermark = handle.log_end_offset

    async def reclaim_space(self) -> None:
        self.manager.update_config("t", KEEPS_LITTLE, range(99))
        async with asyncio.timeout(60):
            while self.log_dir.state is not LogDirState.ONLINE:
                assert self.log_dir.is_online, self.log_dir.offline_reason
                await chores(self.manager).reclaim_space()
                await asyncio.sleep(0.005)
        self.manager.update_config("t", KEEPS_ALL, range(99))

    async def check(self) -> None:
        for tp, expected in self.acknowledged.items():
            handle = self.manager.get(tp)
            assert handle is not None
            await handle.refresh()
            assert handle.log_end_offset == len(expected)
            offset = handle.log_start_offset
            while offset < len(expected):
                records = (await handle.read_checked(offset, MIB, NO_LIMIT, True)).records
                position = 0
                for header in headers_of(records):
                    assert header.base_offset == offset
                    end = position + header.size_bytes
                    assert bytes(records[position:end]).endswith(expected[offset])
                    position, offset = end, offset + 1
                assert position

    async def stop(self) -> None:
        await self.manager.close(1)


@pytest.fixture(params=["tmpfs", "ext4"])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    kind: Kind = request.param
    if (reason := mounts.why_not(kind)) is not None:
        pytest.skip(reason)
    with mounts.mounted(kind, size_bytes=8 * MIB) as mounted:
        yield mounted


async def made(disk: Disk) -> Node:
    format_dir(RealVfs(), disk.path, 1)
    node = Node(disk, random.Random(928))
    await node.start()
    for tp in REPLICAS:
        await node.manager.create(tp, TOPIC_ID)
    return node


@pytest.mark.timeout(600)
async def test_logs_on_a_disk_that_fills_up_repeatedly_keep_acknowledged_records(
    disk: Disk,
) -> None:
    node = await made(disk)
    for cycle in range(CYCLES):
        await node.write_until_full()
        if cycle % 10 == 0:
            await node.check()
        await node.reclaim_space()
    await node.check()
    assert node.refused == CYCLES
    await node.stop()
    await node.start()
    await node.check()
    await node.stop()


async def test_logs_on_a_full_disk_keep_acknowledged_records_over_a_restart(disk: Disk) -> None:
    node = await made(disk)
    await node.write_until_full()
    # Use the space of the reserve and all other space.
    disk.fill()
    await node.check()
    await node.stop()
    await node.start()
    assert node.log_dir.state is LogDirState.SATURATED
    await node.check()
    await node.stop()
    RealVfs().unlink_if_exists(f"{disk.path}/balloon")
    await node.start()
    await node.reclaim_space()
    await node.write_until_full()
    await node.reclaim_space()
    await node.check()
    await node.stop()


async def test_retention_on_a_full_disk_removes_all_segments(disk: Disk) -> None:
    node = await made(disk)
    await node.write_until_full()
    disk.fill()
    for tp in REPLICAS:
        handle = node.manager.get(tp)
        assert handle is not None
        handle.high_watermark = handle.log_end_offset
        await handle.start_at(handle.log_end_offset)
    await chores(node.manager).reclaim_space()
    for tp in REPLICAS:
        handle = node.manager.get(tp)
        assert handle is not None
        assert (handle.size_bytes, handle.log_start_offset) == (0, len(node.acknowledged[tp]))
    RealVfs().unlink_if_exists(f"{disk.path}/balloon")
    await node.reclaim_space()
    await node.write_until_full()
    await node.check()
    await node.stop()
