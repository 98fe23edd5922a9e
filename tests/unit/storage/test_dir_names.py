"""Names of replica directories and files in a log directory."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import TopicPartition, Uuid
from kraftjbod.storage.dir_names import (
    ReplicaDirKind,
    doomed_dir_name,
    future_dir_name,
    offset_file_name,
    parse_offset_file,
    parse_replica_dir,
)

UNIQUE = Uuid(bytes(range(16)))
topics = st.text("abcXYZ019._-", min_size=1, max_size=249)


@given(topic=topics, partition=st.integers(0, 2**31 - 1))
def test_parse_replica_dir_accepts_current_names(topic: str, partition: int) -> None:
    tp = TopicPartition(topic, partition)
    parsed = parse_replica_dir(str(tp))
    assert parsed is not None
    assert (parsed.kind, parsed.topic_partition) == (ReplicaDirKind.CURRENT, tp)


@given(topic=topics, partition=st.integers(0, 2**31 - 1))
def test_doomed_dir_name_fits_255_bytes_and_keeps_its_kind(topic: str, partition: int) -> None:
    for kind in (ReplicaDirKind.DELETE, ReplicaDirKind.STRAY):
        name = doomed_dir_name(TopicPartition(topic, partition), kind, UNIQUE)
        assert len(name) <= 255
        parsed = parse_replica_dir(name)
        assert parsed is not None
        assert parsed.kind is kind


@pytest.mark.parametrize("name", ["lost+found", "topic", "t-01", "t-", "-0", "t-0x", "a b-0", ""])
def test_parse_replica_dir_returns_none_for_other_names(name: str) -> None:
    assert parse_replica_dir(name) is None


def test_parse_replica_dir_recognises_a_future_copy() -> None:
    parsed = parse_replica_dir(f"t-3.{UNIQUE.hex()}-future")
    assert parsed is not None
    assert (parsed.kind, parsed.topic_partition) == (ReplicaDirKind.FUTURE, TopicPartition("t", 3))


def test_future_and_deleted_names_contain_the_id_of_the_move() -> None:
    tp = TopicPartition("t", 3)
    for name in (
        future_dir_name(tp, UNIQUE),
        doomed_dir_name(tp, ReplicaDirKind.DELETE, UNIQUE),
    ):
        parsed = parse_replica_dir(name)
        assert parsed is not None
        assert (parsed.topic_partition, parsed.unique) == (tp, UNIQUE)
    current = parse_replica_dir("t-3")
    assert current is not None
    assert current.unique is None


@given(topic=topics, partition=st.integers(0, 2**31 - 1))
def test_future_dir_name_is_complete_or_refused(topic: str, partition: int) -> None:
    tp = TopicPartition(topic, partition)
    if len(str(tp)) + 40 > 255:
        with pytest.raises(OperatingError, match="The topic name is too long"):
            future_dir_name(tp, UNIQUE)
    else:
        parsed = parse_replica_dir(future_dir_name(tp, UNIQUE))
        assert parsed is not None
        assert (parsed.kind, parsed.topic_partition) == (ReplicaDirKind.FUTURE, tp)


def test_offset_file_names_are_formatted_and_parsed() -> None:
    assert offset_file_name(42, ".log") == "00000000000000000042.log"
    assert parse_offset_file("00000000000000000042.log") == (42, ".log")
    assert parse_offset_file("42.log") is None
    assert parse_offset_file("leader-epoch-checkpoint") is None
