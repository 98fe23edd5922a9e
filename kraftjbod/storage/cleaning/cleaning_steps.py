"""DISK. The file operations of a compaction pass, in steps: reading keys, and writing kept records.

* A step reads a limited number of bytes, so that a pass can be stopped or throttled between steps.
* Steps run in a cleaner's thread. They use only open files, no file names.
* All batches that are read are checked, CRC included, because rewriting would give damaged data a
  valid CRC. Damage ends the pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from kraftjbod.core import buggify
from kraftjbod.core.errors import CorruptRecordError, OverloadedError
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    batches,
    check_crc,
    read_header,
)
from kraftjbod.storage.cleaning.cleaned_transactions import CleanedTransactions
from kraftjbod.storage.cleaning.cleaner_map import CleanerMap
from kraftjbod.storage.cleaning.compaction import NO_TRANSACTIONS, BatchFilter, Dirt, put_keys
from kraftjbod.storage.log.log_view import LogView
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_swap import CleaningFiles, write_target_transactions
from kraftjbod.storage.vfs import Vfs, VfsFile

#: Bytes per step, which take some milliseconds of interpreter time.
STEP_BYTES: Final = 256 * 1024


class NoSpaceToCleanError(OverloadedError):
    """Writing more would leave less free space than the cleaner's ``reserve_bytes``."""


class Stepped(NamedTuple):
    """Result of one step: bytes read and written by the step, and whether no step is left
    (``is_done``).
    """

    read_bytes: int
    written_bytes: int
    is_done: bool


class _Batch(NamedTuple):
    data: Buffer
    position: int
    header: BatchHeader


class _Reader:
    """Reads the batches of one sealed segment up to ``end_offset``, a chunk at a time."""

    def __init__(self, segment: LogSegment, file: VfsFile, end_offset: int) -> None:
        self._segment = segment
        self._file = file
        self._end_offset = end_offset
        self._size_bytes = segment.size_bytes
        self._position = 0
        self._next_offset = segment.base_offset

    @property
    def is_done(self) -> bool:
        return self._position >= self._size_bytes

    def chunk(self, max_bytes: int) -> list[_Batch]:
        """Return the next batches, complete and sound, of about ``max_bytes``; at least one batch.

        :raises CorruptRecordError: with the damaged ``offset``.
        """
        if buggify.is_on and buggify.fires("storage.small_cleaning_step"):
            max_bytes = HEADER_BYTES
        try:
            found = self._take(min(max_bytes, self._size_bytes - self._position))
            return found or self._take(self._next_size())
        except CorruptRecordError as e:
            raise self._damaged(str(e)) from e

    def _take(self, size_bytes: int) -> list[_Batch]:
        self._segment.trusted.doubt(self._position, size_bytes, self._size_bytes)
        data, found = self._file.read_at(self._position, size_bytes), []
        for at, header in batches(data):
            check_crc(data, at, header)
            is_gap_fine = self._segment.may_have_gaps or header.base_offset == self._next_offset
            is_in_order = self._next_offset <= header.base_offset
            if not (is_in_order and is_gap_fine and header.last_offset < self._end_offset):
                raise CorruptRecordError(f"offset {header.base_offset} is out of place")
            found.append(_Batch(data, at, header))
            self._next_offset = header.next_offset
        if found:
            self._position += found[-1].position + found[-1].header.size_bytes
        return found

    def _next_size(self) -> int:
        size_bytes = read_header(self._file.read_at(self._position, HEADER_BYTES)).size_bytes
        if size_bytes > self._size_bytes - self._position:
            raise CorruptRecordError(f"a batch of {size_bytes} bytes is incomplete")
        return size_bytes

    def _damaged(self, reason: str) -> CorruptRecordError:
        where = f"{self._segment.path} at offset {self._next_offset}"
        return CorruptRecordError(f"{where}: {reason}", offset=self._next_offset)


class KeyReading:
    """First half of a compaction pass: puts the latest offset of each key of one segment into a
    map.

    Call :meth:`step` until its result has ``is_done``.
    """

    def __init__(
        self,
        found: CleanerMap,
        segment: LogSegment,
        file: VfsFile,
        end_offset: int,
        first: int,
        step_bytes: int = STEP_BYTES,
        beat: Callable[[], None] = lambda: None,
        transactions: CleanedTransactions = NO_TRANSACTIONS,
    ) -> None:
        """Prepare to read the keys of ``segment`` into the map ``found``.

        :param file: open file of the segment.
        :param end_offset: base offset of the next segment.
        :param first: records below this offset are skipped.
        :param beat: called within a step to report progress.
        """
        self._found = found
        self._transactions = transactions
        self._beat = beat
        self._step_bytes = step_bytes
        self._reader = _Reader(segment, file, end_offset)
        self._first = first
        self.is_map_full = False

    def step(self) -> Stepped:
        """Put the keys of the next batches into the map. If the map is full, set ``is_map_full``;
        no step is left then.

        :raises CorruptRecordError: with the damaged ``offset``.
        """
        read_bytes = 0
        if not self._reader.is_done:
            for data, position, header in self._reader.chunk(self._step_bytes):
                read_bytes += header.size_bytes
                if header.last_offset < self._first:
                    continue
                if not put_keys(
                    self._found, data, position, header, self._first, self._beat, self._transactions
                ):
                    self.is_map_full = True
                    return Stepped(read_bytes, 0, True)
        return Stepped(read_bytes, 0, self._reader.is_done)


