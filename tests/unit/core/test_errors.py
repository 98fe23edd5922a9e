"""``core/errors.py``: exceptions and their Kafka error codes."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode

from kraftjbod.core.errors import (
    MAX_MESSAGE_CHARS,
    RETRIABLE_CODES,
    CorruptRecordError,
    ErrorCode,
    InvalidTransition,
    KafkaStorageError,
    NotLeaderOrFollowerError,
    OperatingError,
    ProtocolError,
    RemoteProtocolError,
)


def test_operating_error_has_code_of_class_or_of_caller() -> None:
    assert NotLeaderOrFollowerError("x").code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert OperatingError("x", code=ErrorCode.INVALID_REQUEST).code is ErrorCode.INVALID_REQUEST
    assert OperatingError("x").code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_kafka_storage_error_is_retriable_and_has_directory_id() -> None:
    error = KafkaStorageError("dir is offline", directory_id=b"d" * 16)
    assert error.retriable
    assert error.directory_id == b"d" * 16


def test_storage_error_subclasses_share_one_code_and_keep_context() -> None:
    """KIP-18: the exception carries the context that its handler needs."""
    for kind in KafkaStorageError.__subclasses__():
        error = kind("m", directory_id=b"d" * 16, path="/d", replica="t-0", operation="append")
        assert (error.code, error.retriable) == (ErrorCode.KAFKA_STORAGE_ERROR, True)
        assert (error.path, error.replica, error.operation) == ("/d", "t-0", "append")
    assert CorruptRecordError("m").offset is None
    assert CorruptRecordError("m", offset=3).code is ErrorCode.CORRUPT_MESSAGE


def test_permanent_error_codes_are_not_retriable() -> None:
    final = {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
    assert not final & RETRIABLE_CODES


def test_error_codes_and_retriability_agree_with_kio() -> None:
    """kio's table is generated from Kafka's: same number, same name, same retriability."""
    for code in set(ErrorCode) - {
        ErrorCode.FOREIGN_METADATA
    }:  #  FOREIGN_METADATA is internal to our daemons.
        theirs = KioErrorCode(int(code))
        assert code.name == theirs.name.upper()
        assert (code in RETRIABLE_CODES) == theirs.retriable, code


def test_protocol_error_base_class_cannot_be_raised() -> None:
    with pytest.raises(AssertionError):
        ProtocolError("?")
    assert str(RemoteProtocolError("torn")) == "torn"


def test_invalid_transition_prints_its_history() -> None:
    error = InvalidTransition("cannot unfence", ("registered", "fenced"))
    assert str(error) == "cannot unfence\n  registered\n  fenced"


def test_operating_error_shortens_long_messages() -> None:
    error = OperatingError("x" * 10**6, code=ErrorCode.INVALID_REQUEST)
    assert len(error.message) == len(str(error)) == MAX_MESSAGE_CHARS


def test_unknown_error_code_keeps_its_number() -> None:
    """Before, it raised a ValueError in the middle of a fetch loop."""
    code = ErrorCode(32_000)
    assert (int(code), code.name, code.is_known) == (32_000, "UNKNOWN_ERROR_CODE_32000", False)
    assert code == ErrorCode(32_000)
    assert code not in set(ErrorCode)
    assert OperatingError("said by a newer broker", code=code).code == 32_000
    assert all(known.is_known for known in ErrorCode)
    with pytest.raises(ValueError, match="is not a valid"):
        ErrorCode(1 << 15)
