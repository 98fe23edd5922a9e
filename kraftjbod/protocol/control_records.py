"""PURE. Transaction markers: the control batches that end a producer's transaction in a partition.

A marker is a batch of one record (KIP-98). Its key is COMMIT or ABORT, and its value the epoch of
the coordinator. The batch has the producer's id and epoch, and no sequence number.
Readers skip control records of other types.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kraftjbod.core.errors import CorruptRecordError, OperatingError
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.record_batch import BatchHeader
from kraftjbod.protocol.records import Record, build_batch, read_records

_KEY: Final = struct.Struct(">hh")
_VALUE: Final = struct.Struct(">hi")
_VERSION: Final = 0
#: Size of the batch of a marker.
MARKER_BYTES: Final = 78
_ABORT: Final = 0
_COMMIT: Final = 1


class TransactionMarker(NamedTuple):
    """End of a transaction in one partition: whether it was committed or aborted, and the epoch of
    the coordinator that wrote the marker.
    """

    is_commit: bool
    coordinator_epoch: int


#: Transaction markers by base offset of their control batches.
Markers = Mapping[int, TransactionMarker]


def build_marker(
    marker: TransactionMarker, *, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytes:
    """Return the control batch of ``marker``, with offset 0."""
    key = _KEY.pack(_VERSION, _COMMIT if marker.is_commit else _ABORT)
    value = _VALUE.pack(_VERSION, marker.coordinator_epoch)
    return build_batch(
        [Record(key=key, value=value, timestamp_ms=timestamp_ms)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_control=True,
        is_transactional=True,
    )


def read_marker(buf: Buffer, position: int, header: BatchHeader) -> TransactionMarker | None:
    """Return the marker in the control batch at ``position``; None if it is no transaction marker.

    Compaction leaves control batches without a record, which are no markers. Later marker versions
    are read like the first. The CRC is not checked, and a malformed batch counts as no marker.
    """
    if not header.record_count:
        return None
    try:
        return marker_of(next(read_records(buf, position)))
    except (CorruptRecordError, OperatingError):
        return None


def marker_of(record: Record) -> TransactionMarker | None:
    """Return the marker in a control record; None if it is no transaction marker."""
    try:
        version, kind = _KEY.unpack_from(record.key or b"")
        value_version, coordinator_epoch = _VALUE.unpack_from(record.value or b"")
    except struct.error:
        return None
    if min(version, value_version) < _VERSION or kind not in (_ABORT, _COMMIT):
        return None
    return TransactionMarker(kind == _COMMIT, coordinator_epoch)


def markers_in(buf: Buffer, headers: Sequence[BatchHeader]) -> Markers:
    """Return the transaction markers in ``buf`` by base offset of their batches.

    :param headers: the headers of the batches at the start of ``buf``.
    """
    found, position = dict[int, TransactionMarker](), 0
    for header in headers:
        if header.is_control and (marker := read_marker(buf, position, header)) is not None:
            found[header.base_offset] = marker
        position += header.size_bytes
    return found
