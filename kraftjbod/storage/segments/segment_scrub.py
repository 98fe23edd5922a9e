"""DISK. ``SegmentScrub``: reads one closed segment from the disk and checks all of it, step by
step.

* It has a file of its own and changes nothing, so it may run in any thread beside the dir's.
* What is in memory is no proof: the segment's pages are let go before the first step, and again
  after each step, so that the disk is read, and what consumers read stays in memory instead.
* Batches are walked as a survey does it, CRC included. The index files are held against them:
  each entry has to point at a batch that begins and ends there. A file that is absent is none of
  our business: whoever needs it makes it. Not so the index of aborted transactions: where some
  have records and marker in the segment, it has to name them.

What becomes of the findings is storage/scrubbing/scrub.py's part.
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

#: What one step reads: little enough that nobody waits long for the disk or the interpreter.
STEP_BYTES: Final = 256 * 1024
_PAGE_BYTES: Final = 4096

E = TypeVar("E")


class SegmentScrub:
    """:meth:`begin`, :meth:`step` until it returns 0, :meth:`close`; then read the findings."""

    def __init__(self, *, vfs: Vfs, file: VfsFile, segment: LogSegment, end_offset: int) -> None:
        """
        :param file: the segment's, by :meth:`LogSegments.open_beside`; :meth:`close` closes it.
        :param end_offset: where the segment's successor begins.
        """
        self._vfs = vfs
        self._file = file
        self.segment = segment
        self.end_offset = end_offset
        #: As it was when the check began; a segment that is shorter now was truncated meanwhile.
        self.size_bytes = segment.size_bytes
        self.fresh = segment.fresh_indexes()
        #: An index file was there and does not fit.
        self.is_index_wrong = False
        #: The file of aborted transactions is not what the segment says.
        self.is_transaction_index_wrong = False
        #: What that file says, by the offset of the marker; each entry goes when it was met.
        self._aborted: dict[int, AbortedTransaction] = {}
        #: Producers with transactional records since their last marker in the segment.
        self._open: set[int] = set()
        self._walk: Iterator[Located | Damage] = iter(())
        self._offsets: _Entries[tuple[int, int]] = _Entries(iter(()))
        self._times: _Entries[TimeEntry] = _Entries(iter(()))
        self._read_bytes = 0

    def __repr__(self) -> str:
        return f"<SegmentScrub {self.segment!r} damages={self.damages}>"

    @property
    def damages(self) -> list[Damage]:
        return self.fresh.damages

    @property
    def has_findings(self) -> bool:
        """The log has to hear of it."""
        return bool(self.damages) or self.is_index_wrong or self.is_transaction_index_wrong

    def begin(self) -> None:
        """Before the first step."""
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
        """Check the next :data:`STEP_BYTES` or so; how many bytes were read, 0 at the end."""
        before = self._read_bytes
        for found in self._walk:
            self.fresh.take(found)
            if isinstance(found, Located):
                self._compare(found.position, found.header)
                if found.header.is_transactional:
                    self._compare_transaction(found.position, found.header)
            if self._read_bytes - before >= STEP_BYTES or (
                buggify.is_on
                and self._read_bytes > before
                and buggify.fires("storage.small_scrub_step")
            ):
                break
        else:
            self._compare_end()
        return self._read_bytes - before

    def close(self) -> None:
        self._file.forget_cached(0, self.size_bytes)
        self._file.close()

    def _read_at(self, position: int, size: int) -> bytes | bytearray:
        self.segment.trusted.doubt(position, size, self.size_bytes)
        data = self._file.read_at(position, size)
        # The last page is needed once more if a batch goes on after it.
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
        """A sound batch: what the index files say of it has to be true."""
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
        """A sound transactional batch: a marker that aborts is an entry, and no other batch is."""
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
        """Entries that are left point at no batch."""
        if self._aborted:
            self.is_transaction_index_wrong = True
        if self._offsets.next is not None or self._times.next is not None:
            self.is_index_wrong = True


class _Entries(Generic[E]):
    """An iterator that shows what comes next."""

    __slots__ = ("_rest", "next")

    def __init__(self, rest: Iterator[E]) -> None:
        self._rest = rest
        self.next = next(rest, None)

    def advance(self) -> None:
        self.next = next(self._rest, None)
