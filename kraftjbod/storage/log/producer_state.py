"""PURE. Idempotent producers of one partition: what each sent last (KIP-98).

A batch with a producer id is appended once: its sequence must follow the last one, and one that
was appended already is answered with the offset it got. The last five batches of each producer
are remembered, as many as a client keeps in flight.

How many producers are remembered is bounded in time and number (``ProducerLimits``). What a
producer may still send again must be known, so that nothing is stored twice; that is why nobody is
forgotten who sent something in the last ten minutes, and a producer that is new is refused instead
while all are such. Time counts from the append, not by what the records say.

``to_snapshot`` and ``from_snapshot`` are the bytes of Kafka's ``.snapshot`` file.
Kafka writes one entry per producer, with its last batch; we write one for each remembered batch,
oldest first, because what was in flight at an orderly stop is sent again after it.
Kafka's reader lets later entries replace earlier ones, so it finds there what it expects.
Transactions are not known here.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, NamedTuple

import crc32c

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.record_batch import BatchHeader

_BATCHES_KEPT: Final = 5
_LARGEST_SEQUENCE: Final = 2**31 - 1
#: Twice as long as any client tries again to send a batch, unless configured otherwise (Java's
#: delivery.timeout.ms is 2 minutes, librdkafka's message.timeout.ms is 5).
RETRIES_END_AFTER_MS: Final = 600_000
#: Of a producer that was found in the log: it counts as new until the clock is next read.
_UNKNOWN: Final = -1
_NO_SEQUENCE: Final = -1
_NO_OFFSET: Final = -1
_NO_COORDINATOR: Final = -1

_SNAPSHOT_VERSION: Final = 1
_SNAPSHOT_HEAD: Final = struct.Struct(">hI")
_COUNT: Final = struct.Struct(">i")
_ENTRY: Final = struct.Struct(">qhiqiqiq")


class AppendedBatch(NamedTuple):
    """What is remembered of one batch; offsets and sequences are inclusive."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int


class ProducerLimits(NamedTuple):
    """How long a producer is remembered that sends nothing, and how many of one partition are."""

    expiration_ms: int = 86_400_000
    max_producers: int = 10_000


DEFAULT_PRODUCER_LIMITS: Final = ProducerLimits()


@dataclass(slots=True)
class _Producer:
    epoch: int
    #: Wall-clock ms.
    appended_ms: int
    #: Oldest first, of ``epoch`` only; empty if only an older incarnation is remembered.
    batches: tuple[AppendedBatch, ...] = ()


