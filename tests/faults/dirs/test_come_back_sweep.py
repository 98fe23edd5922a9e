"""A failed directory is reopened with the N-th operation failing, for each N.

The directory is then either online with all of its records, or offline as before, and the other
directory is not affected. Once the disk works, the directory comes back.
"""

from __future__ import annotations

from errno import EACCES, EIO, EROFS

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.identity.dir_attacher import DirAttacher
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import (
    CLUSTER_ID,
    NODE_ID,
    TOPIC_ID,
    TP,
    batch,
    directory_id,
    format_dir,
    headers_of,
    manager_of,
    open_dir,
    random_bytes_of,
    require_no_report,
)
from tests.faults.vfs_fault import Fault, FaultVfs

CONFIG = TopicConfig(segment_bytes=1024, index_interval_bytes=100, file_delete_delay_ms=0)
OTHER = TopicPartition("t", 1)
BATCHES = 5
ENOUGH = 500


class Node:
    """Two directories with a replica each, of which the second one has failed."""

    def __init__(self) -> None:
        self.vfs = FaultVfs(MemVfs())
        self.news = LogDirFailureChannel(max_dirs=99)
        healthy = MemVfs()
        format_dir(healthy, "/d1", 1)
        format_dir(self.vfs.inner, "/d2", 2)
        self.healthy = open_dir(healthy, "/d1", 1)
        self.dead = open_dir(self.vfs, "/d2", 2, channel=self.news)
        self.manager: LogManager = manager_of([self.healthy, self.dead], CONFIG)
        self.attacher = DirAttacher(
            metadata_dir=self.healthy,
            cluster_id=CLUSTER_ID,
            node_id=NODE_ID,
            make_log_dir=lambda path: open_dir(self.vfs, path, 2, channel=self.news),
            random_bytes=random_bytes_of(),
            timeout_ms=60_000,
            allowed_roots=["/"],
        )

    async def begin(self) -> None:
        await self.manager.load()
        for tp, number in ((OTHER, 1), (TP, 2)):
            handle = await self.manager.create(tp, TOPIC_ID, directory_id(number))
            for _ in range(BATCHES):
                data = batch(body=bytes(300))
                await handle.append_as_leader(data, headers_of(data), 0)
        with capture_logs():
            self.dead.go_offline("a test said so")
        assert await self.news.take() is self.dead
        self.manager.drop(self.dead)

    async def come_back(self) -> LogDir:
        """Reopen the directory as the broker does, without a cluster."""
        log_dir = await self.attacher.reopen(self.dead)
        try:
            loaded = await self.manager.arrivals.load(log_dir, lambda _: None)
        except OperatingError as e:
            self.attacher.dismiss(log_dir, e)
            raise
        arrival = self.manager.arrivals.install(
            loaded, replaces=self.dead, is_taken=lambda _: False
        )
        log_dir.take_into_service()
        await self.manager.arrivals.settle(arrival)
        return log_dir

    def require_complete(self, log_dir: LogDir) -> None:
        handle = self.manager.get(TP)
        assert handle is not None
        assert (handle.log_dir, handle.log_end_offset) == (log_dir, BATCHES)
        assert list(self.manager.dirs()) == [self.healthy, log_dir]

    def require_untouched(self) -> None:
        other = self.manager.get(OTHER)
        assert other is not None
        assert (other.log_dir, other.log_end_offset) == (self.healthy, BATCHES)
        assert self.healthy.is_online


@pytest.mark.parametrize("sticky", [False, True], ids=["once", "permanent"])
@pytest.mark.parametrize("errno", [EIO, EROFS, EACCES])
async def test_reopen_error_at_any_operation_leaves_the_directory_complete_or_offline(
    errno: int, sticky: bool
) -> None:
    refusals = 0
    for nth in range(1, ENOUGH):
        node = Node()
        await node.begin()
        fault = node.vfs.inject(Fault(errno=errno, nth=nth, sticky=sticky))
        with capture_logs():
            try:
                log_dir = await node.come_back()
            except OperatingError:
                refusals += 1
                assert list(node.manager.dirs()) == [node.healthy, node.dead]
                assert node.manager.get(TP) is None
                await require_no_report(node.news)
                node.vfs.faults.remove(fault)
                log_dir = await node.come_back()
        node.require_untouched()
        if log_dir.is_online:
            node.require_complete(log_dir)
        log_dir.close()
        node.healthy.close()
        if not fault.hits:
            break
    else:
        raise AssertionError(f"no end after {ENOUGH} operations")
    assert refusals > 10
