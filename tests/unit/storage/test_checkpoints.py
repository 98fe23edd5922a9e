"""Kafka's text files: offset checkpoints, leader epochs, partition metadata, clean shutdown."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.ids import BrokerEpoch, TopicId, TopicPartition, Uuid
from kraftjbod.storage.checkpoints import (
    CleanShutdown,
    CorruptCheckpointError,
    format_clean_shutdown,
    format_leader_epochs,
    format_offsets,
    format_partition_metadata,
    parse_clean_shutdown,
    parse_leader_epochs,
    parse_offsets,
    parse_partition_metadata,
)

TOPIC_ID = TopicId(bytes(range(16)))
partitions = st.builds(TopicPartition, st.text("ab.-_1", min_size=1), st.integers(0, 999))


def test_format_offsets_equals_kafkas_format() -> None:
    text = format_offsets({TopicPartition("t", 1): 7, TopicPartition("a", 0): 3})
    assert text == b"0\n2\na 0 3\nt 1 7\n"


@given(st.dictionaries(partitions, st.integers(-1, 2**63 - 1)))
def test_offsets_are_read_as_written(offsets: dict[TopicPartition, int]) -> None:
    assert parse_offsets(format_offsets(offsets).decode(), "p") == offsets


@given(st.lists(st.tuples(st.integers(0, 2**31), st.integers(0, 2**63))))
def test_leader_epochs_are_read_as_written(entries: list[tuple[int, int]]) -> None:
    assert parse_leader_epochs(format_leader_epochs(entries).decode(), "p") == entries


@pytest.mark.parametrize(
    "text", ["", "1\n0\n", "0\n2\na 0 1\n", "0\n1\na 0\n", "0\n1\na x 1\n", "0\nx\n", "0\n1\na 0 x"]
)
def test_parse_offsets_rejects_a_damaged_file_and_names_it(text: str) -> None:
    with pytest.raises(CorruptCheckpointError, match="the/path"):
        parse_offsets(text, "the/path")


@pytest.mark.parametrize("text", ["", "0\n1\n1 2 3\n", "0\n1\n-1 2\n"])
def test_parse_leader_epochs_rejects_a_damaged_file_and_names_it(text: str) -> None:
    with pytest.raises(CorruptCheckpointError, match="the/path"):
        parse_leader_epochs(text, "the/path")


def test_partition_metadata_is_read_as_written_and_damage_is_rejected() -> None:
    text = format_partition_metadata(TOPIC_ID).decode()
    assert text == f"version: 0\ntopic_id: {TOPIC_ID}"
    assert parse_partition_metadata(text, "p") == TOPIC_ID
    for damaged in ("", "version: 0", "topic_id: x"):
        with pytest.raises(CorruptCheckpointError):
            parse_partition_metadata(damaged, "p")


def test_clean_shutdown_is_read_as_written_and_damage_is_rejected() -> None:
    stop = CleanShutdown(BrokerEpoch(12), Uuid(bytes(range(16))))
    text = format_clean_shutdown(stop).decode()
    assert json.loads(text) == {
        "version": 0,
        "brokerEpoch": 12,
        "incarnationId": str(stop.incarnation_id),
    }
    assert parse_clean_shutdown(text, "p") == stop
    assert parse_clean_shutdown('{"version": 0, "brokerEpoch": 12}', "p") == (12, None)
    assert parse_clean_shutdown("{}", "p") == CleanShutdown() == (-1, None)
    for damaged in ("", "[]"):
        with pytest.raises(CorruptCheckpointError):
            parse_clean_shutdown(damaged, "p")
