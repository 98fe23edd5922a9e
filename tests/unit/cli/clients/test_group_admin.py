"""Decoding of a member's assignment.

``integration/cli/test_consumer_groups_tool.py`` sends the requests to real brokers."""

from __future__ import annotations

import struct

import pytest

from kraftjbod.cli.clients.group_admin import by_topic, parse_assignment
from kraftjbod.core.ids import TopicPartition


def assignment(**topics: list[int]) -> bytes:
    data = struct.pack(">hi", 3, len(topics))
    for name, numbers in topics.items():
        data += struct.pack(f">h{len(name)}si", len(name), name.encode(), len(numbers))
        data += struct.pack(f">{len(numbers)}i", *numbers)
    return data + struct.pack(">i", -1)


def test_parse_assignment_decodes_assignment_of_kafka_consumer() -> None:
    found = parse_assignment(assignment(t=[2, 0], a=[1]))
    assert found == (TopicPartition("a", 1), TopicPartition("t", 0), TopicPartition("t", 2))
    assert by_topic(found) == {"a": [found[0]], "t": [found[1], found[2]]}


@pytest.mark.parametrize("cut", [0, 1, 5, 7, 9, 12, 16])
def test_parse_assignment_of_truncated_bytes_is_empty(cut: int) -> None:
    assert parse_assignment(assignment(t=[1])[:cut]) == ()


def test_parse_assignment_with_impossible_partition_count_is_empty() -> None:
    assert parse_assignment(struct.pack(">hihsi", 0, 1, 1, b"t", 2**31 - 1)) == ()
    assert parse_assignment(struct.pack(">hihsi", 0, 1, 1, b"t", -1)) == ()
