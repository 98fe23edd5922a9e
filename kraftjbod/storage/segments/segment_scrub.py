"""DISK. ``SegmentScrub``: reads one closed segment from the disk and checks all of it, in steps.

* The check has its own open file and changes nothing, so it may run beside the directory's thread.
* The page cache proves nothing about the disk. So the segment's pages are dropped before the first
  step, and the pages of each step after it. This also leaves memory to pages that consumers read.
* The CRC of each batch is checked.
* Each entry of the index files has to point to the start of a batch. A missing index file is no
  finding, because it is rebuilt when needed.
* The index of aborted transactions must exist if an aborted transaction has records and marker in
  the segment.

storage/scrubbing/scrub.py handles the findings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from kraftjbod.core import buggify
from kraftjbod.protocol.control_records import read_marker
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.storage.dir_names import INDEX_SUFFIX, TIME_INDEX_SUFFIX
from kraftjbod.storage.segments.batch_walk import Damage, Located
from kraftjbod.storage.segments.offset_index import OffsetIndex, TimeEntry, TimeIndex
from kraftjbod.storage.segments.segment import LogSegment
from kraftjbod.storage.segments.transaction_index import AbortedTransaction, TransactionIndex
from kraftjbod.storage.vfs import Vfs, VfsFile

#: Bytes per step, few enough that other threads wait only briefly for disk and interpreter.
STEP_BYTES: Final = 256 * 1024
_PAGE_BYTES: Final = 4096

E = TypeVar("E")


class SegmentScrub:
    """Check of one closed segment and its index files on the disk, which changes nothing.

    Call :meth:`step` until :attr:`is_done`, then :meth:`close`.
    """

    def __init__(self, *, vfs: Vfs, file: VfsFile, segment: LogSegment, end_offset: int) -> None:
        """Prepare the check. Nothing is read before the first :meth:`step`.

        :param file: open file of the segment (:meth:`LogSegments.open_beside`); :meth:`close`
            closes it.
        :param end_offset: base offset of the next segment.
        """
        self._vfs = vfs
        self._file = file
        self.segment = segment
        self.end_offset = end_offset
        #: Size when the check began. A segment that is shorter now was truncated meanwhile.
        self.size_bytes = segment.size_bytes
        self.fresh = segment.fresh_indexes()
        #: An index file exists and does not fit the segment.
        self.is_index_wrong = False
        #: The file of aborted transactions does not match the segment.
        self.is_transaction_index_wrong = False
        #: Entries of that file by marker offset. An entry is removed when its marker is found.
        self._aborted: dict[int, AbortedTransaction] = {}
        #: Producers with transactional records since their last marker in the segment.
        self._open: set[int] = set()
        self._walk: Iterator[Located | Damage | None] = iter(())
        self._offsets: _Entries[tuple[int, int]] = _Entries(iter(()))
        self._times: _Entries[TimeEntry] = _Entries(iter(()))
        self._read_bytes = 0
        self._is_begun = False
        #: The whole segment was checked.
        self.is_done = False

    def __repr__(self) -> str:
        return f"<SegmentScrub {self.segment!r} damages={self.damages}>"

    @property
    def damages(self) -> list[Damage]:
        return self.fresh.damages

    @property
    def has_findings(self) -> bool:
        """Whether damage or a wrong index was found, which the caller reports to the log."""
        return bool(self.damages) or self.is_index_wrong or self.is_transaction_index_wrong

    def _begin(self) -> None:
        """Drop the cached pages of the segment, read the index files, and start the walk."""
        self._is_begun = True
        self._file.forget_cached(0, self.size_bytes)
        index, times = self._read_indexes()
        self._offsets = _Entries(iter(()) if index is None else index.entries())
        self._times = _Entries(iter(()) if times is None else times.entries())
        self._walk = self.segment.walk(
            self._read_at,
            known=(lambda position: ()) if index is None else index.positions_after,
            check_crc_of_each=True,
            end_offset=self.end_offset,
            chunk_bytes=STEP_BYTES,
        )

    def step(self) -> int:
        """Check about :data:`STEP_BYTES`, or try some positions after damage.

        Returns the number of bytes read.
        """
        if not self._is_begun:
            self._begin()
        before = self._read_bytes
        for found in self._walk:
            self.fresh.take(found)
            if isinstance(found, Located):
                self._compare(found.position, found.header)
                if found.header.is_transactional:
                    self._compare_transaction(found.position, found.header)
            is_searching = found is None
            if (
                is_searching
                or self._read_bytes - before >= STEP_BYTES
                or (
                    buggify.is_on
                    and self._read_bytes > before
                    and buggify.fires("storage.small_scrub_step")
                )
            ):
                break
        else:
            self._compare_end()
            self.is_done = True
        return self._read_bytes - before

    def close(self) -> None:
        self._file.forget_cached(0, self.size_bytes)
        self._file.close()

    def _read_at(self, position: int, size: int) -> bytes | bytearray:
        self.segment.trusted.doubt(position, size, self.size_bytes)
        data = self._file.read_at(position, size)
        # The last page is needed again if a batch continues after it.
        whole = (position + len(data)) // _PAGE_BYTES * _PAGE_BYTES
        begin = position // _PAGE_BYTES * _PAGE_BYTES
        if whole > begin:
            self._file.forget_cached(begin, whole - begin)
        self._read_bytes += len(data)
        return data

    # -- the index files --------------------------------------------------------------------

    def _read_indexes(self) -> tuple[OffsetIndex | None, TimeIndex | None]:
        base_offset, stem = self.segment.base_offset, self.segment.path.rpartition(".")[0]
        self._read_transactions(base_offset)
        data = self._vfs.read_if_exists(stem + INDEX_SUFFIX)
        time_data = self._vfs.read_if_exists(stem + TIME_INDEX_SUFFIX)
        index = times = None
        if data is not None:
            index = OffsetIndex.from_bytes(base_offset, data, segment_bytes=self.size_bytes)
            self.is_index_wrong |= index is None
        if time_data is not None:
            times = TimeIndex.from_bytes(base_offset, time_data)
            self.is_index_wrong |= times is None
        return index, times

    def _compare(self, position: int, header: BatchHeader) -> None:
        """Compare the sound batch at ``position`` with the next entries of both index files."""
        offset_entry = self._offsets.next
        if offset_entry is not None and offset_entry[1] <= position:
            self.is_index_wrong |= offset_entry != (header.last_offset, position)
            self._offsets.advance()
        time_entry = self._times.next
        if time_entry is not None and time_entry.offset <= header.last_offset:
            self.is_index_wrong |= time_entry != (header.max_timestamp, header.last_offset)
            self._times.advance()

    def _read_transactions(self, base_offset: int) -> None:
        data = self._vfs.read_if_exists(self.segment.transactions_path)
        if data is None:
            return
        index = TransactionIndex.from_bytes(base_offset, data)
        if index is None:
            self.is_transaction_index_wrong = True
        else:
            self._aborted = {entry.last_offset: entry for entry in index.entries}

    def _compare_transaction(self, position: int, header: BatchHeader) -> None:
        """Check that an abort marker has an entry if its transaction has records here, and else
        none.

        The entry must name the producer of the marker.
        """
        if not header.is_control:
            self._open.add(header.producer_id)
            return
        marker = read_marker(self._read_at(position, header.size_bytes), 0, header)
        entry = self._aborted.pop(header.last_offset, None)
        has_records = header.producer_id in self._open
        self._open.discard(header.producer_id)
        is_abort = marker is not None and not marker.is_commit
        if entry is None:
            self.is_transaction_index_wrong |= is_abort and has_records
        else:
            is_its = is_abort and entry.producer_id == header.producer_id
            self.is_transaction_index_wrong |= not is_its

    def _compare_end(self) -> None:
        """Report index entries that are left over at the end of the segment: they point to no
        batch.
        """
        if self._aborted:
            self.is_transaction_index_wrong = True
        if self._offsets.next is not None or self._times.next is not None:
            self.is_index_wrong = True


class _Entries(Generic[E]):
    """An iterator with access to its next element."""

    __slots__ = ("_rest", "next")

    def __init__(self, rest: Iterator[E]) -> None:
        self._rest = rest
        self.next = next(rest, None)

    def advance(self) -> None:
        self.next = next(self._rest, None)
