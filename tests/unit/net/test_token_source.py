"""Tokens of an identity provider and of files, and answers without a token."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.core.errors import ConnectionLostError, RemoteProtocolError
from kraftjbod.net.token_source import TokenSource
from tests.identity_provider import CLIENT_ID, CLIENT_SECRET, IdentityProvider


def test_token_of_provider_is_used_until_four_fifths_of_its_lifetime() -> None:
    provider, clock = IdentityProvider(), [0.0]
    with provider.serving() as url:
        source = TokenSource(
            url=f"{url}/token",
            client_id=CLIENT_ID,
            client_secret=CLIENT_SECRET,
            scope="kafka",
            now_s=lambda: clock[0],
        )
        token, expires_s = source.token()
        clock[0] = expires_s * 0.8 - 1
        assert source.token() == (token, expires_s)
        assert provider.requests == {"/token": 1}
        clock[0] = expires_s * 0.8
        source.token()
        assert provider.requests == {"/token": 2}
    assert CLIENT_SECRET not in repr(source) and token not in repr(source)


def test_refused_client_gets_the_answer_of_the_provider_without_the_secret() -> None:
    with IdentityProvider().serving() as url:
        source = TokenSource(url=f"{url}/token", client_id=CLIENT_ID, client_secret="canary")
        with pytest.raises(ConnectionLostError, match="invalid_client") as caught:
            source.token()
    assert "canary" not in str(caught.value)


def test_token_of_file_is_read_each_time(tmp_path: Path) -> None:
    provider, path = IdentityProvider(), tmp_path / "token"
    source = TokenSource(url=f"file://{path}")
    for user in ("alice", "bob"):
        path.write_text(f"{provider.token(user)}\n")
        assert source.token()[0] == path.read_text().strip()


@pytest.mark.parametrize("text", ["", "canary", "a.b.c", "canary.e30.x", "\xff"])
def test_file_without_a_token_is_refused_without_quoting_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "token"
    path.write_text(text)
    with pytest.raises(RemoteProtocolError, match="not a JSON web token with an expiry") as caught:
        TokenSource(url=f"file://{path}").token()
    assert "canary" not in str(caught.value)


def test_answer_without_a_token_names_the_address() -> None:
    with IdentityProvider().serving() as url:
        jwks = TokenSource(url=f"{url}/jwks", client_id="x", client_secret="y")
        with pytest.raises((RemoteProtocolError, ConnectionLostError), match="/jwks"):
            jwks.token()
