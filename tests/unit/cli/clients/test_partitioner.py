"""The default partitioner chooses the same partitions as Kafka's clients."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.partitioner.default import murmur2 as kafka_python_murmur2

from kraftjbod.cli.clients.partitioner import murmur2, partition_of


@given(st.binary(max_size=64))
def test_murmur2_equals_kafka_python(data: bytes) -> None:
    assert murmur2(data) == kafka_python_murmur2(data) & 0xFFFFFFFF


@given(st.binary(max_size=16), st.integers(1, 50))
def test_partition_of_returns_valid_partition_for_any_key(key: bytes, partitions: int) -> None:
    assert 0 <= partition_of(key, partitions) < partitions
