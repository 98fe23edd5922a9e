"""PURE. ``ProducerState``: the last batches of each idempotent producer of one partition (KIP-98).

* A batch with a producer id is appended once. Its sequence must follow the last one. A repeated
  batch is answered with its first offset.
* The last five batches of each producer are remembered, as many as a client keeps in flight.
* ``ProducerLimits`` bounds the remembered producers in time and number. A producer that may still
  retry must be remembered, to avoid duplicates. So the limit of the number forgets no producer
  within ten minutes after its last append. If the limit is reached and all producers are that
  recent, new ones are refused. The time of the append counts, not the record timestamps.
* Batches of a group or transaction coordinator have no sequences. So their producers without an
  open transaction are forgotten at once if there are too many.
* A producer may have one open transaction (open_transactions.py), and is not forgotten meanwhile.
  verification_guards.py decides which producer may start one.

``to_snapshot`` and ``from_snapshot`` use the format of Kafka's ``.snapshot`` file. Kafka writes one
entry per producer, with its last batch. This class writes one entry per remembered batch, oldest
first, because clients may retry batches after an orderly stop. Kafka's reader replaces earlier
entries of a producer by later ones, so it can read these files.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

import crc32c

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.control_records import TransactionMarker
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.storage.log.open_transactions import OpenTransactions
from kraftjbod.storage.log.verification_guards import (
    ORDINARY_TERMS,
    ProducerTerms,
    VerificationGuard,
    VerificationGuards,
)
from kraftjbod.storage.segments.transaction_index import AbortedTransaction

#: Batches that are remembered per producer and epoch.
BATCHES_KEPT: Final = 5
_LARGEST_SEQUENCE: Final = 2**31 - 1
#: Twice the longest default retry time of a client (Java's delivery.timeout.ms is 2 minutes,
#: librdkafka's message.timeout.ms is 5).
RETRIES_END_AFTER_MS: Final = 600_000
#: Append time of a producer found in the log. It counts as recent until the clock is next read.
_UNKNOWN: Final = -1
_NO_SEQUENCE: Final = -1
_NO_OFFSET: Final = -1
_NO_COORDINATOR: Final = -1
#: The largest epoch, which only markers have.
_LAST_EPOCH: Final = 2**15 - 1
#: First transaction version in which every marker has a new epoch (KIP-890).
_EPOCH_BUMP_SINCE: Final = 2

_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")
#: Least number of log bytes per byte of a snapshot.
_LOG_PER_SNAPSHOT: Final = 32


class AppendedBatch(NamedTuple):
    """Sequences and offsets of a batch that is remembered to recognize a retry. Both ranges are
    inclusive.
    """

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerLimits(NamedTuple):
    """Limits of remembered producers, and how much log may follow the last producer snapshot.

    A producer is forgotten after ``expiration_ms`` without an append. With many producers the
    interval of snapshots is longer, so that a snapshot is small compared with that log.
    """

    expiration_ms: int = 86_400_000
    max_producers: int = 10_000
    snapshot_interval_bytes: int = 16 * 1024 * 1024


DEFAULT_PRODUCER_LIMITS: Final = ProducerLimits()


@dataclass(slots=True)
class _Producer:
    epoch: int
    #: Wall clock time of the last append, in ms.
    appended_ms: int
    #: Oldest first, only batches of ``epoch``. Empty if ``epoch`` has only markers.
    batches: tuple[AppendedBatch, ...] = ()
    #: Coordinator epoch of the last marker here.
    coordinator_epoch: int = _NO_COORDINATOR


class KnownProducer(NamedTuple):
    """State of one remembered producer, as DescribeProducers lists it; -1 for missing values.

    ``coordinator_epoch`` is that of its last marker, ``transaction_first_offset`` the first offset
    of its open transaction.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    #: Wall clock time in ms.
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


class KeptBatches(NamedTuple):
    """Batches that compaction has to keep, so that their producers are known after a crash.

    ``last_offsets`` are the last offsets of these batches.
    """

    last_offsets: frozenset[int] = frozenset()
    #: (producer id, epoch) of producers with only a marker.
    marked_epochs: frozenset[tuple[int, int]] = frozenset()


