"""Generated classes, and the source of generated functions."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.protocol.kafka_compiler import Compiler, build_classes, long_uvarint, uvarint
from kraftjbod.protocol.kafka_schema import load_message

CLASSES = build_classes(load_message("FetchRequest"))
FetchRequest = CLASSES["FetchRequest"]


def test_messages_are_values_with_defaults() -> None:
    one, other = FetchRequest(max_wait_ms=5), FetchRequest(max_wait_ms=5)
    assert one == other
    assert one != FetchRequest()
    assert one != CLASSES["FetchTopic"]()
    assert (one.topics, one.replica_id, one.replica_state) == ([], -1, None)
    one.topics.append(CLASSES["FetchTopic"](topic="t"))
    assert other.topics == []
    assert "max_wait_ms=5" in repr(one)
    with pytest.raises(AttributeError):
        one.no_such_field = 1
    with pytest.raises(TypeError):
        FetchRequest(no_such_field=1)


def test_inner_structs_are_attributes_of_the_message() -> None:
    assert FetchRequest.FetchPartition is CLASSES["FetchPartition"]  # type: ignore[attr-defined] # generated
    assert CLASSES["FetchPartition"].__qualname__ == "FetchRequest.FetchPartition"


def test_neighbours_of_fixed_size_are_read_at_once() -> None:
    source = Compiler(load_message("FetchRequest"), 12).source()
    assert (
        "m.partition, m.current_leader_epoch, m.fetch_offset, m.last_fetched_epoch,"
        " m.log_start_offset, m.partition_max_bytes, = unpack_iiqiqi(b, p)\n    p += 32\n"
    ) in source


@pytest.mark.parametrize("value", [128, 300, 2**14, 2**31 - 1])
def test_varints_of_several_bytes(value: int) -> None:
    encoded = uvarint(value)
    assert long_uvarint(memoryview(encoded), 1, encoded[0]) == (value, len(encoded))


@pytest.mark.parametrize("encoded", [uvarint(2**31), uvarint(2**35), b"\x80" * 9 + b"\x01"])
def test_varints_that_are_no_length(encoded: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        long_uvarint(memoryview(encoded), 1, encoded[0])
