"""DISK. ``LogSegment``: one ``.log`` file of whole batches, with its indexes.

* ``size_bytes`` counts only complete writes. Bytes of a failed write are truncated at once, or at
  the latest before the next write or the sealing of the segment.
* After a failure for lack of space the segment stays usable. :meth:`retire` and :meth:`truncate`
  describe the order that ensures this.
* File and indexes are opened when first needed, so that loading thousands of replicas is cheap.
  Index files are written when a segment is rolled or closed. If they are missing or do not match
  the segment, index_rebuild.py rebuilds both. segment_indexes.py defines their content.
* Damage of the file does not shorten the segment. Only recovery and truncation do.
* trusted_bytes.py tracks which bytes may be read from memory without a check. Every read of the
  file that may wait for the disk goes through :meth:`read_at`.
* Methods run in the directory's thread. The exception is :meth:`read` with a ``read_at`` that never
  waits: it uses only the indexes and the bytes below its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import (
    HEADER_BYTES,
    BatchHeader,
    read_header,
    whole_bytes,
)
from kraftjbod.storage.dir_names import (
    DELETED_SUFFIX,
    EXPIRED_SUFFIX,
    INDEX_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    offset_file_name,
)
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.segments.batch_runs import RUN_BYTES, SoundRun, sound_runs
from kraftjbod.storage.segments.batch_walk import (
    LARGEST_RELATIVE_OFFSET,
    WALK_BYTES,
    Damage,
    Located,
    OnProgress,
    ReadAt,
    WouldWait,
    batch_at,
    last_end,
    located_from,
    no_progress,
    require_sound,
    walk_around_damage,
    walk_to,
)
from kraftjbod.storage.segments.index_files import read_largest_entry, read_last_position
from kraftjbod.storage.segments.offset_index import OffsetIndex, TimeEntry
from kraftjbod.storage.segments.segment_cache import SegmentCache
from kraftjbod.storage.segments.segment_indexes import FreshIndexes, SegmentIndexes
from kraftjbod.storage.segments.steps import Steps, run_all
from kraftjbod.storage.segments.transaction_index import AbortedTransaction, TransactionIndex
from kraftjbod.storage.segments.trusted_bytes import TrustedBytes
from kraftjbod.storage.vfs import OpenMode, Undoing, Vfs, VfsFile, write_atomically

_EMPTY: Final = memoryview(b"")
#: A ``max_offset`` without effect.
NO_LIMIT: Final = 2**63 - 1


class Scanned(NamedTuple):
    """Result of :meth:`LogSegment.scan`: size of the sound batches in bytes, and the offset after
    them.
    """

    valid_bytes: int
    next_offset: int


class SegmentUnreadError(Exception):
    """Raised instead of a result: the operation needs the indexes of ``segment``, and these must be
    rebuilt from the whole file first (:class:`IndexRebuild`).
    """

    def __init__(
        self, segment: LogSegment, *, did_not_fit: bool = False, survey_end: int | None = None
    ) -> None:
        """Record the present state of ``segment``.

        :param did_not_fit: the index files exist and do not match the segment.
        :param survey_end: end offset of the segment, if the CRC of each batch must be checked; else
            None.
        """
        super().__init__(f"{segment.path} has to be read as a whole")
        self.segment = segment
        self.did_not_fit = did_not_fit
        self.survey_end = survey_end
        #: The present size. Batches may be appended until the segment was read.
        self.size_bytes = segment.size_bytes
        self.truncations = segment.truncations

    @property
    def is_settled(self) -> bool:
        """Whether the indexes were rebuilt meanwhile, and no survey is demanded."""
        return self.segment.has_indexes and self.survey_end is None


class LogSegment:
    """One ``.log`` file of whole batches and its index files. The batches start at ``base_offset``
    or later, and end below the base offset of the next segment.

    Methods run in the directory's thread, except as documented.
    """

    __slots__ = (
        "_end_offset",
        "_first_timestamp",
        "_index_interval_bytes",
        "_indexes",
        "_indexes_on_disk",
        "_largest",
        "_retired_suffix",
        "_tail_is_torn",
        "_transactions_on_disk",
        "_vfs",
        "base_offset",
        "cache",
        "directory",
        "file",
        "may_have_gaps",
        "size_bytes",
        "transactions",
        "truncations",
        "trusted",
        "was_read",
    )

    def __init__(
        self,
        *,
        vfs: Vfs,
        directory: str,
        base_offset: int,
        size_bytes: int,
        index_interval_bytes: int,
        may_have_gaps: bool = False,
        has_transaction_index: bool = False,
    ) -> None:
        self._vfs = vfs
        #: Compaction, here or on a leader, may have removed offsets.
        self.may_have_gaps = may_have_gaps
        #: Changes when the replica's directory is renamed. Open files are not affected.
        self.directory = directory
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        #: Is notified when the file is opened or indexes are loaded; None until the log is served.
        self.cache: SegmentCache[LogSegment] | None = None
        #: Whether the segment was read since the cache last checked; set by readers in any thread.
        self.was_read = False
        #: The bytes that may be read from memory without a check.
        self.trusted = TrustedBytes(size_bytes)
        #: None until first needed. The event loop reads through the file, and never opens it.
        self.file: VfsFile | None = None
        self._index_interval_bytes = index_interval_bytes
        #: None until first needed. Replaced as a whole, because the event loop reads it.
        self._indexes: SegmentIndexes | None = None
        #: Largest timestamp while the indexes are not loaded; None until first needed.
        self._largest: TimeEntry | None = None
        #: The index files are up to date, or assumed to be until they are read.
        self._indexes_on_disk = size_bytes > 0
        if size_bytes == 0:
            self._indexes = SegmentIndexes(base_offset, index_interval_bytes)
        #: None if only in its file. Replaced as a whole, or appended to.
        self.transactions = None if has_transaction_index else TransactionIndex()
        #: The file of aborted transactions is up to date.
        self._transactions_on_disk = True
        self._first_timestamp: int | None = None
        #: Result of :meth:`end_offset`; None until first needed, and after a change of the file.
        self._end_offset: int | None = None
        self._retired_suffix = DELETED_SUFFIX
        self._tail_is_torn = False
        #: Number of truncations. Bytes that were read before one may be gone after it.
        self.truncations = 0

    @classmethod
    def on_disk(
        cls,
        vfs: Vfs,
        directory: str,
        base_offset: int,
        size_bytes: int,
        config: TopicConfig,
        *,
        has_transaction_index: bool = False,
    ) -> LogSegment:
        """Create the object for a segment file, which may not exist yet. The file is not opened."""
        return cls(
            vfs=vfs,
            directory=directory,
            base_offset=base_offset,
            size_bytes=size_bytes,
            index_interval_bytes=config.index_interval_bytes,
            has_transaction_index=has_transaction_index,
        )

    def __repr__(self) -> str:
        return f"<LogSegment {self.path} size={self.size_bytes}>"

    @property
    def path(self) -> str:
        return self._path(LOG_SUFFIX)

    @property
    def retired_path(self) -> str:
        """Path of the log file after :meth:`retire`."""
        return self.path + self._retired_suffix

    @property
    def has_indexes(self) -> bool:
        """Whether the indexes are in memory. The event loop may ask."""
        return self._indexes is not None

    @property
    def is_ready(self) -> bool:
        """Whether file and indexes are open, so that the event loop may read."""
        return self.file is not None and self._indexes is not None

    # -- writing ----------------------------------------------------------------------------

    def create(self) -> None:
        """Create the empty file and open it; an existing one is truncated. If this fails, no file
        is left. Not synced.
        """
        with Undoing(self._uncreate):
            self.open(OpenMode.CREATE).truncate(0)

    def _uncreate(self) -> None:
        self.close()
        self._vfs.unlink_if_exists(self.path)

    def append_batches(self, buffers: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """Write ``buffers``, which hold the batches of ``headers``, at the end, and index the
        batches. Not synced.

        :raises SegmentUnreadError: the index files are missing or do not match; nothing was
            written.
        :raises OSError: the segment has none of the batches.
        """
        file = self.open()
        indexes = self.indexes()
        if self._tail_is_torn:
            self.truncate_torn_tail()
        self._tail_is_torn = True
        try:
            file.write_at(self.size_bytes, buffers)
        except BaseException:
            self.truncate_torn_tail()
            raise
        self._tail_is_torn = self._indexes_on_disk = False
        self._end_offset = None
        for header in headers:
            self.size_bytes += indexes.note(header, self.size_bytes)
        if self._first_timestamp is None:
            self._first_timestamp = headers[0].max_timestamp

    def truncate_torn_tail(self) -> bool:
        """Truncate the bytes of a failed write. Return whether there were such bytes.

        No batch may be written after them.
        """
        was_torn = self._tail_is_torn
        if was_torn:
            self.open().truncate(self.size_bytes)
            self._tail_is_torn = False
        return was_torn

    def write_indexes(self, *, sync: bool = False) -> bool:
        """Write the offset and time index files if they are not up to date. Return whether they
        were written. The transaction index is written too, unsynced.

        Each file is replaced atomically. Loading trusts the files of segments below the recovery
        point. Therefore the files must be synced before the recovery point passes the segment: with
        ``sync``, or later by the caller. After a power failure an unsynced time index may be
        truncated, and look complete with an earlier last timestamp, which retention would use.
        """
        is_needed = not self._indexes_on_disk
        if is_needed:
            for suffix, data in self.indexes().to_files().items():
                with FailsAs(OpKind.INDEX):
                    write_atomically(self._vfs, self._path(suffix), data, sync=sync)
            self._indexes_on_disk = True
            self._note_loaded()
        self.write_transactions()
        return is_needed

    @property
    def index_paths(self) -> tuple[str, str]:
        """Paths of the files that :meth:`write_indexes` writes."""
        return self._path(INDEX_SUFFIX), self._path(TIME_INDEX_SUFFIX)

    def truncate(self, size_bytes: int, end_offset: int) -> None:
        """Truncate the file to ``size_bytes``, the start of a batch, durably.

        The fsync ensures that truncated batches do not reappear after a crash, beside batches
        appended later. The index files are removed first. If that or the truncation fails, the
        segment is unchanged.

        Cost: loading the indexes, and reading one index interval. If the interval is damaged, the
        segment has no indexes afterwards.

        :param end_offset: end offset of the remaining batches.
        :raises SegmentUnreadError: the index files are missing or do not match; nothing was
            truncated.
        """
        file = self.open()
        indexes = self._indexes_below(size_bytes, end_offset)
        self.truncations += 1
        self._transactions_on_disk = False
        for suffix in INDEX_SUFFIXES:
            self._vfs.unlink_if_exists(self._path(suffix))
        file.truncate(size_bytes)
        if self.transactions is not None:
            self.transactions = self.transactions.below(end_offset)
        self.size_bytes = size_bytes
        self.trusted.truncate(size_bytes)
        self._tail_is_torn = False
        self._first_timestamp = self._end_offset = None
        # Missing indexes count as up to date, because their files are missing too.
        self._indexes, self._indexes_on_disk, self._largest = indexes, indexes is None, None
        if indexes is not None:
            self._note_loaded()
        elif self.cache is not None:
            self.cache.unloaded(self)
        with FailsAs(OpKind.FLUSH):
            file.sync()

    def _indexes_below(self, size_bytes: int, end_offset: int) -> SegmentIndexes | None:
        """Return the indexes of the first ``size_bytes``; None if an entry does not point to a
        batch.
        """
        if size_bytes == 0:
            return SegmentIndexes(self.base_offset, self._index_interval_bytes)
        try:
            return self.indexes().below(self.read_at, size_bytes, end_offset)
        except (CorruptRecordError, WouldWait):
            return None

    def retire(self, *, at_once: bool = False, suffix: str = DELETED_SUFFIX) -> None:
        """Append ``suffix`` to the names of the log and index files. :meth:`purge` frees the space
        later.

        The log file is renamed last. Until then the segment can be read, and the call can be
        repeated. The transaction index stays, because it cannot be rebuilt: the caller removes it
        afterwards.

        :param at_once: unlink the files instead, because a new name may need space. Open files can
            still be read.
        """
        self._retired_suffix = suffix
        for kind in (INDEX_SUFFIX, TIME_INDEX_SUFFIX, LOG_SUFFIX):
            path = self._path(kind)
            if at_once:
                self._vfs.unlink_if_exists(path)
            elif self._vfs.exists(path):
                self._vfs.rename(path, path + suffix)

    def recreate_empty(self, base_offset: int) -> LogSegment:
        """Return an empty segment at ``base_offset`` that reuses the file of this segment.

        The caller must not use this segment any more. The call needs no disk space. The old content
        counts as the torn tail of the new segment. The process may crash before the content is
        truncated, so no old batch may have offsets that are valid in the new segment.
        """
        file = self.open()
        fresh = LogSegment(
            vfs=self._vfs,
            directory=self.directory,
            base_offset=base_offset,
            size_bytes=0,
            index_interval_bytes=self._index_interval_bytes,
            may_have_gaps=self.may_have_gaps,
        )
        for suffix in INDEX_SUFFIXES:
            self._vfs.unlink_if_exists(self._path(suffix))
        if fresh.path != self.path:
            self._vfs.rename(self.path, fresh.path)
        fresh._tail_is_torn = True
        fresh.file, self.file = file, None
        fresh.join(self.cache)
        self.join(None)
        return fresh

    def remove(self) -> None:
        """Unlink the log and index files of a segment that belongs to no log, and close the file.
        Needs no disk space. Missing files are no error.
        """
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            self._vfs.unlink_if_exists(self._path(suffix))
        self.close()

    def purge(self) -> None:
        """Unlink the files of a segment that was retired, except its transaction index, and close
        the log file.

        No reader may use the segment any more.
        """
        for kind in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            self._vfs.unlink_if_exists(self._path(kind) + self._retired_suffix)
        self.close()

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
            self.file = None
        if self.cache is not None:
            self.cache.closed(self)

    def detach_file(self) -> VfsFile | None:
        """Return the open file, for the caller to close later, and forget it.

        Returns None if no file is open, or if it ends with bytes of a failed write.
        """
        if self._tail_is_torn:
            return None
        file, self.file = self.file, None
        if self.cache is not None:
            self.cache.closed(self)
        return file

    # -- memory -----------------------------------------------------------------------------

    def join(self, cache: SegmentCache[LogSegment] | None) -> None:
        """Report open files and loaded indexes to ``cache`` from now on, instead of the present
        cache. With None, report them to no cache.
        """
        if self.cache is not None:
            self.cache.left(self)
        self.cache = cache
        if cache is not None:
            indexes = self._indexes
            index_bytes = None if indexes is None else indexes.size_bytes
            cache.joined(self, index_bytes, is_open=self.file is not None)

    def drop_indexes(self) -> bool:
        """Release the indexes if their files are up to date. Return whether that was done."""
        if self._indexes is None or not self._indexes_on_disk:
            return False
        self._largest, self._indexes = self._indexes.largest, None
        if self.cache is not None:
            self.cache.unloaded(self)
        return True

    def _note_loaded(self) -> None:
        if self.cache is not None and self._indexes is not None:
            self.cache.loaded(self, self._indexes.size_bytes)

    # -- opening ----------------------------------------------------------------------------

    def open(self, mode: OpenMode = OpenMode.READ_WRITE) -> VfsFile:
        if self.file is None:
            self.file = self._vfs.open(self.path, mode)
            if self.cache is not None:
                self.cache.opened(self)
        return self.file

    def read_at(self, position: int, size: int) -> bytes | bytearray:
        """Read ``size`` bytes from the file, possibly from the disk.

        The bytes, and bytes that the kernel may read ahead, are not trusted afterwards.
        """
        file = self.open()
        self.trusted.doubt(position, size, self.size_bytes)
        return file.read_at(position, size)

    @contextmanager
    def _reader(self) -> Iterator[ReadAt]:
        """Yield a function like :meth:`read_at`.

        A file that was closed is closed again at the end.
        """
        if self.file is not None:
            yield self.read_at
            return
        file = self._vfs.open(self.path, OpenMode.READ)

        def read_at(position: int, size: int) -> bytes | bytearray:
            self.trusted.doubt(position, size, self.size_bytes)
            return file.read_at(position, size)

        try:
            yield read_at
        finally:
            file.close()

    def indexes(self) -> SegmentIndexes:
        """Return both indexes, loaded if necessary.

        :raises SegmentUnreadError: as :meth:`load_indexes`.
        """
        if self._indexes is None:
            self.load_indexes()
        assert self._indexes is not None
        return self._indexes

    def load_indexes(self) -> None:
        """Load both indexes from their files, unless they are in memory.

        Cost: both files and one index interval.

        :raises SegmentUnreadError: the files are missing, or do not match the segment.
        """
        if self._indexes is not None:
            return
        with FailsAs(OpKind.INDEX):
            data = self._vfs.read_if_exists(self._path(INDEX_SUFFIX))
            time_data = self._vfs.read_if_exists(self._path(TIME_INDEX_SUFFIX))
        is_there = None not in (data, time_data)
        if data is not None and time_data is not None:
            indexes = SegmentIndexes.from_files(
                self.base_offset,
                self._index_interval_bytes,
                offsets=data,
                times=time_data,
                segment_bytes=self.size_bytes,
            )
            if indexes is not None and self._fits(indexes):
                self._indexes = indexes
                self._note_loaded()
                return
        # A stop between the two writes leaves one file without the other.
        raise SegmentUnreadError(self, did_not_fit=is_there)

    def _fits(self, indexes: SegmentIndexes) -> bool:
        """Return whether the last entries of both indexes match batches of this segment."""
        index, largest = indexes.offsets, indexes.largest
        assert largest is not None, "files without any are not believed"
        position = index.position_at_most(self.size_bytes)
        begin = index.position_before(largest.offset)
        try:
            if position != begin:
                header = read_header(self.read_at(position, HEADER_BYTES))
                if index.position_before(header.last_offset) != position:
                    return False
            newest = walk_to(self.read_at, begin, self.size_bytes, largest.offset)
        except (CorruptRecordError, WouldWait):
            return False
        return newest is not None and newest.header.max_timestamp == largest.timestamp

    # -- transactions -----------------------------------------------------------------------

    @property
    def transactions_path(self) -> str:
        return self._path(TRANSACTION_INDEX_SUFFIX)

    def load_transactions(self) -> bool:
        """Load :attr:`transactions` if necessary. Return False if the file is missing or does not
        match this segment; then :attr:`transactions` stays None.
        """
        if self.transactions is None:
            with FailsAs(OpKind.INDEX):
                data = self._vfs.read_if_exists(self.transactions_path)
            if data is not None:
                self.transactions = TransactionIndex.from_bytes(self.base_offset, data)
        return self.transactions is not None

    def note_aborted(self, aborted: AbortedTransaction) -> None:
        """Add an aborted transaction, whose marker is the last batch, to the transaction index in
        memory.
        """
        assert self.transactions is not None, self
        self._transactions_on_disk = False
        self.transactions.append_aborted(aborted)

    def take_transactions(self, transactions: TransactionIndex) -> None:
        """Replace the transaction index in memory by one that was rebuilt from the log."""
        self._transactions_on_disk = False
        self.transactions = transactions

    def write_transactions(self, *, sync: bool = False, suffix: str = "") -> None:
        """Write the transaction index to its file unless the file is up to date or the index is not
        loaded.

        An empty index has no file. Recovery trusts the file.

        :param suffix: if given, always write the index, even an empty one, to a file with this
            suffix. The caller renames the file later.
        """
        transactions = self.transactions
        if transactions is None or (self._transactions_on_disk and not suffix):
            return
        path, data = self.transactions_path + suffix, transactions.to_bytes()
        with FailsAs(OpKind.INDEX):
            if data or suffix:
                write_atomically(self._vfs, path, data, sync=sync)
            else:
                self._vfs.unlink_if_exists(path)
        self._transactions_on_disk = True

    # -- walking ----------------------------------------------------------------------------

    def scan(self, *, check_crc_of_each: bool) -> Scanned:
        """Carry out :meth:`scan_steps` without a pause."""
        return run_all(self.scan_steps(check_crc_of_each=check_crc_of_each))

    def scan_steps(
        self,
        *,
        check_crc_of_each: bool,
        least_epoch: int | None = None,
        on_run: Callable[[SoundRun], None] = lambda run: None,
    ) -> Steps[Scanned]:
        """Walk all batches, rebuild the indexes, and stop before the first batch that is not sound.

        Sets ``size_bytes`` to the size of the sound batches. The file itself is not changed.

        :param least_epoch: if given, a batch with a lower leader epoch than this or an earlier
            batch is not sound.
        :param on_run: called with each run of sound batches.
        """
        fresh, valid_bytes = self.fresh_indexes(), 0
        scan = fresh.indexes.batch_scan(
            next_offset=self.base_offset,
            may_have_gaps=self.may_have_gaps,
            check_crc_of_each=check_crc_of_each,
            least_epoch=least_epoch,
        )
        for run in sound_runs(
            self.read_at, scan, position=0, end=self.size_bytes, on_progress=no_progress
        ):
            fresh.take(run)
            on_run(run)
            valid_bytes += run.size_bytes
            yield run.size_bytes
        self.size_bytes = valid_bytes
        self.trusted.truncate(valid_bytes)
        if check_crc_of_each:
            self.trusted.trust(0, valid_bytes)
        self.adopt(fresh)
        return Scanned(valid_bytes, scan.next_offset if valid_bytes else self.base_offset)

    def adopt(self, fresh: FreshIndexes) -> None:
        """Use ``fresh``, indexes that were rebuilt from the whole segment as it is now, in place of
        the present ones. Their files are written later.
        """
        self._first_timestamp, self._end_offset = fresh.first_timestamp, None
        self._indexes = fresh.indexes
        self._indexes_on_disk = False
        self._note_loaded()

    def walk(
        self,
        read_at: ReadAt,
        *,
        known: Callable[[int], Iterable[int]],
        check_crc_of_each: bool,
        end_offset: int,
        on_progress: OnProgress = no_progress,
        chunk_bytes: int = WALK_BYTES,
    ) -> Iterator[Located | Damage | None]:
        """Yield as :func:`walk_around_damage`. Changes nothing.

        Any thread may call this with a reader of its own.

        :param known: returns the positions after a position where batches start, according to an
            index.
        :param end_offset: expected end offset of the segment.
        """
        return walk_around_damage(
            read_at,
            end=self.size_bytes,
            begin_offset=self.base_offset,
            end_offset=end_offset,
            known=known,
            check_crc_of_each=check_crc_of_each,
            on_progress=on_progress,
            chunk_bytes=chunk_bytes,
            gaps_below=self.gaps_below(end_offset),
        )

    def gaps_below(self, end_offset: int) -> int | None:
        """Return the offset below which batches of this segment must end if offsets may be missing
        between them; None if no offset may be missing. It is an argument of :func:`sound_batches`.

        :param end_offset: end offset of the segment, or ``NO_LIMIT``.
        """
        if not self.may_have_gaps:
            return None
        return min(end_offset, self.base_offset + LARGEST_RELATIVE_OFFSET + 1)

    def fresh_indexes(self) -> FreshIndexes:
        """Return empty indexes, to be filled by a :meth:`walk` over the whole segment."""
        return FreshIndexes(self.base_offset, self._index_interval_bytes)

    def known_positions(self, position: int) -> Iterable[int]:
        """Return the indexed batch positions after ``position``; none if the index is not in
        memory.
        """
        return () if self._indexes is None else self._indexes.offsets.positions_after(position)

    def offset_below(self, position: int) -> int:
        """Return an offset such that all batches below it end before ``position``. The event loop
        may call it.

        While the index is not loaded, this is the base offset.
        """
        indexes = self._indexes
        return self.base_offset if indexes is None else indexes.offsets.offset_below(position)

    def next_offset(self, limit: int) -> int:
        """Return the offset after the last batch that starts below the position ``limit``; the base
        offset without one.

        :raises SegmentUnreadError: as :meth:`load_indexes`.
        :raises CorruptRecordError: the bytes before ``limit`` are not a batch.
        """
        position, found = self.indexes().offsets.position_at_most(limit - 1), self.base_offset
        while position < limit:
            header = read_header(self.read_at(position, HEADER_BYTES))
            position, found = position + header.size_bytes, header.next_offset
        return found

    @property
    def is_end_known(self) -> bool:
        """Whether :meth:`end_offset` needs no read."""
        return self._end_offset is not None

    def end_offset(self) -> int | None:
        """Return the offset after the last batch of a closed segment; the base offset if it is
        empty.

        Returns None if the file does not end with a whole batch. Only headers are checked.

        Cost of the first call: :meth:`largest_timestamp`, the last entry of the offset index, and
        one index interval, which usually is the interval that :meth:`largest_timestamp` reads.

        :raises SegmentUnreadError: as :meth:`load_indexes`.
        """
        if self._end_offset is None:
            self._end_offset = self._read_end()
        return self._end_offset

    def _read_end(self) -> int | None:
        if self.size_bytes == 0:
            return self.base_offset
        self.largest_timestamp()  # Requires an index, without which all headers would be read.
        if self._indexes is not None:
            begin = self._indexes.offsets.last_position()
        else:
            with FailsAs(OpKind.INDEX):
                begin = read_last_position(self._vfs, self._path(INDEX_SUFFIX))
        last: Located | None = None
        with self._reader() as read_at:
            try:
                for located in located_from(read_at, begin, self.size_bytes):
                    last = located
            except (CorruptRecordError, WouldWait):
                return None
        return None if last is None or last.end != self.size_bytes else last.next_offset

    def sound_end(self, *, suffix: str = "") -> Steps[int | None]:
        """Return the offset after the last batch; None if the file does not end with a sound batch.

        Used for loading. Reads the last entry of the index file and the batches from there on, or
        the whole file if it has no index. Leaves no file open.

        :param suffix: suffix of the file names of a retired segment.
        """
        with FailsAs(OpKind.INDEX):
            begin = read_last_position(self._vfs, self._path(INDEX_SUFFIX) + suffix)
        try:
            self.file = self._vfs.open(self.path + suffix, OpenMode.READ)
            first = batch_at(self.read_at, begin, self.size_bytes)
            if first is None:
                # The index is wrong or the file was cut, so the whole file has to be read.
                begin = 0
                first = batch_at(self.read_at, begin, self.size_bytes)
            if begin == 0 and self.size_bytes > RUN_BYTES:
                return (yield from self._sound_end_of_all())
            scan = self.fresh_indexes().indexes.batch_scan(
                next_offset=self.base_offset if first is None else first.header.base_offset,
                may_have_gaps=self.may_have_gaps,
                check_crc_of_each=True,
            )
            end = begin
            for run in sound_runs(
                self.read_at, scan, position=begin, end=self.size_bytes, on_progress=no_progress
            ):
                end = run.end
                yield run.size_bytes
        finally:
            self.close()
        self.trusted.trust(begin, end)
        return scan.next_offset if end == self.size_bytes else None

    def _sound_end_of_all(self) -> Steps[int | None]:
        """Implement :meth:`sound_end` without an index file: read the whole file and rebuild the
        indexes.
        """
        size_bytes = self.size_bytes
        scanned = yield from self.scan_steps(check_crc_of_each=True)
        if scanned.valid_bytes == size_bytes:
            return scanned.next_offset
        self.size_bytes, self._indexes, self._indexes_on_disk = size_bytes, None, True
        return None

    def position_of(self, offset: int) -> Located | None:
        """Return the first batch that ends at or after ``offset``; None if there is none.

        :raises SegmentUnreadError: index files are missing, or do not match the segment.
        :raises CorruptRecordError: the walk from the index entry meets no batch.
        :raises WouldWait: the bytes end inside a header.
        """
        position = self.indexes().offsets.position_before(offset)
        return walk_to(self.read_at, position, self.size_bytes, offset)

    def read(
        self,
        read_at: ReadAt,
        *,
        start_offset: int,
        max_offset: int,
        limit: int,
        max_bytes: int,
        min_one: bool,
        is_checked: bool = False,
    ) -> memoryview | None:
        """Read complete batches below ``max_offset``, starting with the batch of ``start_offset``.

        Returns at most ``max_bytes``, except for the first batch if ``min_one``. Returns empty
        bytes if no batch fits. Returns None if ``read_at`` returned None or too little, or if the
        indexes are not loaded.

        :param limit: position in the file; only bytes below it are read.
        :param is_checked: verify each batch, including those between the index entry and
            ``start_offset``. The batches are trusted afterwards. Allowed only in the directory's
            thread.
        :raises CorruptRecordError: the walk from the index entry meets no batch, the batch of
            ``start_offset`` is missing, or a checked batch is not sound.
        """
        indexes = self._indexes
        if indexes is None:
            return None
        self.was_read = True
        index = indexes.offsets
        begin = index.position_before(start_offset)
        try:
            first = walk_to(read_at, begin, limit, start_offset)
            if first is None or (
                first.header.base_offset > start_offset and not self.may_have_gaps
            ):
                raise CorruptRecordError(f"offset {start_offset} is not where the index points")
            if first.header.last_offset >= max_offset:
                return _EMPTY
            end = first.position + max_bytes
            if first.header.size_bytes > max_bytes:
                if not min_one:
                    return _EMPTY
                end = first.position + first.header.size_bytes
                if index.has_position_in(first.position, end):
                    # Without this check a false length could make one read take the whole segment.
                    raise CorruptRecordError(
                        f"the batch at {first.position} claims {first.header.size_bytes} bytes, "
                        "and the index has a batch inside of them"
                    )
            elif end < limit or max_offset < NO_LIMIT:
                nearest = min(
                    index.position_at_most(min(end, limit)), index.position_before(max_offset)
                )
                nearest = max(first.position, nearest)
                end = last_end(read_at, nearest, min(end, limit), max_offset)
            end = min(end, limit)
        except WouldWait:
            return None
        if is_checked:
            return self._read_checked(index, begin, first.position, end)
        data = read_at(first.position, end - first.position)
        if data is None:
            return None
        view = memoryview(data)
        if len(view) < end - first.position:
            # The trusted range ends inside the bytes. Return the complete batches, or None so that
            # the directory's thread reads them.
            view = view[: whole_bytes(view)]
            return view or None
        return view

    def _read_checked(self, index: OffsetIndex, begin: int, position: int, end: int) -> memoryview:
        """Return the bytes from ``position`` to ``end``, after a check of all batches from
        ``begin`` on.

        ``begin`` is the position from the index. Reads from memory also start there, so all these
        bytes have to be trusted.
        """
        data = self.read_at(begin, end - begin)
        if len(data) < end - begin:
            raise CorruptRecordError(f"{self.path} ends before position {end}")
        known = index.offset_at(begin)
        if known is None:
            known = self.base_offset - 1
        require_sound(data, known, self.gaps_below(NO_LIMIT))
        self.trusted.trust(begin, end)
        return memoryview(data)[position - begin :]

    # -- time -------------------------------------------------------------------------------

    @property
    def is_largest_known(self) -> bool:
        """Whether :meth:`largest_timestamp` needs no read."""
        return self._indexes is not None or self._largest is not None

    def largest_timestamp(self) -> TimeEntry | None:
        """Return the largest timestamp and an offset that has it; None if there are no batches.

        Cost of the first call: the last entry of the time index, a binary search for its batch in
        the offset index, and one index interval.

        :raises SegmentUnreadError: as :meth:`load_indexes`.
        """
        if not self.is_largest_known:
            self._largest = self._read_largest()
        if self._indexes is None and self._largest is None:
            self.load_indexes()
        return self._largest if self._indexes is None else self._indexes.largest

    def _read_largest(self) -> TimeEntry | None:
        """Read the last entry of the time index file; None if it does not match a batch."""
        with self._reader() as read_at, FailsAs(OpKind.INDEX):
            return read_largest_entry(
                self._vfs,
                *self.index_paths,
                base_offset=self.base_offset,
                read_at=read_at,
                size_bytes=self.size_bytes,
            )

    def first_timestamp(self) -> int | None:
        """Return the largest timestamp of the first batch, for ``segment.ms``; None if its header
        cannot be read.
        """
        if self._first_timestamp is None:
            with self._reader() as read_at:
                first = batch_at(read_at, 0, self.size_bytes)
            self._first_timestamp = None if first is None else first.header.max_timestamp
        return self._first_timestamp

    def _path(self, suffix: str) -> str:
        return f"{self.directory}/{offset_file_name(self.base_offset, suffix)}"


def take_back(vfs: Vfs, directory: str, base_offset: int) -> None:
    """Undo :meth:`LogSegment.retire` of a segment with the suffix ``.expired``, complete or not.

    The files must not have been purged.
    """
    for suffix in (LOG_SUFFIX, TIME_INDEX_SUFFIX, INDEX_SUFFIX):
        path = f"{directory}/{offset_file_name(base_offset, suffix)}"
        if vfs.exists(path + EXPIRED_SUFFIX):
            vfs.rename(path + EXPIRED_SUFFIX, path)