class ProducerState:
    """Producer id to what it sent last. Owned by whoever owns the log."""

    def __init__(self) -> None:
        #: Who sent something least recently comes first.
        self._producers: OrderedDict[int, _Producer] = OrderedDict()

    def __len__(self) -> int:
        return len(self._producers)

    def check(
        self, header: BatchHeader, now_ms: int, limits: ProducerLimits
    ) -> AppendedBatch | None:
        """None if the batch may be appended; the batch it repeats if it is a duplicate.

        :raises OperatingError: INVALID_PRODUCER_EPOCH or OUT_OF_ORDER_SEQUENCE_NUMBER; or
            THROTTLING_QUOTA_EXCEEDED, for one producer too many.
        """
        known = self._producers.get(header.producer_id)
        if known is None:
            # Nothing is remembered (any more): any sequence may begin.
            self._require_capacity(header.producer_id, now_ms, limits.max_producers)
            return None
        if header.producer_epoch < known.epoch:
            raise OperatingError(
                f"producer {header.producer_id} has epoch {header.producer_epoch}, "
                f"newer is {known.epoch}",
                code=ErrorCode.INVALID_PRODUCER_EPOCH,
            )
        if header.producer_epoch > known.epoch:
            _require_sequence(header, 0)
            return None
        for batch in known.batches:
            if (batch.base_sequence, batch.last_sequence) == (
                header.base_sequence,
                header.last_sequence,
            ):
                return batch
        if known.batches:
            last = known.batches[-1].last_sequence
            _require_sequence(header, 0 if last == _LARGEST_SEQUENCE else last + 1)
        return None

    def _require_capacity(self, producer_id: int, now_ms: int, max_producers: int) -> None:
        if len(self._producers) < max_producers:
            return
        idlest = next(iter(self._producers.values()))
        if idlest.appended_ms == _UNKNOWN:
            idlest.appended_ms = now_ms
        if now_ms - idlest.appended_ms >= RETRIES_END_AFTER_MS:
            return
        raise OperatingError(
            f"producer {producer_id} is one too many: {len(self._producers)} others sent something "
            "to this partition a short while ago (max.producer.ids.per.partition); try again later",
            code=ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        )

    def record(
        self,
        header: BatchHeader,
        base_offset: int,
        now_ms: int = _UNKNOWN,
        limits: ProducerLimits = DEFAULT_PRODUCER_LIMITS,
    ) -> None:
        """The batch was appended with ``base_offset``, at ``now_ms`` of the wall clock.

        Who sent something least recently is forgotten if there are too many now. A leader asked
        :meth:`check` before; a follower remembers the same ones by this.
        """
        known = self._producers.pop(header.producer_id, None)
        if known is None or known.epoch != header.producer_epoch:
            known = _Producer(header.producer_epoch, now_ms)
        self._producers[header.producer_id] = known
        known.appended_ms = now_ms
        if not header.is_control:
            last_offset = base_offset + header.last_offset_delta
            batch = AppendedBatch(
                header.base_sequence, header.last_sequence, base_offset, last_offset
            )
            known.batches = (*known.batches[1 - _BATCHES_KEPT :], batch)
        while len(self._producers) > limits.max_producers:
            self._producers.popitem(last=False)

    def expire(self, now_ms: int, limits: ProducerLimits) -> None:
        """Forget producers that have sent nothing for too long."""
        for producer_id, known in list(self._producers.items()):
            if not 0 <= known.appended_ms <= now_ms:
                known.appended_ms = now_ms  # Never later: a clock may have been ahead.
            elif known.appended_ms < now_ms - limits.expiration_ms:
                del self._producers[producer_id]

    def last_offsets(self) -> frozenset[int]:
        """Of the batches that are remembered."""
        known = self._producers.values()
        return frozenset(batch.last_offset for one in known for batch in one.batches)

    def to_snapshot(self) -> bytes:
        """Version, CRC-32C of the rest, count, and one entry of 46 bytes per batch.

        The producers stand in the order in which they sent something.
        """
        entries = [
            _ENTRY.pack(
                producer_id,
                known.epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.last_offset - batch.base_offset,
                known.appended_ms,
                _NO_COORDINATOR,
                _NO_OFFSET,
            )
            for producer_id, known in self._producers.items()
            for batch in known.batches or [_NO_BATCH]
        ]
        body = _COUNT.pack(len(entries)) + b"".join(entries)
        return _SNAPSHOT_HEAD.pack(_SNAPSHOT_VERSION, crc32c.crc32c(body)) + body

    @classmethod
    def from_snapshot(cls, data: bytes) -> ProducerState | None:
        """The state in ``data``, or None if it is damaged: older snapshots or the log remain."""
        if len(data) < _SNAPSHOT_HEAD.size + _COUNT.size:
            return None
        version, crc = _SNAPSHOT_HEAD.unpack_from(data)
        body = data[_SNAPSHOT_HEAD.size :]
        if version != _SNAPSHOT_VERSION or crc32c.crc32c(body) != crc:
            return None
        (count,) = _COUNT.unpack_from(body)
        if len(body) != _COUNT.size + count * _ENTRY.size:
            return None
        state = cls()
        for (
            producer_id,
            epoch,
            last_sequence,
            last_offset,
            delta,
            timestamp,
            _,
            _,
        ) in _ENTRY.iter_unpack(body[_COUNT.size :]):
            known = state._producers.setdefault(producer_id, _Producer(epoch, timestamp))
            if last_offset != _NO_OFFSET:
                first = (last_sequence - delta) & _LARGEST_SEQUENCE
                batch = AppendedBatch(first, last_sequence, last_offset - delta, last_offset)
                known.batches = (*known.batches[1 - _BATCHES_KEPT :], batch)
        return state


_NO_BATCH: Final = AppendedBatch(_NO_SEQUENCE, _NO_SEQUENCE, _NO_OFFSET, _NO_OFFSET)


def _require_sequence(header: BatchHeader, expected: int) -> None:
    if header.base_sequence != expected:
        raise OperatingError(
            f"producer {header.producer_id} (epoch {header.producer_epoch}) sent sequence "
            f"{header.base_sequence}, expected {expected}",
            code=ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        )
