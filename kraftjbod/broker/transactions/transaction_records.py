"""PURE. Records of ``__transaction_state``, in Kafka's format.

A record has the whole state of one transactional id; a record without a value deletes it. Records
of an unknown type or version are skipped, as in Kafka. The topic is compacted, is created with all
its replicas or not at all, and has no unclean leader elections: a coordinator's decision must never
be lost.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from kraftjbod.broker.internal.internal_topics import InternalTopic
from kraftjbod.core.errors import CorruptRecordError, RemoteProtocolError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.kafka_codec import decode_body, encode_body
from kraftjbod.protocol.messages import TransactionLogKey, TransactionLogValue
from kraftjbod.protocol.records import Record
from kraftjbod.protocol.schemas.kafka_schema import load_message

TRANSACTIONS_TOPIC: Final = "__transaction_state"
NO_PRODUCER: Final = -1
NO_EPOCH: Final = -1
NO_TIME: Final = -1
_KEY_TYPE: Final = load_message("TransactionLogKey").api_key
_VALUE_VERSIONS: Final = load_message("TransactionLogValue").versions
_TYPE: Final = struct.Struct(">h")
_MAX_ELEMENTS: Final = 1_000_000


class TransactionState(IntEnum):
    """States of a transactional id, with Kafka's numbers.

    The last two are never written: fencing is one step here, and a dead id has no record.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def title(self) -> str:
        """The name in DescribeTransactions, such as ``"PrepareCommit"``."""
        return self.name.title().replace("_", "")

    @property
    def is_ending(self) -> bool:
        """Whether the end is decided but some partitions may lack the marker."""
        return self in (TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT)

    @property
    def is_idle(self) -> bool:
        """Whether no transaction is open."""
        return not self.is_ending and self is not TransactionState.ONGOING


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """The state of a transactional id, as stored in the value of its record. Times are wall-clock
    milliseconds; ``NO_TIME`` if unknown.
    """

    producer_id: int
    producer_epoch: int = NO_EPOCH
    previous_producer_id: int = NO_PRODUCER
    next_producer_id: int = NO_PRODUCER
    """The producer id after the end of this transaction, if the epochs are exhausted."""
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    updated_ms: int = NO_TIME
    started_ms: int = NO_TIME
    client_version: int = 0
    """The transaction's level of ``transaction.version``."""


@dataclass(frozen=True, slots=True)
class TransactionFact:
    """Content of a transaction record: the state of a transactional id. ``metadata`` is None if the
    record deletes the id.
    """

    transactional_id: str
    metadata: TransactionMetadata | None


def record_of(fact: TransactionFact, *, version: int, now_ms: int) -> Record:
    """Return the record that encodes ``fact``.

    :param version: version of the value: 1 from level 1 of ``transaction.version`` on, else 0.
    :param now_ms: wall-clock time of the record.
    :raises LocalProtocolError: a name is longer than records can hold.
    """
    key_fields = TransactionLogKey(transactional_id=fact.transactional_id)
    key = _TYPE.pack(_KEY_TYPE) + encode_body(0, key_fields)
    value = None if fact.metadata is None else _value(fact.metadata, version)
    return Record(key=key, value=value, timestamp_ms=now_ms)


def _value(metadata: TransactionMetadata, version: int) -> bytes:
    body = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_last_update_timestamp_ms=metadata.updated_ms,
        transaction_start_timestamp_ms=metadata.started_ms,
    )
    body.transaction_partitions = None
    if metadata.state is not TransactionState.EMPTY:
        body.transaction_partitions = [
            TransactionLogValue.PartitionsSchema(topic=topic, partition_ids=indexes)
            for topic, indexes in by_topic(metadata.partitions).items()
        ]
    if version > 0:
        body.previous_producer_id = metadata.previous_producer_id
        body.next_producer_id = metadata.next_producer_id
        body.client_transaction_version = metadata.client_version
    return _TYPE.pack(version) + encode_body(version, body)


def fact_of(record: Record) -> TransactionFact | None:
    """Return the fact that a record contains; None if its type or version is unknown.

    :raises CorruptRecordError: the key or value does not match its type and version.
    """
    key = memoryview(record.key or b"")
    if len(key) < _TYPE.size:
        raise CorruptRecordError(f"the record at {record.offset} has no key that says its type")
    (record_type,) = _TYPE.unpack_from(key)
    if record_type != _KEY_TYPE:
        return None
    try:
        named = decode_body("TransactionLogKey", 0, key, _TYPE.size, max_elements=_MAX_ELEMENTS)
        assert isinstance(named, TransactionLogKey)
        if record.value is None:
            return TransactionFact(named.transactional_id, None)
        metadata = _metadata_in(memoryview(record.value))
    except RemoteProtocolError as e:
        raise CorruptRecordError(f"the record at {record.offset} cannot be read: {e}") from e
    return None if metadata is None else TransactionFact(named.transactional_id, metadata)


def _metadata_in(value: memoryview) -> TransactionMetadata | None:
    if len(value) < _TYPE.size:
        raise CorruptRecordError(f"a value of {len(value)} bytes has no version")
    (version,) = _TYPE.unpack_from(value)
    if version not in _VALUE_VERSIONS:
        return None
    body = decode_body(
        "TransactionLogValue", version, value, _TYPE.size, max_elements=_MAX_ELEMENTS
    )
    assert isinstance(body, TransactionLogValue)
    try:
        state = TransactionState(body.transaction_status)
    except ValueError:
        raise CorruptRecordError(f"there is no state {body.transaction_status}") from None
    return TransactionMetadata(
        producer_id=body.producer_id,
        producer_epoch=body.producer_epoch,
        previous_producer_id=body.previous_producer_id,
        next_producer_id=body.next_producer_id,
        timeout_ms=body.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            TopicPartition(of_topic.topic, index)
            for of_topic in body.transaction_partitions or ()
            for index in of_topic.partition_ids
        ),
        updated_ms=body.transaction_last_update_timestamp_ms,
        started_ms=body.transaction_start_timestamp_ms,
        client_version=body.client_transaction_version,
    )


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """Return the partition indices of each topic, both sorted."""
    grouped: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        grouped.setdefault(topic, []).append(partition)
    return grouped


def transaction_state_topic(
    *, partitions: int, replication_factor: int, min_isr: int, segment_bytes: int
) -> InternalTopic:
    return InternalTopic(
        name=TRANSACTIONS_TOPIC,
        num_partitions=partitions,
        replication_factor=replication_factor,
        configs={
            "cleanup.policy": "compact",
            # Kafka documents "uncompressed"; this project's brokers write uncompressed records too.
            "compression.type": "producer",
            "unclean.leader.election.enable": "false",
            "min.insync.replicas": str(min_isr),
            "segment.bytes": str(segment_bytes),
        },
        takes_fewer_replicas=False,
        is_closed=True,
        schema="kraftjbod/broker/transactions/transaction_records.py",
    )
