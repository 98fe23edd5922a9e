"""Source of the generated codec functions, and the functions that it calls."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.protocol.schemas.kafka_compiler import Compiler, long_uvarint, uvarint
from kraftjbod.protocol.schemas.kafka_schema import load_message


def test_compiler_reads_adjacent_fixed_size_fields_at_once() -> None:
    source = Compiler(load_message("FetchRequest"), 12).source()
    assert (
        "m.partition, m.current_leader_epoch, m.fetch_offset, m.last_fetched_epoch,"
        " m.log_start_offset, m.partition_max_bytes, = unpack_iiqiqi(b, p)\n    p += 32\n"
    ) in source


@pytest.mark.parametrize("value", [128, 300, 2**14, 2**31 - 1])
def test_long_uvarint_reads_multibyte_values(value: int) -> None:
    encoded = uvarint(value)
    assert long_uvarint(memoryview(encoded), 1, encoded[0]) == (value, len(encoded))


@pytest.mark.parametrize("encoded", [uvarint(2**31), uvarint(2**35), b"\x80" * 9 + b"\x01"])
def test_long_uvarint_rejects_values_that_are_no_length(encoded: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        long_uvarint(memoryview(encoded), 1, encoded[0])