class ProducerState:
    """Last batches, epoch and open transaction of each remembered producer of one log, to reject
    duplicates and wrong sequences.
    """

    def __init__(self) -> None:
        #: In the order of their last batches, oldest first.
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self.transactions = OpenTransactions()
        self._guards = VerificationGuards()

    def __len__(self) -> int:
        return len(self._producers)

    def __bool__(self) -> bool:
        """Return whether a truncation can change the state: there are producers or transactions."""
        return bool(self._producers or self.transactions.unstable)

    # -- before the append ------------------------------------------------------------------

    def check(
        self,
        header: BatchHeader,
        now_ms: int,
        limits: ProducerLimits,
        terms: ProducerTerms = ORDINARY_TERMS,
    ) -> AppendedBatch | None:
        """Return None if the batch may be appended. If it repeats one that was appended, return
        that one.

        :param now_ms: wall-clock time.
        :raises NotVerifiedError: a transaction would start, and ``terms`` have no guard or one that
            does not belong to this log.
        :raises OperatingError: INVALID_PRODUCER_EPOCH, OUT_OF_ORDER_SEQUENCE_NUMBER or
            INVALID_TXN_STATE, or THROTTLING_QUOTA_EXCEEDED if there are too many producers.
        """
        known = self._producers.get(header.producer_id)
        if known is None:
            self._require_capacity(header.producer_id, now_ms, limits.max_producers, terms)
        elif (twin := _duplicate_of(known, header)) is not None and terms.checks_sequence:
            return twin
        elif header.producer_epoch < known.epoch:
            raise _fenced(header.producer_id, header.producer_epoch, known.epoch)
        is_open = self.transactions.first_offset(header.producer_id) is not None
        if header.is_transactional:
            is_its = is_open and known is not None and known.epoch == header.producer_epoch
            if terms.is_guarded and not is_its:
                self._guards.require(header, terms, now_ms, limits.max_producers)
        elif is_open:
            raise OperatingError(
                f"producer {header.producer_id} has a transaction open here, and this batch is in "
                "none",
                code=ErrorCode.INVALID_TXN_STATE,
            )
        if terms.checks_sequence:
            guard = self._guards.get(header.producer_id) if header.is_transactional else None
            _check_sequence(header, known, guard)
        return None

    def check_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        marker: TransactionMarker,
        transaction_version: int,
    ) -> None:
        """Raise an error unless a coordinator may write ``marker`` for the producer here.

        :raises OperatingError: INVALID_PRODUCER_EPOCH if a newer epoch is known, or
            TRANSACTION_COORDINATOR_FENCED if a newer coordinator epoch is known.
        """
        known = self._producers.get(producer_id)
        if known is None:
            return
        least = known.epoch
        if transaction_version >= _EPOCH_BUMP_SINCE:
            # Such a marker has a new epoch. If no transaction is open, it is a repeated marker.
            is_open = self.transactions.first_offset(producer_id) is not None
            least += is_open and known.epoch != _LAST_EPOCH
        if producer_epoch < least:
            raise _fenced(producer_id, producer_epoch, known.epoch)
        if marker.coordinator_epoch < known.coordinator_epoch:
            raise OperatingError(
                f"coordinator epoch {marker.coordinator_epoch} ends a transaction of producer "
                f"{producer_id}, newer is {known.coordinator_epoch}",
                code=ErrorCode.TRANSACTION_COORDINATOR_FENCED,
            )

    def _require_capacity(
        self, producer_id: int, now_ms: int, max_producers: int, terms: ProducerTerms
    ) -> None:
        if len(self._producers) < max_producers:
            return
        idlest = next((self._producers[one] for one in self._idle()), None)
        if idlest is not None and not terms.checks_sequence:
            return
        if idlest is not None and idlest.appended_ms == _UNKNOWN:
            idlest.appended_ms = now_ms
        if idlest is not None and now_ms - idlest.appended_ms >= RETRIES_END_AFTER_MS:
            return
        raise OperatingError(
            f"producer {producer_id} is one too many: {len(self._producers)} others sent something "
            "to this partition a short while ago (max.producer.ids.per.partition); try again later",
            code=ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        )

    def _idle(self) -> Iterator[int]:
        """Yield producers without an open transaction, in the order of their last batches, oldest
        first.
        """
        for producer_id in self._producers:
            if self.transactions.first_offset(producer_id) is None:
                yield producer_id

    # -- after the append -------------------------------------------------------------------

    def record(
        self,
        header: BatchHeader,
        base_offset: int,
        now_ms: int = _UNKNOWN,
        limits: ProducerLimits = DEFAULT_PRODUCER_LIMITS,
        marker: TransactionMarker | None = None,
    ) -> AbortedTransaction | None:
        """Record a batch that was appended with ``base_offset``.

        Returns the transaction that a marker aborted, for the transaction index. If there are too
        many producers, the ones with the oldest last batch are forgotten. A leader has called
        :meth:`check` before. A follower forgets the same producers, because it records the same
        batches.

        :param now_ms: wall clock time of the append.
        :param marker: content of a control batch.
        """
        producer_id, last_offset = header.producer_id, base_offset + header.last_offset_delta
        known = self._producers.pop(producer_id, None)
        if known is None:
            known = _Producer(header.producer_epoch, now_ms)
        elif known.epoch != header.producer_epoch:
            known.epoch, known.batches = header.producer_epoch, ()
        self._producers[producer_id] = known
        known.appended_ms = now_ms
        aborted = None
        if marker is not None:
            known.coordinator_epoch = marker.coordinator_epoch
            self._guards.marker_appended(producer_id, header.producer_epoch)
            first_offset = self.transactions.end(producer_id, last_offset)
            if first_offset is not None and not marker.is_commit:
                stable = self.transactions.stable_after(last_offset)
                aborted = AbortedTransaction(producer_id, first_offset, last_offset, stable)
        elif not header.is_control:
            batch = AppendedBatch(
                header.base_sequence, header.last_sequence, base_offset, last_offset
            )
            known.batches = (*known.batches[1 - BATCHES_KEPT :], batch)
            self._guards.data_appended(producer_id)
            if header.is_transactional:
                began_ms = header.max_timestamp if now_ms == _UNKNOWN else now_ms
                self.transactions.add_batch(producer_id, base_offset, began_ms)
        if len(self._producers) > limits.max_producers:
            self._forget_idlest(len(self._producers) - limits.max_producers, producer_id)
        return aborted

    def _forget_idlest(self, count: int, newest: int) -> None:
        for producer_id in list(islice(self._idle(), count)):
            if producer_id != newest:
                del self._producers[producer_id]

    def expire(self, now_ms: int, limits: ProducerLimits) -> None:
        """Forget producers without an append for ``limits.expiration_ms``, unless a transaction is
        open.

        :param now_ms: wall-clock time.
        """
        for producer_id, known in list(self._producers.items()):
            if not 0 <= known.appended_ms <= now_ms:
                known.appended_ms = now_ms  # Never in the future: the clock may have been set back.
            elif known.appended_ms >= now_ms - limits.expiration_ms:
                continue
            elif self.transactions.first_offset(producer_id) is None:
                del self._producers[producer_id]
        self._guards.expire(now_ms, limits.expiration_ms)

    # -- queries ----------------------------------------------------------------------------

    def is_snapshot_due(self, appended_bytes: int, limits: ProducerLimits) -> bool:
        """Return whether enough log was appended for a new snapshot file. ``appended_bytes`` is the
        size of the log since the last one. Always False without producers and transactions.
        """
        if not self or appended_bytes < limits.snapshot_interval_bytes:
            return False
        largest_bytes = BATCHES_KEPT * _ENTRY.size * len(self)
        return appended_bytes >= _LOG_PER_SNAPSHOT * largest_bytes

    def kept_batches(self) -> KeptBatches:
        """Return the batches that compaction has to keep for the remembered producers."""
        known = self._producers.items()
        return KeptBatches(
            frozenset(batch.last_offset for _, one in known for batch in one.batches),
            frozenset((producer_id, one.epoch) for producer_id, one in known if not one.batches),
        )

    def known(self) -> list[KnownProducer]:
        """Return the state of all remembered producers, in the order of their last batches."""
        return [
            KnownProducer(
                producer_id,
                one.epoch,
                one.batches[-1].last_sequence if one.batches else _NO_SEQUENCE,
                one.appended_ms,
                one.coordinator_epoch,
                self._first_offset(producer_id),
            )
            for producer_id, one in self._producers.items()
        ]

    def _first_offset(self, producer_id: int) -> int:
        first_offset = self.transactions.first_offset(producer_id)
        return _NO_OFFSET if first_offset is None else first_offset

    def to_snapshot(self) -> bytes:
        """Return the content of a ``.snapshot`` file: version, CRC-32C of the rest, count, and the
        entries.

        Each remembered batch has an entry of 46 bytes. The producers are in the order of their last
        batches.
        """
        entries = [
            _ENTRY.pack(
                producer_id,
                known.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.last_offset - batch.base_offset,
                known.appended_ms,
                known.coordinator_epoch,
                self._first_offset(producer_id),
            )
            for producer_id, known in self._producers.items()
            for batch in known.batches or [_NO_BATCH]
        ]
        body = _COUNT.pack(len(entries)) + b"".join(entries)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c.crc32c(body)) + body

    @classmethod
    def from_snapshot(cls, data: bytes) -> ProducerState | None:
        """Parse the content of a ``.snapshot`` file; None if it is damaged."""
        entries = snapshot_entries(data)
        if entries is None:
            return None
        state = cls()
        for (
            producer_id,
            epoch,
            last_sequence,
            last_offset,
            delta,
            timestamp,
            coordinator_epoch,
            transaction_first_offset,
        ) in entries:
            known = state._producers.setdefault(producer_id, _Producer(epoch, timestamp))
            known.coordinator_epoch = coordinator_epoch
            if transaction_first_offset != _NO_OFFSET:
                state.transactions.add_batch(producer_id, transaction_first_offset, timestamp)
            if last_offset != _NO_OFFSET:
                first = (last_sequence - delta) & _LARGEST_SEQUENCE
                batch = AppendedBatch(first, last_sequence, last_offset - delta, last_offset)
                known.batches = (*known.batches[1 - BATCHES_KEPT :], batch)
        return state


