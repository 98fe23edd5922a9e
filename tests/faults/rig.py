"""Building blocks of storage tests: a clock, batches, and log directories on any ``Vfs``."""

from __future__ import annotations

import asyncio
import itertools
import random
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

import crc32c

from kraftjbod.core.ids import BrokerId, DirectoryId, TopicId, TopicPartition
from kraftjbod.core.loop.wall_guard import PossibleNow
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.record_batch import BatchHeader, batches, stamp_header
from kraftjbod.protocol.records import encode_varint
from kraftjbod.storage.log.log_handle import LogHandle, ReadResult
from kraftjbod.storage.log.log_replay import ReplayNeededError
from kraftjbod.storage.log.log_values import carry_out
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor, MakeExecutor
from kraftjbod.storage.log_dirs.free_space_policy import FreeSpacePolicy
from kraftjbod.storage.log_dirs.log_dir import LogDir, LogDirFailureChannel
from kraftjbod.storage.log_dirs.reserve_file import ReserveFile
from kraftjbod.storage.manager.housekeeping import Housekeeping
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.meta_properties import MetaProperties, write_meta_properties
from kraftjbod.storage.replicas.offset_checkpoints import each_online
from kraftjbod.storage.segments.index_rebuild import IndexRebuild
from kraftjbod.storage.segments.segment import LogSegment, SegmentUnreadError
from kraftjbod.storage.vfs import Vfs

T = TypeVar("T")

CLUSTER_ID = "XcZZOzUqS4yHOjhMQB6JLQ"
NODE_ID = BrokerId(1)
TP = TopicPartition("t", 0)
TOPIC_ID = TopicId(bytes(range(16)))


class ManualClock:
    """A clock that advances only when a test sets it."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms

    def possible_now(self) -> PossibleNow:
        return PossibleNow(self.wall_ms(), self.wall_ms())


def directory_id(number: int) -> DirectoryId:
    return DirectoryId(bytes([7] * 15 + [number]))


#: A process draws other names than its predecessor, whose directories a crash may restore.
_managers = itertools.count(1_000)


def random_bytes_of(seed: int = 1):  # type: ignore[no-untyped-def]  # a bound method
    return random.Random(seed).randbytes


def batch(
    records: int = 1,
    *,
    base_offset: int = 0,
    epoch: int = 0,
    timestamp: int = 1_000_000,
    producer: tuple[int, int, int] = (-1, -1, -1),
    body: bytes | None = None,
) -> bytes:
    """Build a valid v2 batch; ``producer`` is (id, epoch, base sequence).

    With a ``body``, the records use as many bytes as ``body`` has, and are readable if they fit.
    """
    if body is None:
        body = b"".join(_record(offset_delta) for offset_delta in range(records))
    else:
        body = _filled(body, records)
    covered = struct.pack(">hiqqqhii", 0, records - 1, timestamp, timestamp, *producer, records)
    covered += body
    head = struct.pack(">qiibI", base_offset, 9 + len(covered), epoch, 2, crc32c.crc32c(covered))
    return head + covered


def _record(offset_delta: int) -> bytes:
    """Encode a record with a key and a value of one byte each."""
    content = b"\0\0" + encode_varint(offset_delta) + b"\x02k\x02v\0"
    return encode_varint(len(content)) + content


def _filled(filler: bytes, records: int) -> bytes:
    """Encode records in ``len(filler)`` bytes; the last value is the start of ``filler``."""
    before = b"".join(_record(offset_delta) for offset_delta in range(records - 1))
    head = b"\0\0" + encode_varint(records - 1) + b"\x01"
    size = len(filler) - len(before) - 5 - len(head) - 5 - 1
    if size < 0:
        return filler
    content = head + _long_varint(size) + filler[:size] + b"\0"
    return before + _long_varint(len(content)) + content


def _long_varint(value: int) -> bytes:
    """Encode ``value`` in five bytes."""
    groups = [value << 1 >> 7 * at & 0x7F | 0x80 for at in range(5)]
    return bytes([*groups[:4], groups[4] & 0x7F])


def headers_of(data: bytes | memoryview) -> list[BatchHeader]:
    return [header for _, header in batches(data)]


def close_log(log: UnifiedLog, vfs: Vfs) -> None:
    """Close one log as a clean stop does."""
    plan = log.close_plan()
    carry_out(vfs, [plan], lambda: None)
    log.close(plan)


def format_dir(vfs: Vfs, path: str, number: int) -> None:
    """Format a directory as ``kraftjbod-storage`` does."""
    vfs.make_dirs(path)
    properties = MetaProperties(
        cluster_id=CLUSTER_ID, node_id=NODE_ID, directory_id=directory_id(number)
    )
    write_meta_properties(vfs, path, properties)


def open_dir(
    vfs: Vfs,
    path: str = "/d1",
    number: int = 1,
    *,
    clock: ManualClock | None = None,
    channel: LogDirFailureChannel | None = None,
    io_timeout_ms: int = 30_000,
    io_suspect_ms: int = 2000,
    check_interval_ms: int = 500,
    max_queued_ops: int = 20_000,
    reserve_bytes: int = 0,
    min_free_bytes: int = 0,
    heal_free_bytes: int | None = None,
    make_executor: MakeExecutor = LogDirExecutor,
) -> LogDir:
    """Open an identified log directory without watches; ``secure_reserve`` allocates a reserve."""
    log_dir = LogDir(
        path=path,
        vfs=vfs,
        clock=clock or ManualClock(),
        failure_channel=channel or LogDirFailureChannel(max_dirs=8),
        io_timeout_ms=io_timeout_ms,
        io_suspect_ms=io_suspect_ms,
        check_interval_ms=check_interval_ms,
        max_queued_ops=max_queued_ops,
        reserve=ReserveFile(
            vfs=vfs,
            directory=path,
            size_bytes=reserve_bytes,
            random_bytes=random_bytes_of(number),
        ),
        free_space_policy=FreeSpacePolicy(
            reserve_bytes=reserve_bytes,
            min_free_bytes=min_free_bytes,
            heal_free_bytes=heal_free_bytes,
        ),
        make_executor=make_executor,
    )
    log_dir.identify(directory_id(number), 1)
    return log_dir


def manager_of(
    dirs: Sequence[LogDir], config: TopicConfig | None = None, clock: ManualClock | None = None
) -> LogManager:
    return LogManager(
        dirs=dirs,
        clock=clock or ManualClock(),
        default_config=config or TopicConfig(),
        random_bytes=random_bytes_of(next(_managers)),
    )


async def require_no_report(channel: LogDirFailureChannel) -> None:
    """Require that the channel has no failed directory to take."""
    taking = asyncio.ensure_future(channel.take())
    await asyncio.sleep(0)
    assert not taking.done()
    taking.cancel()


async def checkpoint(manager: LogManager) -> None:
    """Write recovery points and log start offsets of each directory, as housekeeping does."""
    await each_online(manager.checkpoint_offsets(log_dir) for log_dir in manager.online_dirs())


async def read_log(
    handle: LogHandle, start_offset: int, max_bytes: int, max_offset: int, min_one: bool
) -> ReadResult:
    """Read as a fetch does: from the page cache, or else checked in the directory's thread."""
    result = handle.read_cached(start_offset, max_bytes, max_offset, min_one)
    if result is None:
        result = await handle.read_checked(start_offset, max_bytes, max_offset, min_one)
    return result


