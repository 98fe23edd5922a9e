"""PURE. Validation of the records that a client sends, after their batch header and CRC.

The rules are those of Kafka's LogValidator. A batch is rejected as a whole, and the error names the
invalid records. Followers do not validate, because their leader did.

* Numbers, lengths and offset deltas are checked in one pass, without an object per record.
* A compressed batch is decompressed for the check, up to a limit, and stored as it was sent. If the
  topic requires another codec, the batch is recompressed, never in the event loop.
* Records that cannot be parsed are INVALID_RECORD and not CORRUPT_MESSAGE: with a valid CRC they
  would be the same if the producer sent them again.
* A wrong ``max_timestamp`` in the header is replaced by the maximum of the records.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kraftjbod.core.config_model import MAX_LONG
from kraftjbod.core.errors import (
    CorruptRecordError,
    ErrorCode,
    InvalidRecordsError,
    OperatingError,
)
from kraftjbod.core.loop.wall_guard import PossibleNow
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol import record_scans
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.raw_records import raw_records
from kraftjbod.protocol.record_batch import (
    COMPRESSION_BITS,
    BatchHeader,
    read_header,
    sealed,
    with_max_timestamp,
)
from kraftjbod.protocol.records import MAX_OPENED_BYTES, compress_body, open_body

_NO_TIMESTAMP: Final = -1
_LEAST_LONG: Final = -MAX_LONG - 1
#: Limit of invalid records that the error names.
MAX_RECORD_ERRORS: Final = 100
#: Work that takes less than about two milliseconds: records to scan, by form of the scans, and
#: bytes to decompress.
_QUICK_RECORDS: Final = {"compiled": 10_000, "interpreted": 1_000}
_QUICK_PACKED_BYTES: Final = 128 * 1024
_QUICK_UNPACKED_BYTES: Final = 512 * 1024


class RecordRules(NamedTuple):
    """Limits that records of one topic must meet when they are appended. Timestamps from
    ``earliest_ms`` to ``latest_ms`` are accepted, both inclusive, in wall-clock ms, and also -1.

    ``stamps``: the broker sets the timestamps (LogAppendTime). ``compression`` and ``level``: codec
    of the stored batch; None keeps the producer's. ``max_batch_bytes`` limits a recompressed batch.
    """

    needs_keys: bool = False
    earliest_ms: int = _LEAST_LONG
    latest_ms: int = MAX_LONG
    max_unpacked_bytes: int = MAX_OPENED_BYTES
    max_records: int = 2**31 - 1
    #: The broker's time replaces the timestamps of the records (LogAppendTime).
    stamps: bool = False
    #: Codec of the topic and its level; None if the producer chooses.
    compression: int | None = None
    level: int | None = None
    max_batch_bytes: int = 2**31 - 1


def record_rules(
    config: TopicConfig, now: PossibleNow, *, max_unpacked_bytes: int, max_records: int
) -> RecordRules:
    """Return the rules for records that are appended to a topic with ``config``.

    :param now: range of the present time, in wall-clock ms.
    :param max_unpacked_bytes: limit of the decompressed size of a batch.
    :param max_records: limit of the records in a batch.
    """
    earliest_ms, latest_ms = _LEAST_LONG, MAX_LONG
    stamps = config.message_timestamp_type == "LogAppendTime"
    if not stamps:
        earliest_ms = max(_LEAST_LONG, now.earliest_ms - config.message_timestamp_before_max_ms)
        latest_ms = min(now.latest_ms + config.message_timestamp_after_max_ms, MAX_LONG)
    needs_keys = config.cleanup_policy.is_compact
    rules = RecordRules(needs_keys, earliest_ms, latest_ms, max_unpacked_bytes, max_records, stamps)
    if config.compression_type == "producer" or config.compression is None:
        return rules
    codec, level = config.compression
    return rules._replace(compression=codec, level=level, max_batch_bytes=config.max_message_bytes)


class CheckedBatch(NamedTuple):
    """A validated batch as it is appended, which may differ from the batch that was sent, and its
    header.
    """

    records: Buffer
    header: BatchHeader


def validate_quickly(buf: Buffer, header: BatchHeader, rules: RecordRules) -> CheckedBatch | None:
    """Validate like :func:`validate_records`, or return None if that takes too long.

    "Too long" is about 2 ms of the event loop. The caller then validates in another thread.
    """
    if rules.compression is not None and header.compression != rules.compression:
        return None
    if header.record_count > _QUICK_RECORDS[record_scans.FORM]:
        return None
    if not header.compression or rules.max_unpacked_bytes <= _QUICK_UNPACKED_BYTES:
        return validate_records(buf, header, rules)
    if header.size_bytes > _QUICK_PACKED_BYTES:
        return None
    try:
        quick = rules._replace(max_unpacked_bytes=_QUICK_UNPACKED_BYTES)
        return validate_records(buf, header, quick)
    except OperatingError as e:
        if e.code is ErrorCode.MESSAGE_TOO_LARGE:
            return None
        raise


def validate_records(buf: Buffer, header: BatchHeader, rules: RecordRules) -> CheckedBatch:
    """Validate the single batch in ``buf``, whose header and CRC were checked before.

    :returns: the batch to append, which has another codec or another ``max_timestamp`` if
        necessary.
    :raises InvalidRecordsError: naming the invalid records.
    :raises OperatingError: INVALID_RECORD: the body contradicts the header; or MESSAGE_TOO_LARGE.
    """
    assert rules.earliest_ms >= _LEAST_LONG and rules.latest_ms <= MAX_LONG, rules
    base = header.base_timestamp
    try:
        body = bytes(open_body(buf, 0, header, max_bytes=rules.max_unpacked_bytes))
        if rules.max_records < header.record_count <= len(body):
            raise OperatingError(
                f"a batch of {header.record_count} records has more than {rules.max_records}, "
                "the limit; send smaller batches",
                code=ErrorCode.MESSAGE_TOO_LARGE,
            )
        largest, keyless, untimely = record_scans.check_records(
            body,
            header.record_count,
            _within_long(rules.earliest_ms - base),
            _within_long(rules.latest_ms - base),
            _NO_TIMESTAMP - base,
        )
        if untimely or (keyless and rules.needs_keys):
            raise _refusal(body, header, rules)
    except CorruptRecordError as e:
        # Not CORRUPT_MESSAGE, which is retriable: the CRC is right, so a retry would fail again.
        raise OperatingError(e.message, code=ErrorCode.INVALID_RECORD) from e
    newest = max(_NO_TIMESTAMP, base + largest)
    if rules.compression is not None and header.compression != rules.compression:
        return _recompress(body, header, newest, rules.compression, rules)
    if newest == header.max_timestamp or rules.stamps:
        return CheckedBatch(buf, header)
    corrected = with_max_timestamp(buf, header, newest)
    return CheckedBatch(corrected, header._replace(max_timestamp=newest))


def _recompress(
    body: bytes, header: BatchHeader, newest: int, codec: int, rules: RecordRules
) -> CheckedBatch:
    """Return the batch compressed with ``codec``. All other fields are kept, so that the batch
    still has the sequence of its producer.

    :raises OperatingError: MESSAGE_TOO_LARGE: the result is too large.
    """
    attributes = header.attributes & ~COMPRESSION_BITS | codec
    max_timestamp = header.max_timestamp if rules.stamps else newest
    batch = sealed(
        header._replace(attributes=attributes, max_timestamp=max_timestamp),
        compress_body(codec, body, rules.level),
    )
    if len(batch) > rules.max_batch_bytes:
        raise OperatingError(
            f"a batch of {len(batch)} bytes, compressed as the topic wants it, is larger than "
            f"{rules.max_batch_bytes}, the limit",
            code=ErrorCode.MESSAGE_TOO_LARGE,
        )
    return CheckedBatch(batch, read_header(batch))


def _within_long(value: int) -> int:
    return max(_LEAST_LONG, min(value, MAX_LONG))


def _refusal(body: bytes, header: BatchHeader, rules: RecordRules) -> InvalidRecordsError:
    """Return the error that names the first invalid records, at most 100.

    A second pass finds them record by record.
    """
    found: list[tuple[int, str]] = []
    code = ErrorCode.INVALID_RECORD
    for record in raw_records(body, header.record_count):
        timestamp = header.base_timestamp + record.timestamp_delta
        is_timely = rules.earliest_ms <= timestamp <= rules.latest_ms
        if rules.needs_keys and record.key is None:
            why = "it has no key, which a compacted topic does not accept"
        elif not is_timely and timestamp != _NO_TIMESTAMP:
            code = ErrorCode.INVALID_TIMESTAMP
            why = (
                f"its timestamp {timestamp} is not between "
                f"{rules.earliest_ms} and {rules.latest_ms}"
            )
        else:
            continue
        found.append((record.offset_delta, why))
        if len(found) == MAX_RECORD_ERRORS:
            break
    at, why = found[0]
    return InvalidRecordsError(
        f"the batch is refused because of {len(found)} of its {header.record_count} records"
        f"{' or more' if len(found) == MAX_RECORD_ERRORS else ''}; the first is record {at}: {why}",
        code=code,
        records=tuple(found),
    )
