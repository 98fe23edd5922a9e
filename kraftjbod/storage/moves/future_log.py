"""DISK. ``FutureLog``: the copy of a replica that a move builds in another log directory.

* Its directory holds the segments of the replica, byte for byte, possibly not all of them
  (ADR 17).
* Its checkpoint only claims durable data. Bytes are synced before they are claimed. After a
  truncation of the log, bytes are removed here first, then the checkpoint is lowered, and only then
  more is copied. So a restart continues from the checkpoint.
* :meth:`FutureLog.finish` transfers the rest of the log's state as one unit: leader epochs,
  producers and indexes. So :meth:`FutureLog.become_current` needs no scan.

:meth:`FutureLog.step` and :meth:`FutureLog.finish` run in a mover's thread. Other methods run in
the thread of the copy's directory. The caller ensures that only one operation runs at a time, and
decides which disk an error belongs to.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kraftjbod.core import buggify
from kraftjbod.core.ids import DirectoryId, TopicId, TopicPartition, Uuid
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.framing import Buffer
from kraftjbod.storage.checkpoints import (
    CorruptCheckpointError,
    format_leader_epochs,
    format_partition_metadata,
    parse_partition_metadata,
)
from kraftjbod.storage.dir_names import (
    FUTURE_CHECKPOINT,
    GAPS_MARK,
    INDEX_SUFFIX,
    INDEX_SUFFIXES,
    LEADER_EPOCH_CHECKPOINT,
    LOG_SUFFIX,
    PARTITION_METADATA,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    future_dir_name,
    offset_file_name,
    parse_offset_file,
)
from kraftjbod.storage.log.log_values import CarriedState, LogContent, sync_if_exists
from kraftjbod.storage.log.log_view import LogView, Truncation
from kraftjbod.storage.log.producer_snapshots import ProducerSnapshots
from kraftjbod.storage.log.producer_state import ProducerLimits, ProducerState
from kraftjbod.storage.log.unified_log import UnifiedLog
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.moves.file_copy import copy_range
from kraftjbod.storage.moves.future_checkpoint import FutureCheckpoint, format_future, parse_future
from kraftjbod.storage.moves.future_copy import (
    CopyPlan,
    CopyRange,
    SegmentExtent,
    agree_at,
    agreed_before,
    extents_of,
    plan_copy,
)
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.steps import Steps, run_all
from kraftjbod.storage.segments.transaction_index import TransactionIndex
from kraftjbod.storage.vfs import OpenMode, Undoing, Vfs, VfsFile, sync_renamed, write_atomically

#: Bytes copied between two syncs while the copy lags far behind.
_SYNC_BYTES: Final = 64 * 1024 * 1024
#: Most unsynced bytes when the copy has caught up, because appends wait for that sync.
_TAIL_BYTES: Final = 1024 * 1024
#: Size of a step under simulation, now and then.
_SMALL_STEP_BYTES: Final = 200
_REMADE_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX)


class Copied(NamedTuple):
    """Result of one step of the copy. ``copied_bytes`` were copied by this step."""

    copied_bytes: int
    #: The segments of the copy after the step.
    extents: tuple[SegmentExtent, ...]
    #: The copy mirrors all of the view that the step used.
    is_mirror: bool
    #: The log no longer matches the view. Get a new view.
    is_view_stale: bool


class FutureLog:
    """Files of one future copy: the copy of a replica that a move builds in another log directory.
    Only one operation may use the object at a time.
    """

    def __init__(
        self,
        *,
        vfs: Vfs,
        directory: str,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        checkpoint: FutureCheckpoint,
    ) -> None:
        self._vfs = vfs
        self.directory = directory
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.source_directory_id = checkpoint.source_directory_id
        #: The copy was found on the disk and not created by this process.
        self.was_loaded = False
        self._checkpoint = checkpoint
        #: Everything up to ``log_end_offset`` is copied and durable. False once the log has grown.
        self.is_complete = checkpoint.is_complete
        #: Start and end of the log at the last copy step.
        self.log_start_offset = checkpoint.log_start_offset
        self.log_end_offset = checkpoint.log_end_offset
        self.epochs = checkpoint.epochs
        #: Base offset to copied bytes, in rising order.
        self._copied = dict(checkpoint.synced)
        self._synced = dict(checkpoint.synced)
        self._unsynced_bytes = 0
        #: Open files with unsynced bytes, and the file being copied to.
        self._files: dict[int, VfsFile] = {}
        self._has_new_names = False
        #: Segments whose files are longer than recorded, because a copy step failed.
        self._torn: set[int] = set()
        #: Index files that were written since the last sync; an ordered set.
        self._unsynced_indexes: dict[str, None] = {}
        #: Sealed segments whose index files were copied.
        self._indexed: set[int] = set()
        #: The current read from the source: path, position and size.
        self._reading: tuple[str, int, int] | None = None
        #: The log has been compacted, here or on a leader; the mark in its directory records this.
        self._may_have_gaps = False

    @classmethod
    def create(
        cls,
        vfs: Vfs,
        root: str,
        topic_partition: TopicPartition,
        topic_id: TopicId,
        *,
        move_id: Uuid,
        source_directory_id: DirectoryId,
    ) -> FutureLog:
        """Create an empty copy in the log directory ``root``, durably.

        :param source_directory_id: directory of the current replica.
        :raises OperatingError: INVALID_TOPIC_EXCEPTION, if the name would be too long.
        """
        directory = f"{root}/{future_dir_name(topic_partition, move_id)}"
        checkpoint = FutureCheckpoint(
            source_directory_id=source_directory_id,
            synced={},
            log_start_offset=0,
            log_end_offset=0,
            epochs=(),
        )
        vfs.make_dirs(directory)
        with Undoing(lambda: vfs.remove_tree(directory)):
            metadata = format_partition_metadata(topic_id)
            write_atomically(vfs, f"{directory}/{PARTITION_METADATA}", metadata)
            write_atomically(vfs, f"{directory}/{FUTURE_CHECKPOINT}", format_future(checkpoint))
            vfs.sync_dir(root)
        return cls(
            vfs=vfs,
            directory=directory,
            topic_partition=topic_partition,
            topic_id=topic_id,
            checkpoint=checkpoint,
        )

    @classmethod
    def load(cls, vfs: Vfs, directory: str, topic_partition: TopicPartition) -> FutureLog:
        """Load a copy that was created before a restart. Changes no file.

        :raises CorruptCheckpointError: its checkpoint or topic id cannot be read.
        """
        path = f"{directory}/{PARTITION_METADATA}"
        topic_id = parse_partition_metadata(_text(vfs, path), path)
        path = f"{directory}/{FUTURE_CHECKPOINT}"
        checkpoint = parse_future(_text(vfs, path), path)
        log = cls(
            vfs=vfs,
            directory=directory,
            topic_partition=topic_partition,
            topic_id=topic_id,
            checkpoint=checkpoint,
        )
        found = dict(log._log_files())
        log._may_have_gaps = vfs.exists(f"{directory}/{GAPS_MARK}")
        log._copied = {
            base: min(size, found[base]) for base, size in log._copied.items() if base in found
        }
        log._synced = dict(log._copied)
        log.was_loaded = True
        return log

    @property
    def extents(self) -> tuple[SegmentExtent, ...]:
        return tuple(SegmentExtent(*item) for item in self._copied.items())

    def replaces(self, view: LogView) -> bool:
        """Return whether the copy may become the replica: it was finished, is intact, and covers
        ``view``.
        """
        if not self.is_complete or self._copied != self._checkpoint.synced:
            return False
        start = max(self.log_start_offset, view.log_start_offset)
        parted = agreed_before(self.epochs, view.epochs, start)
        agrees = parted is None or parted >= view.log_end_offset
        return agrees and self.log_end_offset >= view.log_end_offset

    # -- copying ----------------------------------------------------------------------------

    def resume(self, view: LogView) -> None:
        """Carry out :meth:`resume_steps` without a pause."""
        run_all(self.resume_steps(view))

    def resume_steps(self, view: LogView) -> Steps[None]:
        """Remove the copied bytes that are not durable, or that the log of ``view`` does not
        contain any more. Used after a restart.

        Start this before anything is appended to the log of ``view``. It may be repeated.

        Cost: one segment, if its end is not in the log any more. Otherwise a few small files.
        """
        self.discard_unclaimed()
        start = max(self.log_start_offset, view.log_start_offset)
        offset = agreed_before(self.epochs, view.epochs, start)
        truncation = None
        if not agree_at(self.epochs, view.epochs, start):
            # An unclean leader may have truncated the log below its former start, so that even
            # older batches differ, and the checkpoint no longer has their epochs.
            truncation = Truncation(0, 0)
        elif offset is not None and offset < self.log_end_offset:
            truncation = yield from self._truncation_at(offset)
        self._shorten(plan_copy(extents_of(view), self._copied, truncation, 0), view)

    def step(
        self,
        view: LogView,
        truncation: Truncation | None,
        source_vfs: Vfs,
        *,
        max_bytes: int,
        by_kernel: bool,
    ) -> Copied:
        """Apply ``truncation`` to the copy, then copy at most ``max_bytes`` of the log in ``view``.

        The copied bytes become durable only from time to time: see :meth:`sync`.

        :param truncation: the lowest truncation of the log that the copy has not followed yet; None
            if none.
        :param by_kernel: whether the kernel copies.
        """
        if buggify.is_on and buggify.fires("storage.small_copy_step"):
            max_bytes = min(max_bytes, _SMALL_STEP_BYTES)
        plan = plan_copy(extents_of(view), self._copied, truncation, max_bytes)
        if plan.drop or plan.shorten:
            self._shorten(plan, view)
        self._note(view)
        segments = {segment.base_offset: segment for segment in view.segments}
        copied_bytes = 0
        for wanted in plan.copy:
            segment = segments[wanted.base_offset]
            got = self._copy(wanted, segment, source_vfs, by_kernel, segment in view.segments[:-1])
            copied_bytes += got
            if got != wanted.size_bytes:
                return Copied(copied_bytes, self.extents, False, True)
        for segment in view.segments[:-1]:
            self._copy_indexes(segment, source_vfs)
        if self._unsynced_bytes >= (_TAIL_BYTES if plan.is_last else _SYNC_BYTES):
            self.sync()
        return Copied(copied_bytes, self.extents, plan.is_last, False)

    def read_again(self, source_vfs: Vfs) -> None:
        """Repeat the read from the source that the last step did not complete, if there is one.

        The caller finds out in this way whether the disk of the source is at fault.
        """
        if self._reading is not None:
            path, position, size_bytes = self._reading
            if (source := source_vfs.open_if_exists(path)) is not None:
                source.read_at(position, size_bytes)
                source.close()

    def _copy(
        self,
        wanted: CopyRange,
        segment: LogSegment,
        source_vfs: Vfs,
        by_kernel: bool,
        is_sealed: bool,
    ) -> int:
        """Copy the range ``wanted``.

        Return the number of bytes copied; -1 if the source file does not exist.
        """
        base_offset, position, size_bytes = wanted
        target = self._file(base_offset)
        if base_offset not in self._copied:
            target.truncate(0)
            self._copied[base_offset] = 0
        if size_bytes == 0:
            return 0
        self._truncate_torn(base_offset)
        self._reading = (segment.path, position, size_bytes)
        source = source_vfs.open_if_exists(segment.path)
        if source is None:
            return -1
        if is_sealed:
            segment.trusted.doubt(position, size_bytes, segment.size_bytes)
        self._torn.add(base_offset)
        try:
            got = copy_range(source, target, position, size_bytes, by_kernel=by_kernel)
            if is_sealed:
                # Old records are seldom read again, but the end of the log stays in the page cache.
                source.forget_cached(position, got)
        finally:
            source.close()
        self._reading = None
        self._copied[base_offset] = position + got
        self._torn.discard(base_offset)
        self._unsynced_bytes += got
        return got

    def _truncate_torn(self, base_offset: int) -> None:
        """Truncate the bytes that a failed copy step wrote beyond the recorded size.

        The next step may copy fewer bytes, and would not overwrite all of them.
        """
        if base_offset in self._torn:
            self._file(base_offset).truncate(self._copied[base_offset])
            self._torn.discard(base_offset)

    def _copy_indexes(self, segment: LogSegment, source_vfs: Vfs) -> None:
        """Copy the index files of a sealed segment.

        Without them the segment would be scanned later.
        """
        base_offset = segment.base_offset
        is_whole = self._copied.get(base_offset) == segment.size_bytes
        if base_offset in self._indexed or not is_whole:
            return
        for suffix in _REMADE_SUFFIXES:
            name = offset_file_name(base_offset, suffix)
            if (data := self._read_source(source_vfs, segment, name)) is not None:
                self._write(name, data)
        self._copy_transactions(segment, source_vfs)
        self._indexed.add(base_offset)

    def _copy_transactions(self, segment: LogSegment, source_vfs: Vfs) -> None:
        """Write the index of aborted transactions.

        The index in memory is used if it is loaded, because the file may be older.
        """
        name = offset_file_name(segment.base_offset, TRANSACTION_INDEX_SUFFIX)
        if (transactions := segment.transactions) is not None:
            data: Buffer | None = transactions.to_bytes()
        else:
            data = self._read_source(source_vfs, segment, name)
        if data:
            self._write(name, bytes(data), sync=True)
        else:
            self._vfs.unlink_if_exists(f"{self.directory}/{name}")

    def _read_source(self, source_vfs: Vfs, segment: LogSegment, name: str) -> Buffer | None:
        path = f"{segment.directory}/{name}"
        self._reading = (path, 0, 1)
        data = source_vfs.read_if_exists(path)
        self._reading = None
        return data

    # -- durability -------------------------------------------------------------------------

    def discard_unclaimed(self) -> None:
        """Truncate the segment files to the recorded sizes, and remove files of other segments,
        durably.
        """
        for base_offset, size_bytes in self._log_files():
            if base_offset not in self._copied:
                self._unlink(base_offset)
            elif size_bytes > self._copied[base_offset]:
                self._truncate(base_offset, self._copied[base_offset])
        self._vfs.sync_dir(self.directory)

    def sync(self) -> None:
        """Make all copied bytes durable, and then record them in the checkpoint."""
        self._sync_files()
        self._write_checkpoint()

    def _sync_files(self) -> None:
        for base_offset in sorted(self._torn):
            self._truncate_torn(base_offset)
        with FailsAs(OpKind.FLUSH):
            for base_offset, file in self._files.items():
                file.sync()
                file.forget_cached(0, self._copied[base_offset])
            for path in self._unsynced_indexes:
                sync_if_exists(self._vfs, path)
            if self._has_new_names:
                self._vfs.sync_dir(self.directory)
        self._has_new_names = False
        self._unsynced_indexes = {}
        newest = max(self._files, default=-1)
        for base_offset in [base for base in self._files if base != newest]:
            self._files.pop(base_offset).close()
        self._synced = dict(self._copied)
        self._unsynced_bytes = 0

    def _shorten(self, plan: CopyPlan, view: LogView) -> None:
        """Remove the bytes that ``plan`` drops, durably, and then lower the checkpoint."""
        self._note(view)
        for base_offset in plan.drop:
            self._unlink(base_offset)
            del self._copied[base_offset]
            self._synced.pop(base_offset, None)
        if plan.shorten is not None:
            self._truncate(*plan.shorten)
            self._copied[plan.shorten.base_offset] = plan.shorten.size_bytes
            self._synced[plan.shorten.base_offset] = plan.shorten.size_bytes
        self._vfs.sync_dir(self.directory)
        self._write_checkpoint()

    def _truncation_at(self, offset: int) -> Steps[Truncation]:
        """Return the truncation that removes everything from ``offset`` on from the copy."""
        below = [base for base in self._copied if base <= offset]
        if not below:
            return Truncation(0, 0)
        size_bytes = self._copied[below[-1]]
        segment = LogSegment.on_disk(
            self._vfs, self.directory, below[-1], size_bytes, TopicConfig()
        )
        segment.may_have_gaps = self._may_have_gaps
        try:
            yield from segment.scan_steps(check_crc_of_each=False)
            located = segment.position_of(offset)
            end = segment.size_bytes if located is None else located.position
        finally:
            segment.close()
        return Truncation(below[-1], end)

    def _note(self, view: LogView) -> None:
        self.log_start_offset = view.log_start_offset
        self.log_end_offset = view.log_end_offset
        self.epochs = view.epochs
        self.is_complete = False
        if view.may_have_gaps and not self._may_have_gaps:
            write_atomically(self._vfs, f"{self.directory}/{GAPS_MARK}", b"")
            self._may_have_gaps = True

    def _write_checkpoint(self) -> None:
        checkpoint = FutureCheckpoint(
            source_directory_id=self.source_directory_id,
            synced=self._synced,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            epochs=self.epochs,
            is_complete=self.is_complete,
        )
        path = f"{self.directory}/{FUTURE_CHECKPOINT}"
        with FailsAs(OpKind.CHECKPOINT):
            write_atomically(self._vfs, path, format_future(checkpoint))

    # -- becoming the replica ---------------------------------------------------------------

    def finish(self, carried: CarriedState) -> None:
        """Transfer leader epochs, producers and indexes, durably, and mark the copy as complete.
        The segments of the copy must equal those of ``carried.view``.
        """
        view = carried.view
        assert self.extents == extents_of(view), (self.extents, extents_of(view))
        active = view.segments[-1].base_offset
        for suffix in INDEX_SUFFIXES:
            name, data = offset_file_name(active, suffix), carried.index_files.get(suffix)
            if data is None:
                self._vfs.unlink_if_exists(f"{self.directory}/{name}")
            else:
                self._write(name, data, sync=suffix == TRANSACTION_INDEX_SUFFIX)
        epochs = format_leader_epochs(view.epochs)
        write_atomically(self._vfs, f"{self.directory}/{LEADER_EPOCH_CHECKPOINT}", epochs)
        if view.log_end_offset > 0:
            producers = ProducerState.from_snapshot(carried.producers)
            assert producers is not None, "a snapshot that was just made"
            snapshots = ProducerSnapshots(self._vfs, lambda: self.directory)
            # They come from an earlier attempt, before the log was truncated.
            snapshots.drop_outside(view.log_start_offset, view.log_end_offset)
            snapshots.put(carried.snapshots)
            snapshots.write(producers, view.log_end_offset, view.segments, sync=True)
        self._has_new_names = True
        self._sync_files()
        self._note(view)
        self.is_complete = True
        self._write_checkpoint()

    def become_current(
        self, carried: CarriedState, config: TopicConfig, producer_limits: ProducerLimits
    ) -> UnifiedLog:
        """Rename the copy to the replica's name, durably, and return its log.

        Call :meth:`finish` with the same state first.
        """
        view, producers = carried.view, ProducerState.from_snapshot(carried.producers)
        assert producers is not None, "a snapshot that was just made"
        self.close_files()
        directory = f"{self.directory.rpartition('/')[0]}/{self.topic_partition}"
        self.move_to(directory)
        segments = [
            LogSegment.on_disk(self._vfs, directory, *extent, config, has_transaction_index=True)
            for extent in self.extents
        ]
        for segment in segments:
            segment.may_have_gaps = view.may_have_gaps
            if not self._vfs.exists(segment.transactions_path):
                segment.transactions = TransactionIndex()
        return UnifiedLog(
            vfs=self._vfs,
            directory=directory,
            topic_partition=self.topic_partition,
            topic_id=self.topic_id,
            config=config,
            content=LogContent(
                segments=segments,
                log_start_offset=view.log_start_offset,
                log_end_offset=view.log_end_offset,
                recovery_point=view.log_end_offset,
                epochs=view.epochs,
                epochs_on_disk=view.epochs,
                producers=producers,
                may_have_gaps=view.may_have_gaps,
            ),
            producer_limits=producer_limits,
        )

    def move_to(self, directory: str) -> None:
        """Rename the directory of the copy, durably."""
        former = self.directory
        self._rename(directory)
        with FailsAs(OpKind.FLUSH):
            sync_renamed(self._vfs, directory.rpartition("/")[0], lambda: self._rename(former))

    def _rename(self, directory: str) -> None:
        if self.directory != directory:
            self._vfs.rename(self.directory, directory)
            self.directory = directory

    def discard(self, directory: str) -> None:
        """Close the copy's files and rename it to ``directory``, durably. The caller removes it
        there.

        ``partition.metadata`` is deleted first, so that no start treats the copy as a replica.
        """
        self.close_files()
        self._vfs.unlink_if_exists(f"{self.directory}/{PARTITION_METADATA}")
        self.move_to(directory)

    def close_files(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}

    # -- files ------------------------------------------------------------------------------

    def _log_files(self) -> list[SegmentExtent]:
        found = []
        for entry in self._vfs.list_dir(self.directory, sized=LOG_SUFFIX):
            parsed = parse_offset_file(entry.name)
            if parsed is not None and parsed[1] == LOG_SUFFIX:
                entry.require_no_link(self.directory)
                found.append(SegmentExtent(parsed[0], entry.known_size))
        return found

    def _file(self, base_offset: int) -> VfsFile:
        file = self._files.get(base_offset)
        if file is None:
            self._has_new_names = True
            file = self._vfs.open(self._path(base_offset, LOG_SUFFIX), OpenMode.CREATE)
            self._files[base_offset] = file
        return file

    def _truncate(self, base_offset: int, size_bytes: int) -> None:
        for suffix in INDEX_SUFFIXES:
            self._vfs.unlink_if_exists(self._path(base_offset, suffix))
        self._indexed.discard(base_offset)
        file = self._file(base_offset)
        file.truncate(size_bytes)
        self._torn.discard(base_offset)
        with FailsAs(OpKind.FLUSH):
            file.sync()

    def _unlink(self, base_offset: int) -> None:
        if base_offset in self._files:
            self._files.pop(base_offset).close()
        for suffix in (LOG_SUFFIX, *INDEX_SUFFIXES):
            self._vfs.unlink_if_exists(self._path(base_offset, suffix))
        self._torn.discard(base_offset)
        self._indexed.discard(base_offset)

    def _write(self, name: str, data: Buffer, *, sync: bool = False) -> None:
        """Write a file into the copy.

        Without ``sync`` the file becomes durable with the next :meth:`sync`.
        """
        path = f"{self.directory}/{name}"
        write_atomically(self._vfs, path, bytes(data), sync=sync)
        if not sync:
            self._unsynced_indexes[path] = None
            self._has_new_names = True

    def _path(self, base_offset: int, suffix: str) -> str:
        return f"{self.directory}/{offset_file_name(base_offset, suffix)}"


def _text(vfs: Vfs, path: str) -> str:
    data = vfs.read_if_exists(path)
    if data is None:
        raise CorruptCheckpointError(f"{path} is missing")
    return bytes(data).decode(errors="replace")
