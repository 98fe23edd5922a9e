"""The credential of a node."""

from __future__ import annotations

from kraftjbod.net.plain_credential import PlainCredential


def test_plain_credential_has_the_token_of_rfc_4616_and_shows_no_password() -> None:
    credential = PlainCredential("broker-1", "canary")
    assert credential.token == b"\0broker-1\0canary"
    assert "canary" not in repr(credential)