class SnapshotEntry(NamedTuple):
    """One remembered batch of a producer in a snapshot file, with Kafka's order of fields; -1 for
    missing values.

    ``delta`` is the last offset of the batch less its first one. ``timestamp_ms`` is the wall-clock
    time of the producer's last append.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    delta: int
    timestamp_ms: int
    coordinator_epoch: int
    transaction_first_offset: int


def snapshot_entries(data: bytes) -> list[SnapshotEntry] | None:
    """Parse the entries of a snapshot file; None if it is damaged."""
    if len(data) < _SNAPSHOT_HEAD.size + _COUNT.size:
        return None
    version, crc = _SNAPSHOT_HEAD.unpack_from(data)
    body = data[_SNAPSHOT_HEAD.size :]
    if version != _SNAPSHOT_VERSION or crc32c.crc32c(body) != crc:
        return None
    (count,) = _COUNT.unpack_from(body)
    if len(body) != _COUNT.size + count * _ENTRY.size:
        return None
    return [SnapshotEntry(*entry) for entry in _ENTRY.iter_unpack(body[_COUNT.size :])]


_NO_BATCH: Final = AppendedBatch(_NO_SEQUENCE, _NO_SEQUENCE, _NO_OFFSET, _NO_OFFSET)


def _duplicate_of(known: _Producer, header: BatchHeader) -> AppendedBatch | None:
    """Return the remembered batch with the epoch and sequences of ``header``; None if there is
    none.
    """
    if header.producer_epoch != known.epoch:
        return None
    sequences = header.base_sequence, header.last_sequence
    for batch in known.batches:
        if (batch.base_sequence, batch.last_sequence) == sequences:
            return batch
    return None


def _check_sequence(
    header: BatchHeader, known: _Producer | None, guard: VerificationGuard | None
) -> None:
    if guard is not None:
        if guard.supports_epoch_bump and (known is None or not known.batches):
            _require_sequence(header, 0)
        if header.base_sequence > guard.lowest_sequence:
            # Earlier batches arrived during the verification, and were not appended.
            _require_sequence(header, guard.lowest_sequence)
    if known is None:
        return  # No batch is remembered, so any sequence may start.
    if header.producer_epoch > known.epoch or not known.batches:
        _require_sequence(header, 0)
        return
    last = known.batches[-1].last_sequence
    _require_sequence(header, 0 if last == _LARGEST_SEQUENCE else last + 1)


def _fenced(producer_id: int, epoch: int, newer: int) -> OperatingError:
    return OperatingError(
        f"producer {producer_id} has epoch {epoch}, newer is {newer}",
        code=ErrorCode.INVALID_PRODUCER_EPOCH,
    )


def _require_sequence(header: BatchHeader, expected: int) -> None:
    if header.base_sequence != expected:
        raise OperatingError(
            f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence "
            f"{header.base_sequence}, expected {expected}",
            code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        )
