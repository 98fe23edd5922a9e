"""The error tree."""

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


def test_a_class_gives_the_code_and_a_caller_may_name_another() -> None:
    assert NotLeaderOrFollowerError("x").code is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert OperatingError("x", code=ErrorCode.INVALID_REQUEST).code is ErrorCode.INVALID_REQUEST
    assert OperatingError("x").code is ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_dead_directory_makes_clients_refresh() -> None:
    error = KafkaStorageError("dir is offline", directory_id=b"d" * 16)
    assert error.retriable
    assert error.directory_id == b"d" * 16


def test_every_failure_of_a_disk_is_one_code_on_the_wire_and_says_more_inside() -> None:
    """KIP-18: the exception carries what its handler needs to know."""
    for kind in KafkaStorageError.__subclasses__():
        error = kind("m", directory_id=b"d" * 16, path="/d", replica="t-0", operation="append")
        assert (error.code, error.retriable) == (ErrorCode.KAFKA_STORAGE_ERROR, True)
        assert (error.path, error.replica, error.operation) == ("/d", "t-0", "append")
    assert CorruptRecordError("m").offset is None
    assert CorruptRecordError("m", offset=3).code is ErrorCode.CORRUPT_MESSAGE


def test_codes_that_a_retry_cannot_mend_are_not_retriable() -> None:
    final = {
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
    assert not final & RETRIABLE_CODES


def test_codes_and_retriability_agree_with_an_independent_library() -> None:
    """kio's table was made from Kafka's own: same number, same name, same verdict."""
    for code in set(ErrorCode) - {ErrorCode.FOREIGN_METADATA}:  # Between our own daemons only.
        theirs = KioErrorCode(int(code))
        assert code.name == theirs.name.upper()
        assert (code in RETRIABLE_CODES) == theirs.retriable, code


def test_the_bare_protocol_error_cannot_be_raised() -> None:
    with pytest.raises(AssertionError):
        ProtocolError("?")
    assert str(RemoteProtocolError("torn")) == "torn"


def test_an_invalid_transition_says_its_story() -> None:
    error = InvalidTransition("cannot unfence", ("registered", "fenced"))
    assert str(error) == "cannot unfence\n  registered\n  fenced"


def test_a_message_that_quotes_what_was_sent_stays_short() -> None:
    error = OperatingError("x" * 10**6, code=ErrorCode.INVALID_REQUEST)
    assert len(error.message) == len(str(error)) == MAX_MESSAGE_CHARS


def test_a_code_of_the_future_keeps_its_number_and_means_nothing_that_is_known() -> None:
    """It was a ValueError in the middle of a fetch loop."""
    code = ErrorCode(32_000)
    assert (int(code), code.name, code.is_known) == (32_000, "UNKNOWN_ERROR_CODE_32000", False)
    assert code == ErrorCode(32_000)
    assert code not in set(ErrorCode)
    assert OperatingError("said by a newer broker", code=code).code == 32_000
    assert all(known.is_known for known in ErrorCode)
    with pytest.raises(ValueError, match="is not a valid"):
        ErrorCode(1 << 15)
