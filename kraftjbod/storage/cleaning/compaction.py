"""PURE. Compaction rules for segments, batches and records (KIP-58, KIP-354, KIP-534).

* The latest record of each key is kept, and all records after the end of the map.
* A tombstone (a record without a value) is kept for ``delete.retention.ms`` after the first pass
  that met it, so that consumers reading from the beginning can see it. The batch stores the end of
  that time as its delete horizon.
* An empty batch is kept if it is the last of its group, so that segments keep their end offsets. It
  is also kept if it holds the last sequence number of a producer.
* Records of aborted transactions are removed, and later the markers too (cleaned_transactions.py).
* Records without a key are removed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, Protocol, TypeVar

from kraftjbod.protocol.control_records import read_marker
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.raw_records import (
    NO_HORIZON,
    RawRecord,
    delete_horizon,
    empty_batch,
    raw_records,
    thinned_batch,
)
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.protocol.records import open_body
from kraftjbod.storage.cleaning.cleaned_transactions import CleanedTransactions
from kraftjbod.storage.cleaning.cleaner_map import CleanerMap
from kraftjbod.storage.log.producer_state import KeptBatches
from kraftjbod.storage.segments.transaction_index import AbortedTransaction

_RECORDS_PER_BEAT: Final = 10_000
NO_TRANSACTIONS: Final = CleanedTransactions()
"""Transactions of a log without aborted ones; never changed."""


def _silent() -> None:
    """Report no progress. Default for callers without a watch."""


class Dirt(NamedTuple):
    """Bytes of a log that a pass would read: ``clean_bytes`` were cleaned by an earlier pass,
    ``dirty_bytes`` were not.
    """

    clean_bytes: int
    dirty_bytes: int
    #: Some record is older than ``max.compaction.lag.ms``.
    is_overdue: bool = False

    @property
    def ratio(self) -> float:
        total_bytes = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total_bytes if total_bytes else 0.0

    def is_due(self, min_ratio: float) -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.ratio > min_ratio)


class Sized(Protocol):
    """The part of a segment that grouping uses."""

    base_offset: int
    size_bytes: int


S = TypeVar("S", bound=Sized)


def group_segments(
    segments: Sequence[S],
    end_offset: int,
    *,
    max_bytes: int,
    max_span: int,
    max_segments: int,
) -> list[list[S]]:
    """Group neighbouring segments. Compaction writes one segment per group.

    A group has at most ``max_bytes`` before compaction, ``max_span`` offsets and ``max_segments``.
    A single segment may exceed these limits.

    :param end_offset: end offset of the last of ``segments``.
    """
    ends = [*(segment.base_offset for segment in segments[1:]), end_offset]
    groups: list[list[S]] = []
    size_bytes = 0
    for segment, end in zip(segments, ends, strict=True):
        size_bytes += segment.size_bytes
        fits = (
            groups
            and size_bytes <= max_bytes
            and end - groups[-1][0].base_offset <= max_span
            and len(groups[-1]) < max_segments
        )
        if fits:
            groups[-1].append(segment)
        else:
            groups.append([segment])
            size_bytes = segment.size_bytes
    return groups


def put_keys(
    found: CleanerMap,
    data: Buffer,
    position: int,
    header: BatchHeader,
    first_offset: int,
    beat: Callable[[], None] = _silent,
    transactions: CleanedTransactions = NO_TRANSACTIONS,
) -> bool:
    """Put the keys of the batch at ``position`` of ``data`` into the map, from ``first_offset`` on.

    Returns False if the map is full; the keys of the batch's first records may be in it then.
    Control batches, batches of aborted transactions and records without a key are skipped.

    :param beat: called regularly, because a batch may have very many records.
    :raises CorruptRecordError: the records cannot be decoded.
    """
    is_void = header.is_control or transactions.aborted(header) is not None
    if not is_void and header.record_count:
        body = open_body(data, position, header)
        records = raw_records(body, header.record_count, header.last_offset_delta)
        for number, record in enumerate(records):
            if not number % _RECORDS_PER_BEAT:
                beat()
            offset = header.base_offset + record.offset_delta
            if offset < first_offset or record.key is None:
                continue
            if not found.put(record.key, offset):
                return False
    found.record_complete_up_to(header.last_offset)
    return True


class BatchFilter:
    """Decides in one compaction pass for each batch whether it is kept, and for each record of a
    kept batch.
    """

    def __init__(
        self,
        latest: CleanerMap,
        *,
        now_ms: int,
        delete_retention_ms: int,
        kept_batches: KeptBatches,
        beat: Callable[[], None] = _silent,
        aborted: Iterable[AbortedTransaction] = (),
    ) -> None:
        """Prepare a pass.

        :param latest: the latest offset of each key.
        :param now_ms: wall clock time.
        :param kept_batches: batches that producers need.
        :param aborted: all aborted transactions of the log.
        """
        self._latest = latest
        self._beat = beat
        self._now_ms = now_ms
        self._horizon_ms = now_ms + delete_retention_ms
        self._kept_batches = kept_batches
        self.transactions = CleanedTransactions(aborted)

    def thin(
        self, data: Buffer, position: int, header: BatchHeader, *, is_last: bool
    ) -> Buffer | None:
        """Return the batch at ``position`` without the removed records; None if the batch is
        removed. An unchanged batch is a view of ``data``.

        A pass calls this once for each batch of the log, in order.

        :param is_last: whether the batch is the last of its group.
        :raises CorruptRecordError: the records cannot be decoded.
        """
        whole = memoryview(data)[position : position + header.size_bytes]
        if header.is_control:
            return self._thin_marker(data, position, header, whole, is_last=is_last)
        stays = is_last or header.last_offset in self._kept_batches.last_offsets
        if self.transactions.met_batch(header):
            return empty_batch(header) if stays else None
        if header.base_offset > self._latest.latest_offset:
            return whole
        if header.record_count == 0:
            return whole if stays else None
        body, horizon = open_body(data, position, header), delete_horizon(header)
        kept, has_tombstones = [], False
        records = raw_records(body, header.record_count, header.last_offset_delta)
        for number, record in enumerate(records):
            if not number % _RECORDS_PER_BEAT:
                self._beat()
            if self._keeps(header, record, horizon):
                kept.append(record)
                has_tombstones |= not record.has_value
        if not kept:
            return empty_batch(header) if stays else None
        if has_tombstones and horizon == NO_HORIZON:
            return thinned_batch(header, body, kept, self._horizon_ms)
        return whole if len(kept) == header.record_count else thinned_batch(header, body, kept)

    def _thin_marker(
        self,
        data: Buffer,
        position: int,
        header: BatchHeader,
        whole: memoryview,
        *,
        is_last: bool,
    ) -> Buffer | None:
        """Return the control batch to write; None if it is removed.

        A marker that is not needed first gets a delete horizon, and is removed after it.
        """
        if not self.transactions.met_marker(header, read_marker(data, position, header)):
            return whole
        marked = (header.producer_id, header.producer_epoch)
        stays = is_last or marked in self._kept_batches.marked_epochs
        if header.record_count == 0:
            return whole if stays else None
        horizon = delete_horizon(header)
        if horizon == NO_HORIZON:
            body = open_body(data, position, header)
            records = list(raw_records(body, header.record_count, header.last_offset_delta))
            return thinned_batch(header, body, records, self._horizon_ms)
        if self._now_ms < horizon:
            return whole
        return empty_batch(header) if stays else None

    def _keeps(self, header: BatchHeader, record: RawRecord, horizon: int) -> bool:
        offset = header.base_offset + record.offset_delta
        if offset > self._latest.latest_offset:
            return True
        if record.key is None or offset < self._latest.latest(record.key):
            return False
        return record.has_value or horizon == NO_HORIZON or self._now_ms < horizon
