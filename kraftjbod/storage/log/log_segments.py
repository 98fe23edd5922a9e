"""DISK. ``LogSegments``: the segments of one log, and the directory that they lie in.

* Here is which segments there are, how they come, go and take each other's places, and what that
  does to names. What they hold, and which of them may go, is the log's business.
* Each step that fails leaves the list as the files are, so that it may be asked for again.
* Segments that are no longer part of the log keep their open files and are handed out as
  ``retired``: they are purged once no view shows them any more.
* Compacted segments are the log from the moment that :meth:`put_in_place` is done, though their
  files have other names yet: before anything goes by names, :meth:`name_compacted` is due.

Owned by the dir's thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from kraftjbod.core.errors import OverloadedError
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.storage.dir_names import GAPS_MARK, TRANSACTION_INDEX_SUFFIX, offset_file_name
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
    """Never empty."""

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
        #: Rising base offsets; the last one is appended to. One list for all time.
        self.all = segments
        #: The same, for views: another tuple whenever there are other segments.
        self.shown = tuple(segments)
        self.size_bytes = sum(segment.size_bytes for segment in segments)
        #: Compaction, here or on a leader, may have taken offsets away.
        self.may_have_gaps = may_have_gaps
        #: How often the log was truncated: what was read or planned before says nothing.
        self.truncations = 0
        #: Compacted segments of the log whose files do not have their own names yet.
        self._unnamed: list[SegmentSwap] = []
        self._retired: list[LogSegment] = []
        #: Is notified when segments open files and load indexes; None until the log is served.
        self._cache: SegmentCache[LogSegment] | None = None
        #: Files that no segment has any more, and that others may be reading from.
        self._detached: list[VfsFile] = []
        #: Base offsets of retired segments whose indexes of transactions may be there still.
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
        """There is one segment, without any batch."""
        return len(self.all) == 1 and self.all[0].size_bytes == 0

    def from_recovery_at(self, recovery_point: int) -> list[LogSegment]:
        """Those that recovery would go through after a crash."""
        at = bisect_right(self.all, recovery_point, key=lambda s: s.base_offset)
        return self.all[max(0, at - 1) :]

    # -- they grow and come -----------------------------------------------------------------

    def append(
        self, buffers: Sequence[Buffer], headers: Sequence[BatchHeader], size_bytes: int
    ) -> None:
        """Write ``buffers``, the batches of ``headers``, at the end."""
        self.active.append(buffers, headers)
        self.size_bytes += size_bytes

    def begin(self, base_offset: int, index_interval_bytes: int) -> None:
        """A new segment, which is appended to from now on."""
        self.drop_leftovers()
        fresh = self._new(base_offset, index_interval_bytes)
        with FailsAs(OpKind.CREATE):
            fresh.create()
        self.all.append(fresh)
        self.shown = tuple(self.all)

    def expect_gaps(self) -> None:
        """Mark the replica, for good, before the first gap comes."""
        if not self.may_have_gaps:
            with FailsAs(OpKind.CHECKPOINT):
                write_atomically(self._vfs, f"{self.directory}/{GAPS_MARK}", b"")
            self.may_have_gaps = True
            for segment in self.all:
                segment.may_have_gaps = True

    # -- they shrink and go -----------------------------------------------------------------

    def retire(self, at: int, *, at_once: bool = False) -> None:
        """The log is without that one; ``at_once`` as in :meth:`LogSegment.retire`."""
        segment = self.all[at]
        segment.retire(at_once=at_once)
        self._leftovers.append(segment.base_offset)
        del self.all[at]
        self.size_bytes -= segment.size_bytes
        self._retired.append(segment)
        self.shown = tuple(self.all)

    def drop_leftovers(self) -> None:
        """Indexes of transactions of segments that left: before another one takes their place."""
        while self._leftovers:
            name = offset_file_name(self._leftovers[-1], TRANSACTION_INDEX_SUFFIX)
            self._vfs.unlink_if_exists(f"{self.directory}/{name}")
            self._leftovers.pop()

    def take_retired(self) -> list[LogSegment]:
        """Segments that left the log since the last call."""
        retired, self._retired = self._retired, []
        return retired

    def shorten(self, segment: LogSegment, size_bytes: int, end_offset: int) -> None:
        """Truncate one of them to ``size_bytes``, the beginning of a batch, where it then ends."""
        truncated_bytes = segment.size_bytes - size_bytes
        segment.truncate(size_bytes, end_offset)
        self.size_bytes -= truncated_bytes

    def go_on_in_place(self, offset: int) -> LogSegment:
        """Make the only segment an empty one at ``offset``; it takes the space of the old one.

        What the file held is to be truncated once the new name is certain.
        """
        self.drop_leftovers()
        (old,) = self.all
        fresh = old.reborn(offset)
        self.size_bytes -= old.size_bytes
        self.all[0] = fresh
        self.shown = (fresh,)
        return fresh

    # -- compaction -------------------------------------------------------------------------

    def open_beside(self, segment: LogSegment) -> VfsFile | None:
        """Another file object of ``segment``, for who reads it in another thread.

        None if it is not in the log any more, or its file is gone. Never opened by name elsewhere:
        until :meth:`name_compacted` is done, the name of a compacted segment is its source's.
        """
        self.name_compacted()
        return self._vfs.open_if_exists(segment.path) if segment in self.all else None

    def open_sealed(self, sources: Sequence[LogSegment]) -> tuple[VfsFile, ...]:
        """Open ``sources``, sealed neighbours, for a cleaner to read.

        :raises OverloadedError: they are not all in the log any more.
        """
        self.name_compacted()
        self._require_sealed(sources, self.truncations)
        return open_sources(self._vfs, sources)

    def open_group(self, sources: Sequence[LogSegment], index_interval_bytes: int) -> CleaningFiles:
        """Open ``sources`` and what they are to be compacted into; raises as before."""
        files = self.open_sealed(sources)
        target = self._new(sources[0].base_offset, index_interval_bytes)
        target.may_have_gaps = True
        opened = CleaningFiles(files, target, self.truncations)
        with Undoing(opened.close_sources):
            self.expect_gaps()
            open_target(self._vfs, target)
        return opened

    def put_in_place(self, sources: Sequence[LogSegment], files: CleaningFiles) -> None:
        """The target of :meth:`open_group` is whole and synced: it is the log now.

        :meth:`name_compacted` has to follow, and may be asked for again if it fails.
        Raises as :meth:`open_sealed`; the files are the caller's still then.
        """
        self.name_compacted()
        at, target = self._require_sealed(sources, files.truncations), files.target
        swap = SegmentSwap(self._vfs, sources, target)
        swap.begin()
        self.all[at : at + len(sources)] = [target]
        self.size_bytes += target.size_bytes - sum(source.size_bytes for source in sources)
        self.shown = tuple(self.all)
        self._unnamed.append(swap)

    def name_compacted(self) -> None:
        """Give compacted segments their names: before anything goes by names this must be done."""
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
        """Names that were taken away may not come back beside what is appended next."""
        self.drop_leftovers()
        with FailsAs(OpKind.FLUSH):
            self._vfs.sync_dir(self.directory)

    def move_to(self, directory: str) -> None:
        """Rename the directory, durably."""
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
        """Every file, and nothing but that."""
        for segment in self.all:
            segment.close()
        self.close_detached()

    def join(self, cache: SegmentCache[LogSegment]) -> None:
        """Let ``cache`` limit what segments have open and loaded, those to come included."""
        self._cache = cache
        for segment in self.all:
            segment.join(cache)

    def detach_files(self, idle: Sequence[LogSegment], certain_end: int, log_end: int) -> None:
        """Detach the open files of ``idle`` segments that end below the durable ``certain_end``.

        Other files stay open: the kernel forgets an unreported error of the disk with the last open
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
