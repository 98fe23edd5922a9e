"""Limits that must fit each other."""

from __future__ import annotations

from kraftjbod.core import request_limits as limits
from kraftjbod.core.errors import MAX_MESSAGE_CHARS
from kraftjbod.protocol import rpc_codec


def test_forwarded_request_limits_fit_controller_limits() -> None:
    assert limits.MAX_FORWARDED_ITEMS <= limits.MAX_ITEMS_PER_REQUEST
    assert limits.MAX_FORWARDED_BYTES < rpc_codec.MAX_ELEMENTS * 2


def test_message_and_config_value_limits_fit_every_response_version() -> None:
    """Old versions count the bytes of a text in 16 bits; a character takes up to four bytes."""
    assert MAX_MESSAGE_CHARS * 4 < 2**15
    assert limits.MAX_CONFIG_VALUE_BYTES < 2**15
