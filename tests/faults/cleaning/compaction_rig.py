"""Building blocks of compaction tests: keyed records, logs with such records, and a model.

The model is the list of all appended records. A compacted log must contain a part of that list, in
order and at the same offsets, with the latest record of each key.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.topic_config import CleanupPolicy, TopicConfig
from kraftjbod.protocol.record_batch import batches
from kraftjbod.protocol.records import Record, build_batch, read_records
from kraftjbod.storage.cleaning.log_cleaner import CleanerLimits
from kraftjbod.storage.log.log_handle import LogHandle
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.vfs import Vfs
from tests.faults.rig import ManualClock, headers_of, open_dir, random_bytes_of

NO_LIMIT = 2**62
NOW_MS = 1_000_000
_CHECKS = 300
CONFIG = TopicConfig(
    segment_bytes=1024,
    index_interval_bytes=100,
    file_delete_delay_ms=0,
    cleanup_policy=CleanupPolicy(is_delete=False, is_compact=True),
    min_cleanable_dirty_ratio=0.0,
    delete_retention_ms=1000,
)


def keyed(*pairs: tuple[str, str | None], timestamp_ms: int = NOW_MS) -> list[Record]:
    """Return records by key and value; a value of None is a tombstone."""
    return [
        Record(
            key=key.encode(),
            value=None if value is None else value.encode(),
            timestamp_ms=timestamp_ms,
        )
        for key, value in pairs
    ]


def compacting_manager(
    dirs: Sequence[LogDir],
    config: TopicConfig = CONFIG,
    clock: ManualClock | None = None,
    limits: CleanerLimits | None = None,
) -> LogManager:
    return LogManager(
        dirs=dirs,
        clock=clock or ManualClock(NOW_MS),
        default_config=config,
        random_bytes=random_bytes_of(),
        cleaner=limits,
    )


def compacting_dir(vfs: Vfs, path: str = "/d1", number: int = 1) -> LogDir:
    return open_dir(vfs, path, number, clock=ManualClock(NOW_MS))


class History:
    """All records that were appended to a log."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    async def append(
        self,
        handle: LogHandle,
        records: Sequence[Record],
        *,
        epoch: int = 0,
        producer: tuple[int, int, int] = (-1, -1, -1),
    ) -> None:
        data = build_batch(
            records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=producer[2]
        )
        base = handle.log_end_offset
        await handle.append_as_leader(data, headers_of(data), epoch)
        handle.high_watermark = handle.log_end_offset
        self.records += [
            Record(key=r.key, value=r.value, timestamp_ms=r.timestamp_ms, offset=base + i)
            for i, r in enumerate(records)
        ]

    def latest(self) -> dict[bytes, Record]:
        return {record.key or b"": record for record in self.records}

    def require_kept_by(self, found: Sequence[Record], *, gone: Iterable[bytes] = ()) -> None:
        """Check that ``found`` is in order, at its offsets, and has the latest record of each key.

        ``gone`` contains keys whose tombstones may be missing.
        """
        by_offset = {record.offset: record for record in self.records}
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets))
        for record in found:
            assert by_offset[record.offset] == record
        allowed = set(gone)
        kept = {record.offset for record in found}
        for key, record in self.latest().items():
            if record.offset not in kept:
                assert record.value is None, record
                assert key in allowed, record


async def flush_and_roll(handle: LogHandle) -> None:
    """Roll and flush the log, so that all of its records may be cleaned."""
    if handle.view.active_size_bytes:
        await handle.roll()
    await handle.flush()


async def read_all(handle: LogHandle, start: int | None = None) -> list[Record]:
    """Return all records from ``start`` on, read by consecutive fetches as a consumer does."""
    offset = handle.log_start_offset if start is None else start
    found: list[Record] = []
    while offset < handle.log_end_offset:
        result = await handle.read_checked(offset, 4096, NO_LIMIT, True)
        assert result.records, f"nothing at {offset}"
        for position, header in batches(result.records):
            records = read_records(result.records, position)
            found += [record for record in records if record.offset >= offset]
            assert header.next_offset > offset
            offset = header.next_offset
    return found


def first_headers(handle: LogHandle) -> list[int]:
    """Return the base offsets of the closed segments."""
    return [segment.base_offset for segment in handle.view.segments[:-1]]


async def heal(manager: LogManager) -> None:
    """Run the directory's checks until it is online again."""
    log_dir = manager.dirs()[0]
    for _ in range(_CHECKS):
        if log_dir.state is LogDirState.ONLINE:
            return
        log_dir.check_disk()
        await log_dir.run_operation(OpKind.PROBE, lambda: None)
    raise AssertionError(log_dir)


async def clean(manager: LogManager) -> None:
    """Clean the first directory until no log is dirty."""
    while await manager.cleaner.clean_dirtiest(manager.dirs()[0]):
        pass
