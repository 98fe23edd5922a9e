"""The login of a node on the RPC."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from kraftjbod.protocol.rpc_codec import REQUESTS, decode_request, encode_request
from kraftjbod.protocol.rpc_login_messages import LOGIN_REQUESTS, MAX_TOKEN_BYTES, LoginRequestRpc


def test_login_request_is_known_only_to_listeners_and_shows_no_token() -> None:
    request = LoginRequestRpc(mechanism="PLAIN", token=b"\0user\0canary")
    assert "canary" not in repr(request)
    assert LoginRequestRpc.api not in REQUESTS
    frame = encode_request(1, request)[4:]
    assert decode_request(frame).body is None
    assert decode_request(frame, LOGIN_REQUESTS).body == request


def test_login_request_limits_its_token() -> None:
    with pytest.raises(ValidationError):
        LoginRequestRpc(mechanism="PLAIN", token=b"x" * (MAX_TOKEN_BYTES + 1))
