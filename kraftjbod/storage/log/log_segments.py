"""DISK. ``LogSegments``: the segments of one log, and their directory.

* This class adds, removes and replaces segments and renames their files. The log decides about
  their content, and which segments are removed.
* After a failed step, the list still matches the files, so the step may be repeated.
* Segments that left the log keep their open files. :meth:`LogSegments.take_retired` returns them,
  and they are purged once no view contains them.
* Compacted segments belong to the log as soon as :meth:`put_in_place` has run, though their files
  have other names. Call :meth:`name_compacted` before any operation that uses file names.

All methods run in the directory's thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from kraftjbod.core.errors import OverloadedError
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.storage.dir_names import (
    DELETED_SUFFIX,
    GAPS_MARK,
    TRANSACTION_INDEX_SUFFIX,
    offset_file_name,
)
from kraftjbod.storage.log_dirs.log_dir_policy import FailsAs, OpKind
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.segment_cache import SegmentCache
from kraftjbod.storage.segments.segment_swap import (
    CleaningFiles,
    SegmentSwap,
    open_sources,
    open_target,
    place_of,
)
from kraftjbod.storage.vfs import Undoing, Vfs, VfsFile, sync_renamed, write_atomically


class LogSegments:
    """Files of one log: its segments in the order of their offsets, at least one, and the replica's
    directory. The last segment is the active one.

    Methods add, remove, replace and rename segments. They run in the directory's thread.
    """

    def __init__(
        self,
        *,
        vfs: Vfs,
        directory: str,
        segments: list[LogSegment],
        may_have_gaps: bool,
    ) -> None:
        self._vfs = vfs
        self.directory = directory
        #: In ascending order; the last one is active. This list object is never replaced.
        self.all = segments
        #: The same segments for views; replaced as a whole on each change.
        self.shown = tuple(segments)
        self.size_bytes = sum(segment.size_bytes for segment in segments)
        #: Compaction, here or on a leader, may have removed offsets.
        self.may_have_gaps = may_have_gaps
        #: Number of truncations. Data read or planned before a later truncation is invalid.
        self.truncations = 0
        #: Compacted segments whose files do not have their final names yet.
        self._unnamed: list[SegmentSwap] = []
        self._retired: list[LogSegment] = []
        #: Is notified when segments open files and load indexes; None until the log is served.
        self._cache: SegmentCache[LogSegment] | None = None
        #: Files that were detached from segments, and that a reader may still use.
        self._detached: list[VfsFile] = []
        #: Base offsets of retired segments whose transaction indexes may still exist.
        self._leftovers: list[int] = []

    def __repr__(self) -> str:
        return f"<LogSegments {self.directory} {len(self.all)}>"

    @property
    def oldest(self) -> LogSegment:
        return self.all[0]

    @property
    def active(self) -> LogSegment:
        return self.all[-1]

    @property
    def are_empty(self) -> bool:
        """Whether there is only one segment, without batches."""
        return len(self.all) == 1 and self.all[0].size_bytes == 0

    def from_recovery_at(self, recovery_point: int) -> list[LogSegment]:
        """Return the segments that recovery would scan if it started at ``recovery_point``."""
        at = bisect_right(self.all, recovery_point, key=lambda s: s.base_offset)
        return self.all[max(0, at - 1) :]

    # -- adding -----------------------------------------------------------------------------

    def append_batches(
        self, buffers: Sequence[Buffer], headers: Sequence[BatchHeader], size_bytes: int
    ) -> None:
        """Write ``buffers``, which hold the batches of ``headers``, at the end of the active
        segment. The bytes are not synced.
        """
        self.active.append_batches(buffers, headers)
        self.size_bytes += size_bytes

    def begin_segment(self, base_offset: int, index_interval_bytes: int) -> None:
        """Create an empty segment at ``base_offset``, which becomes the active one."""
        self.drop_leftovers()
        fresh = self._new(base_offset, index_interval_bytes)
        with FailsAs(OpKind.CREATE):
            fresh.create()
        self.all.append(fresh)
        self.shown = tuple(self.all)

    def expect_gaps(self) -> None:
        """Create the file that marks the replica as possibly having gaps, durably, before the first
        gap. No effect if the replica has the mark.
        """
        if not self.may_have_gaps:
            with FailsAs(OpKind.CHECKPOINT):
                write_atomically(self._vfs, f"{self.directory}/{GAPS_MARK}", b"")
            self.may_have_gaps = True
            for segment in self.all:
                segment.may_have_gaps = True

    # -- removing ---------------------------------------------------------------------------

    def retire(self, at: int, *, at_once: bool = False, suffix: str = DELETED_SUFFIX) -> None:
        """Remove segment number ``at`` from the list, and rename or unlink its files as
        :meth:`LogSegment.retire` does.
        """
        segment = self.all[at]
        segment.retire(at_once=at_once, suffix=suffix)
        self._leftovers.append(segment.base_offset)
        del self.all[at]
        self.size_bytes -= segment.size_bytes
        self._retired.append(segment)
        self.shown = tuple(self.all)

    def drop_leftovers(self) -> None:
        """Unlink the transaction indexes of retired segments, before new segments use the same
        names.
        """
        while self._leftovers:
            name = offset_file_name(self._leftovers[-1], TRANSACTION_INDEX_SUFFIX)
            self._vfs.unlink_if_exists(f"{self.directory}/{name}")
            self._leftovers.pop()

    def take_retired(self) -> list[LogSegment]:
        """Return the segments that left the log since the last call. The caller purges them."""
        retired, self._retired = self._retired, []
        return retired

    def shorten(self, segment: LogSegment, size_bytes: int, end_offset: int) -> None:
        """Truncate a segment durably to ``size_bytes``, the start of a batch.

        :param end_offset: end offset of the remaining batches.
        """
        truncated_bytes = segment.size_bytes - size_bytes
        segment.truncate(size_bytes, end_offset)
        self.size_bytes -= truncated_bytes

    def restart_in_place(self, offset: int) -> LogSegment:
        """Replace the only segment by an empty one at ``offset`` that reuses its file and space.
        Return it.

        The caller truncates the old content after the new name is durable.
        """
        self.drop_leftovers()
        (old,) = self.all
        fresh = old.recreate_empty(offset)
        self.size_bytes -= old.size_bytes
        self.all[0] = fresh
        self.shown = (fresh,)
        return fresh

    # -- compaction -------------------------------------------------------------------------

    def open_beside(self, segment: LogSegment) -> VfsFile | None:
        """Open the file of ``segment`` once more, for a reader in another thread.

        Return None if the segment left the log, or its file does not exist. No other code may open
        segments by name: until :meth:`name_compacted` has run, a compacted segment has the name of
        its source.
        """
        self.name_compacted()
        return self._vfs.open_if_exists(segment.path) if segment in self.all else None

    def open_sealed(self, sources: Sequence[LogSegment]) -> tuple[VfsFile, ...]:
        """Open the files of ``sources`` for a cleaner. The sources are neighbours and not active.

        :raises OverloadedError: some of them left the log.
        """
        self.name_compacted()
        self._require_sealed(sources, self.truncations)
        return open_sources(self._vfs, sources)

    def open_group(self, sources: Sequence[LogSegment], index_interval_bytes: int) -> CleaningFiles:
        """Open ``sources`` and the target of their compaction, and mark the log as possibly having
        gaps.

        :raises OverloadedError: some of the sources left the log.
        """
        files = self.open_sealed(sources)
        target = self._new(sources[0].base_offset, index_interval_bytes)
        target.may_have_gaps = True
        opened = CleaningFiles(files, target, self.truncations)
        with Undoing(opened.close_sources):
            self.expect_gaps()
            open_target(self._vfs, target)
        return opened

    def put_in_place(self, sources: Sequence[LogSegment], files: CleaningFiles) -> None:
        """Replace ``sources`` by the target of :meth:`open_group`, which must be complete and
        synced.

        :meth:`name_compacted` has to follow, and may be repeated after a failure.

        :raises OverloadedError: some of the sources left the log, or it was truncated. The caller
            still owns the files then.
        """
        self.name_compacted()
        at, target = self._require_sealed(sources, files.truncations), files.target
        swap = SegmentSwap(self._vfs, sources, target)
        swap.begin_swap()
        self.all[at : at + len(sources)] = [target]
        self.size_bytes += target.size_bytes - sum(source.size_bytes for source in sources)
        self.shown = tuple(self.all)
        self._unnamed.append(swap)

    def name_compacted(self) -> None:
        """Give compacted segments their final file names.

        Required before operations that use file names.
        """
        while self._unnamed:
            swap = self._unnamed[0]
            swap.finish()
            del self._unnamed[0]
            self._retired.extend(swap.sources)

    def _require_sealed(self, sources: Sequence[LogSegment], truncations: int) -> int:
        at = place_of(sources, self.all)
        if at is None or truncations != self.truncations:
            raise OverloadedError(f"{self.directory} changed while it was compacted")
        return at

    # -- the directory ----------------------------------------------------------------------

    def sync_names(self) -> None:
        """Make removals in the directory durable, so that old files do not reappear beside later
        appends.
        """
        self.drop_leftovers()
        with FailsAs(OpKind.FLUSH):
            self._vfs.sync_dir(self.directory)

    def move_to(self, directory: str) -> None:
        """Rename the replica's directory to the path ``directory``, durably. If no descriptor is
        free for the sync, the directory gets its former name again.
        """
        self.name_compacted()
        former = self.directory
        self._rename(directory)
        with FailsAs(OpKind.FLUSH):
            sync_renamed(self._vfs, directory.rpartition("/")[0], lambda: self._rename(former))

    def _rename(self, directory: str) -> None:
        if self.directory != directory:
            self._vfs.rename(self.directory, directory)
            self.directory = directory
            for segment in self.all:
                segment.directory = directory

    def close(self) -> None:
        """Close all files, also detached ones, without writing anything."""
        for segment in self.all:
            segment.close()
        self.close_detached()

    def join(self, cache: SegmentCache[LogSegment]) -> None:
        """Let ``cache`` limit the open files and loaded indexes of present and future segments."""
        self._cache = cache
        for segment in self.all:
            segment.join(cache)

    def detach_files(self, idle: Sequence[LogSegment], certain_end: int, log_end: int) -> None:
        """Detach the open files of ``idle`` segments that end at or below the durable
        ``certain_end``.

        Other files stay open: the kernel forgets an unreported disk error with the last open
        descriptor. Call :meth:`close_detached` once no reader can use the detached files.
        """
        for segment in idle:
            at = bisect_left(self.all, segment.base_offset, key=lambda s: s.base_offset)
            if self.all[at : at + 1] != [segment]:
                continue
            end = self.all[at + 1].base_offset if at + 1 < len(self.all) else log_end
            if end <= certain_end and (file := segment.detach_file()) is not None:
                self._detached.append(file)

    def close_detached(self) -> None:
        while self._detached:
            self._detached[-1].close()
            self._detached.pop()

    def _new(self, base_offset: int, index_interval_bytes: int) -> LogSegment:
        segment = LogSegment(
            vfs=self._vfs,
            directory=self.directory,
            base_offset=base_offset,
            size_bytes=0,
            index_interval_bytes=index_interval_bytes,
            may_have_gaps=self.may_have_gaps,
        )
        segment.join(self._cache)
        return segment
