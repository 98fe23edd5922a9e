"""Logs of real sizes that use little memory or disk: batches, indexes and file names of a broker.

* :func:`put_large_log` puts a replica on a :class:`MemVfs`. Its files are generated when they are
  read, so 10 TB of log use kilobytes of memory. Each header, CRC and index entry is valid.
* :func:`write_sparse_log` writes the same replica to a real file system. The value of each record
  is a hole, so a batch uses one block: 1,000 GiB of batches of 1 MiB use 4 GiB.
* :class:`CountingVfs` counts operations and bytes of any ``Vfs``.

A generated file can be read, truncated, renamed and appended to; it is not part of a crash clone.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import crc32c

from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.record_batch import HEADER_BYTES
from kraftjbod.storage.checkpoints import format_leader_epochs, format_partition_metadata
from kraftjbod.storage.dir_names import (
    INDEX_SUFFIX,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    offset_file_name,
)
from kraftjbod.storage.log.log_loader import LogLoader
from kraftjbod.storage.log.producer_state import ProducerLimits, ProducerState
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.segments.offset_index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES
from kraftjbod.storage.vfs import OpenMode, Vfs
from kraftjbod.testing.simulation.memory_file import MemFile
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import TOPIC_ID, TP, batch, headers_of
from tests.faults.vfs_fault import FaultVfs

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
_COVERED_FROM: Final = 21
#: A batch of a large log has zeros from this position on, after its header and that of its record.
_BEGINNING_BYTES: Final = HEADER_BYTES + 32
_HEAD: Final = struct.Struct(">qiibI")
_TIMES: Final = struct.Struct(">qq")
_TIMES_AT: Final = 27
_PRODUCER: Final = struct.Struct(">qhi")
_PRODUCER_AT: Final = 43
_TIME_ENTRY: Final = struct.Struct(">qI")
_OFFSET_ENTRY: Final = struct.Struct(">II")


@dataclass(frozen=True, kw_only=True)
class LargeLog:
    """The shape of a log: ``segments`` of ``batches_per_segment`` batches of one record each.

    The record at offset ``n`` has the timestamp ``first_timestamp + n``.
    """

    segments: int = 1
    batches_per_segment: int
    batch_bytes: int
    interval_bytes: int = 4096
    first_timestamp: int = 1_000_000
    #: The idempotent producer of the batches, or None.
    producer_id: int | None = None
    snapshot_interval_bytes: int = MIB

    @classmethod
    def of_size(
        cls,
        segment_bytes: int,
        batch_bytes: int,
        *,
        segments: int = 1,
        producer_id: int | None = None,
        snapshot_interval_bytes: int = MIB,
    ) -> LargeLog:
        """Return a shape with segments of at most ``segment_bytes``."""
        return cls(
            segments=segments,
            batches_per_segment=segment_bytes // batch_bytes,
            batch_bytes=batch_bytes,
            producer_id=producer_id,
            snapshot_interval_bytes=snapshot_interval_bytes,
        )

    @property
    def end_offset(self) -> int:
        return self.segments * self.batches_per_segment

    @property
    def segment_bytes(self) -> int:
        return self.batches_per_segment * self.batch_bytes

    @property
    def size_bytes(self) -> int:
        return self.segments * self.segment_bytes

    @property
    def index_bytes(self) -> int:
        """The size of both index files of a segment."""
        return self._entries * (OFFSET_ENTRY_BYTES + TIME_ENTRY_BYTES) + TIME_ENTRY_BYTES

    @property
    def _batches_per_entry(self) -> int:
        return self.interval_bytes // self.batch_bytes + 1

    @property
    def _entries(self) -> int:
        return (self.batches_per_segment - 1) // self._batches_per_entry

    def config(self, **more: object) -> TopicConfig:
        return TopicConfig(
            segment_bytes=self.segment_bytes,
            index_interval_bytes=self.interval_bytes,
            **more,
        )

    def batch_at(self, template: bytes, offset: int) -> bytes:
        """Return the batch with one record at ``offset``, made from :meth:`template`."""
        data = bytearray(template)
        self.stamp(data, offset)
        crc = crc32c.crc32c(memoryview(data)[_COVERED_FROM:])
        _HEAD.pack_into(data, 0, offset, len(data) - 12, 0, 2, crc)
        return bytes(data)

    def stamp(self, data: bytearray, offset: int) -> None:
        """Write timestamp and producer of the batch at ``offset`` into its header."""
        timestamp = self.first_timestamp + offset
        _TIMES.pack_into(data, _TIMES_AT, timestamp, timestamp)
        if self.producer_id is not None:
            sequence = offset & 0x7FFFFFFF
            _PRODUCER.pack_into(data, _PRODUCER_AT, self.producer_id, 0, sequence)

    def template(self) -> bytes:
        return batch(1, body=bytes(self.batch_bytes - HEADER_BYTES))

    def files_of(self, base: int) -> dict[str, GeneratedFile]:
        """Return the log and both indexes of the segment at ``base``, by suffix."""
        step, template = self._batches_per_entry, self.template()

        def time_entry(number: int) -> bytes:
            relative = min((number + 1) * step, self.batches_per_segment - 1)
            return _TIME_ENTRY.pack(self.first_timestamp + base + relative, relative)

        def offset_entry(number: int) -> bytes:
            relative = (number + 1) * step
            return _OFFSET_ENTRY.pack(relative, relative * self.batch_bytes)

        is_end_indexed = self._entries * step == self.batches_per_segment - 1
        times = self._entries + (not is_end_indexed)
        return {
            LOG_SUFFIX: GeneratedFile(
                self.batches_per_segment,
                self.batch_bytes,
                lambda number: self.batch_at(template, base + number),
            ),
            INDEX_SUFFIX: GeneratedFile(self._entries, OFFSET_ENTRY_BYTES, offset_entry),
            TIME_INDEX_SUFFIX: GeneratedFile(times, TIME_ENTRY_BYTES, time_entry),
        }

    def bases(self) -> Iterator[int]:
        yield from range(0, self.end_offset, self.batches_per_segment)

    def snapshot_at(self, offset: int) -> bytes:
        """Return the snapshot of the producer state at ``offset``."""
        state = ProducerState()
        if self.producer_id is not None:
            template = self.template()
            for one in range(max(0, offset - 5), offset):
                (header,) = headers_of(self.batch_at(template, one))
                state.record(header, one, 0)
        return state.to_snapshot()

    def small_files(self, topic_id: TopicId) -> dict[str, bytes]:
        """Return the other files of the replica's directory after a clean stop, by name."""
        files = {
            PARTITION_METADATA: bytes(format_partition_metadata(topic_id)),
            LEADER_EPOCH_CHECKPOINT: bytes(format_leader_epochs(((0, 0),))),
        }
        between = self.snapshot_interval_bytes // self.batch_bytes
        before_end = range(
            self.end_offset - between, self.end_offset - self.batches_per_segment, -between
        )
        for offset in (*self.bases(), *before_end[:2], self.end_offset):
            if offset:
                files[offset_file_name(offset, SNAPSHOT_SUFFIX)] = self.snapshot_at(offset)
        return files