class GroupRewriting:
    """Second half of a compaction pass: writes the kept records of adjacent segments to one new
    segment, the target.

    Call :meth:`step` until its result has ``is_done``, then :meth:`sync`.
    """

    def __init__(
        self,
        vfs: Vfs,
        files: CleaningFiles,
        sources: Sequence[LogSegment],
        end_offset: int,
        keeps: BatchFilter,
        reserve_bytes: int,
        step_bytes: int = STEP_BYTES,
    ) -> None:
        self._step_bytes = step_bytes
        ends = [*(source.base_offset for source in sources[1:]), end_offset]
        parts = zip(sources, files.sources, ends, strict=True)
        self._readers = [_Reader(*part) for part in parts]
        self._vfs = vfs
        self._sources = sources
        self._target = files.target
        self._end_offset = end_offset
        #: The offset after the last batch that was written.
        self._next_offset = sources[0].base_offset
        self._keeps = keeps
        self._reserve_bytes = reserve_bytes
        #: False while the target equals its only source, byte for byte.
        self.is_changed = len(sources) > 1

    def step(self) -> Stepped:
        """Write the kept records of the next batches to the target. They are durable only after
        :meth:`sync`.

        :raises CorruptRecordError: with the damaged ``offset``.
        :raises NoSpaceToCleanError: less free space than ``reserve_bytes`` would be left; the step
            wrote nothing.
        """
        while self._readers and self._readers[0].is_done:
            del self._readers[0]
        if not self._readers:
            self._require_end()
            return Stepped(0, 0, True)
        read_bytes, buffers, headers = 0, list[Buffer](), list[BatchHeader]()
        for data, position, header in self._readers[0].chunk(self._step_bytes):
            read_bytes += header.size_bytes
            is_last = header.next_offset == self._end_offset
            left = self._keeps.thin(data, position, header, is_last=is_last)
            if left is None:
                self.is_changed = True
                continue
            buffers.append(left)
            headers.append(read_header(left))
            self.is_changed |= headers[-1] != header
            self._next_offset = header.next_offset
        written_bytes = sum(map(len, buffers))
        self._require_space(written_bytes)
        if headers:
            self._target.append_batches(buffers, headers)
        for aborted in self._keeps.transactions.take_kept():
            self._target.note_aborted(aborted)
        return Stepped(read_bytes, written_bytes, False)

    def _require_end(self) -> None:
        if self._next_offset != self._end_offset:
            raise CorruptRecordError(
                f"{self._target.path} ends at {self._next_offset}, not at {self._end_offset}",
                offset=self._next_offset,
            )

    def sync(self) -> None:
        """Make the records of the target durable, and then write its transaction index. Call it
        after the last step.
        """
        with FailsAs(OpKind.FLUSH):
            self._target.open().sync()
        write_target_transactions(self._sources, self._target)

    def _require_space(self, size_bytes: int) -> None:
        usable_bytes = self._vfs.space(self._target.directory).usable_bytes
        if usable_bytes - size_bytes < self._reserve_bytes:
            raise NoSpaceToCleanError(
                f"{usable_bytes} bytes are free, {self._reserve_bytes} of which stay so"
            )


class Cleanable(NamedTuple):
    """The oldest closed segments of a log, which a pass may read, and how dirty they are.

    ``first_dirty`` is the first offset that no pass has cleaned.
    """

    segments: tuple[LogSegment, ...]
    #: End offset of the last segment.
    end_offset: int
    first_dirty: int
    dirt: Dirt


def find_cleanable(
    view: LogView, first_dirty: int, limit: int, config: TopicConfig, now_ms: int
) -> Cleanable | None:
    """Return the oldest segments, which a pass may read; None if none of them is dirty.

    The segments end at or below ``limit`` and are old enough. Ages are computed from record
    timestamps (KIP-58, KIP-354). Runs in the directory's thread.

    :param first_dirty: the first offset that no pass has cleaned.
    :param now_ms: wall clock time.
    """
    found: list[LogSegment] = []
    end_offset = view.segments[0].base_offset
    clean_bytes, dirty_bytes, is_overdue = 0, 0, False
    for segment, following in pairwise(view.segments):
        if following.base_offset > limit:
            break
        if following.base_offset <= first_dirty:
            clean_bytes += segment.size_bytes
        elif config.min_compaction_lag_ms and _is_young(segment, config, now_ms):
            break
        else:
            dirty_bytes += segment.size_bytes
            first_ms = segment.first_timestamp()
            is_overdue |= first_ms is not None and now_ms - first_ms > config.max_compaction_lag_ms
        found.append(segment)
        end_offset = following.base_offset
    if dirty_bytes == 0:
        return None
    dirt = Dirt(clean_bytes, dirty_bytes, is_overdue)
    return Cleanable(tuple(found), end_offset, first_dirty, dirt)


def _is_young(segment: LogSegment, config: TopicConfig, now_ms: int) -> bool:
    largest = segment.largest_timestamp()
    return largest is not None and largest.timestamp > now_ms - config.min_compaction_lag_ms