def truncate_by_index(log: UnifiedLog, offset: int) -> None:
    """Truncate as :meth:`LogHandle.truncate_to` does, in one thread."""
    with_rebuilds(log, lambda surveyed: log.truncate_to(offset, surveyed))


def with_rebuilds(log: UnifiedLog, op: Callable[[LogSegment | None], T]) -> T:
    """Run ``op``, which gets the surveyed segment, again after each index rebuild it requires."""
    surveyed: LogSegment | None = None
    while True:
        try:
            return op(surveyed)
        except SegmentUnreadError as unread:
            surveyed = read_segment(log, unread)


def read_segment(log: UnifiedLog, unread: SegmentUnreadError) -> LogSegment | None:
    """Rebuild the indexes of a segment, and return the segment if it was surveyed."""
    is_replay = isinstance(unread, ReplayNeededError)
    rebuild = unread.replay if is_replay else IndexRebuild(unread)
    while not log.rebuild_step(rebuild):
        pass
    is_taken = log.take_rebuilt(rebuild, is_written=True)
    return unread.segment if is_taken and rebuild.is_survey else None


def read_by_index(log: UnifiedLog, start_offset: int, max_bytes: int, end: int) -> memoryview:
    """Read as :meth:`LogHandle.read_checked` does, in one thread; a lost index is rebuilt first."""
    return with_rebuilds(
        log, lambda surveyed: log.read(start_offset, max_bytes, end, True, surveyed)
    )


def stamped(data: bytes, *, base_offset: int, leader_epoch: int) -> bytes:
    """Return the batch as it is stored in the log."""
    head = stamp_header(data, 0, base_offset=base_offset, leader_epoch=leader_epoch)
    return head + data[len(head) :]


def chores(manager: LogManager, log_dir: LogDir | None = None) -> Housekeeping:
    """Return the background jobs of a directory, the first one by default."""
    return manager._housekeeping[log_dir or manager.dirs()[0]]