class GeneratedFile(MemFile):
    """A file of ``count`` generated records of ``record_bytes`` each, and appended bytes."""

    def __init__(self, count: int, record_bytes: int, make: Callable[[int], bytes]) -> None:
        super().__init__()
        self._record_bytes = record_bytes
        self._make = make
        self._generated_bytes = count * record_bytes
        self._rotten: set[int] = set()

    def rot(self, position: int, *, is_cached: bool = False) -> None:
        """Change the byte at ``position``, also for cached reads."""
        assert not is_cached
        self._rotten.add(position)

    def _with_rot(self, data: bytes, begin: int) -> bytes:
        rotten = [at - begin for at in self._rotten if begin <= at < begin + len(data)]
        changed = bytearray(data)
        for at in rotten:
            changed[at] ^= 0xFF
        return bytes(changed)

    def size(self) -> int:
        return self._generated_bytes + len(self.data)

    def read_at(self, position: int, size: int) -> bytes:
        end = min(position + size, self._generated_bytes)
        found = b""
        if position < end:
            first = position // self._record_bytes
            numbers = range(first, -(-end // self._record_bytes))
            skipped = first * self._record_bytes
            found = b"".join(map(self._make, numbers))[position - skipped : end - skipped]
            found = self._with_rot(found, position)
        rest = position + size - self._generated_bytes
        if rest > 0:
            found += bytes(self.data[max(0, position - self._generated_bytes) : rest])
        return found

    def read_cached_at(self, position: int, size: int) -> memoryview:
        return memoryview(self.read_at(position, size))

    def evict(self, position: int, size: int) -> None:
        """Do nothing: a generated file has no cached pages."""

    def _put(self, position: int, whole: bytes) -> None:
        assert position >= self._generated_bytes, "only appended bytes can be overwritten"
        super()._put(position - self._generated_bytes, whole)

    def truncate(self, size: int) -> None:
        if size >= self._generated_bytes:
            super().truncate(size - self._generated_bytes)
        else:
            self._generated_bytes = size
            self.data.clear()

    def sync(self) -> None:
        """Do nothing: a generated file is on the disk from the start."""


def put_large_log(
    vfs: MemVfs,
    root: str,
    shape: LargeLog,
    *,
    topic_partition: TopicPartition = TP,
    topic_id: TopicId = TOPIC_ID,
) -> str:
    """Put a replica as after a clean stop below ``root``, and return its directory."""
    directory = f"{root}/{topic_partition}"
    vfs.make_dirs(directory)
    for base in shape.bases():
        for suffix, file in shape.files_of(base).items():
            vfs.put_file(f"{directory}/{offset_file_name(base, suffix)}", file)
    for name, data in shape.small_files(topic_id).items():
        vfs.open(f"{directory}/{name}", OpenMode.CREATE).write_at(0, [data])
    vfs.sync_dir(directory)
    return directory


def write_sparse_log(
    root: str, shape: LargeLog, *, topic_partition: TopicPartition, topic_id: TopicId
) -> str:
    """Write a replica to a real directory, with holes for the zeros of its batches."""
    directory = f"{root}/{topic_partition}"
    os.makedirs(directory)
    for base in shape.bases():
        for suffix, file in shape.files_of(base).items():
            with open(f"{directory}/{offset_file_name(base, suffix)}", "wb") as out:
                if suffix == LOG_SUFFIX:
                    _write_beginnings(out.fileno(), base, shape)
                else:
                    out.write(file.read_at(0, file.size()))
    for name, data in shape.small_files(topic_id).items():
        with open(f"{directory}/{name}", "wb") as out:
            out.write(data)
    return directory


def _write_beginnings(fd: int, base: int, shape: LargeLog) -> None:
    """Write the start of each batch, up to the zeros of its record's value."""
    os.ftruncate(fd, shape.segment_bytes)
    beginning = bytearray(shape.template()[:_BEGINNING_BYTES])
    zeros = _TrailingZeros(shape.batch_bytes - _BEGINNING_BYTES)
    for number in range(shape.batches_per_segment):
        shape.stamp(beginning, base + number)
        crc = zeros.crc_after(crc32c.crc32c(memoryview(beginning)[_COVERED_FROM:]))
        _HEAD.pack_into(beginning, 0, base + number, shape.batch_bytes - 12, 0, 2, crc)
        os.pwrite(fd, beginning, number * shape.batch_bytes)


class _TrailingZeros:
    """The CRC-32C of bytes that end in ``count`` zeros, computed without reading the zeros.

    Appending zeros maps the CRC of the preceding bytes by an affine function over bits.
    """

    def __init__(self, count: int) -> None:
        zeros = bytes(count)
        self._of_nothing = crc32c.crc32c(zeros)
        self._by_bit = [crc32c.crc32c(zeros, 1 << bit) ^ self._of_nothing for bit in range(32)]

    def crc_after(self, crc: int) -> int:
        whole = self._of_nothing
        for bit, change in enumerate(self._by_bit):
            if crc >> bit & 1:
                whole ^= change
        return whole


def load_large_log(
    vfs: Vfs, directory: str, shape: LargeLog, config: TopicConfig | None = None
) -> UnifiedLog:
    """Open the replica as at a start after a clean stop."""
    return _load(vfs, directory, shape, config or shape.config(), shape.end_offset)


def recover_large_log(vfs: Vfs, directory: str, shape: LargeLog) -> UnifiedLog:
    """Open the replica as at a start after a power cut without any flush."""
    return _load(vfs, directory, shape, shape.config(), None)


def _load(
    vfs: Vfs, directory: str, shape: LargeLog, config: TopicConfig, clean_end: int | None
) -> UnifiedLog:
    return (
        LogLoader(
            vfs=vfs,
            directory=directory,
            topic_partition=TP,
            config=config,
            was_clean=clean_end is not None,
            recovery_point=clean_end or 0,
            log_start_offset=0,
            producer_limits=ProducerLimits(snapshot_interval_bytes=shape.snapshot_interval_bytes),
        )
        .load()
        .log
    )


class CountingVfs(FaultVfs):
    """Count operations and bytes of the inner ``Vfs``; ``list_dir`` counts a byte per entry."""

    def __init__(self, inner: Vfs) -> None:
        super().__init__(inner)
        self.operations: Counter[str] = Counter()
        self.bytes_read = 0
        self.bytes_written = 0

    @property
    def operation_count(self) -> int:
        return self.operations.total()

    def reset(self) -> None:
        self.operations.clear()
        self.bytes_read = self.bytes_written = 0

    def did(self, kind: str, path: str, size_bytes: int = 0) -> None:
        self.operations[kind] += 1
        if kind in ("write_at", "copy_from"):
            self.bytes_written += size_bytes
        else:
            self.bytes_read += size_bytes


def count_steps(
    log_dir: LogDir, vfs: CountingVfs, bytes_read: list[int] | None = None
) -> list[tuple[OpKind, int]]:
    """Record kind and number of file operations of each operation of the directory's thread."""
    steps: list[tuple[OpKind, int]] = []
    begin = log_dir.submit_operation

    def counted(kind: OpKind, op: Callable[[], object], **more: Any) -> Any:
        def count() -> object:
            vfs.reset()
            done = op()
            steps.append((kind, vfs.operation_count))
            if bytes_read is not None:
                bytes_read.append(vfs.bytes_read)
            return done

        return begin(kind, count, **more)

    log_dir.submit_operation = counted  # type: ignore[method-assign,assignment]
    return steps
