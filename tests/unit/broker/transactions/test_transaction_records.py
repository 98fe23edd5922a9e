"""Records of ``__transaction_state`` in Kafka's format."""

from __future__ import annotations

import pytest

from kraftjbod.broker.transactions.transaction_records import (
    TransactionFact,
    TransactionMetadata,
    TransactionState,
    fact_of,
    record_of,
)
from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.protocol.records import Record

ONGOING = TransactionMetadata(
    producer_id=7,
    producer_epoch=3,
    previous_producer_id=5,
    next_producer_id=9,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({TopicPartition("t", 1), TopicPartition("t", 0)}),
    updated_ms=11,
    started_ms=10,
    client_version=2,
)


def test_transaction_record_has_kafkas_bytes() -> None:
    old = record_of(TransactionFact("x", ONGOING), version=0, now_ms=1)
    assert old.key is not None and old.key.hex() == "0000" + "000178"
    assert old.value is not None and old.value.hex() == (
        "0000" + "0000000000000007" + "0003" + "0000ea60" + "01"
        "00000001" + "000174" + "00000002" + "00000000" + "00000001"
        "000000000000000b" + "000000000000000a"
    )
    new = record_of(TransactionFact("x", ONGOING), version=1, now_ms=1)
    assert new.value is not None and new.value.hex() == (
        "0001" + "0000000000000007" + "0003" + "0000ea60" + "01"
        "02" + "0274" + "03" + "00000000" + "00000001" + "00"
        "000000000000000b" + "000000000000000a"
        # Tagged fields: the previous id, the next id, and the client's version.
        "03" + "0008" + "0000000000000005" + "0108" + "0000000000000009" + "0202" + "0002"
    )


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("state", [s for s in TransactionState if s < TransactionState.DEAD])
def test_transaction_record_is_decoded_in_all_states_and_versions(
    version: int, state: TransactionState
) -> None:
    kept = TransactionMetadata(producer_id=7, producer_epoch=3, timeout_ms=1, state=state)
    for metadata in (kept, ONGOING if version else kept, None):
        fact = TransactionFact("x", metadata)
        assert fact_of(record_of(fact, version=version, now_ms=1)) == fact


def test_unknown_transaction_record_is_ignored_and_malformed_one_raises() -> None:
    known = record_of(TransactionFact("x", ONGOING), version=1, now_ms=1)
    assert fact_of(Record(key=b"\0\1later", value=b"")) is None
    assert fact_of(Record(key=known.key, value=b"\0\7later")) is None
    for key, value in ((b"\0", b""), (known.key, b"\0"), (known.key, (known.value or b"")[:-3])):
        with pytest.raises(CorruptRecordError):
            fact_of(Record(key=key, value=value))
    state_at = 2 + 8 + 2 + 4
    strange = bytearray(known.value or b"")
    strange[state_at] = 99
    with pytest.raises(CorruptRecordError, match="no state 99"):
        fact_of(Record(key=known.key, value=bytes(strange)))
