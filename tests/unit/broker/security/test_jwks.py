"""JWKS documents: usable keys, keys that are left out, and documents that are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from joserfc.jwk import ECKey, OctKey, RSAKey

from kraftjbod.broker.security.jwks import MAX_JWKS_BYTES, MAX_JWKS_KEYS, parse_jwks
from kraftjbod.core.errors import ConfigError

EC = ECKey.generate_key("P-256").as_dict(private=False)
RSA = RSAKey.generate_key(2048).as_dict(private=False)


def document(*keys: Any) -> bytes:
    return json.dumps({"keys": keys}).encode()


@pytest.mark.parametrize(
    ("members", "algorithms"),
    [
        (EC, {"ES256"}),
        ({**EC, "alg": "ES256", "use": "sig", "key_ops": ["verify"]}, {"ES256"}),
        (RSA, {"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
        ({**RSA, "alg": "PS256"}, {"PS256"}),
        (ECKey.generate_key("P-521").as_dict(private=False), {"ES512"}),
        (ECKey.generate_key("P-384").as_dict(private=True), {"ES384"}),
    ],
)
def test_jwks_key_has_the_algorithms_of_its_kind(members: Any, algorithms: set[str]) -> None:
    (key,) = parse_jwks(document({**members, "kid": "one"})).keys
    assert (key.key_id, key.algorithms) == ("one", algorithms)
    assert not key.key.is_private


@pytest.mark.parametrize(
    "members",
    [
        OctKey.generate_key(256).as_dict(private=True),
        {**RSA, "use": "enc"},
        {**RSA, "key_ops": ["encrypt"]},
        {**RSA, "alg": "HS256"},
        {**RSA, "alg": "none"},
        {**EC, "alg": "ES384"},
        {**EC, "alg": ["ES256"]},
        {**EC, "x": EC["y"]},
        {**EC, "crv": "secp256k1"},
        {**EC, "kid": "k" * 1001},
        {**EC, "kid": 7},
        {"kty": "RSA", "n": "AQAB", "e": "AQAB"},
        {"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"},
        {"kty": ["RSA"]},
        {},
        7,
    ],
)
def test_jwks_leaves_out_a_key_that_must_not_verify_tokens(members: Any) -> None:
    found = parse_jwks(document({**EC, "kid": "good"}, members))
    assert ([key.key_id for key in found.keys], found.left_out) == (["good"], 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", 'list "keys"'),
        (b'{"keys":{}}', 'list "keys"'),
        (document(), "has no key for signatures"),
        (document(*[EC] * (MAX_JWKS_KEYS + 1)), "more than 100 keys"),
        (b" " * (MAX_JWKS_BYTES + 1), "more than 262144 bytes"),
    ],
)
def test_malformed_jwks_is_refused(text: bytes, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_jwks(text)


def test_find_keys_selects_by_key_id_and_algorithm() -> None:
    found = parse_jwks(document({**EC, "kid": "a"}, {**RSA, "kid": "b"}, {**EC, "kid": "c"}))
    assert [key.key_id for key in found.find_keys("a", "ES256")] == ["a"]
    assert found.find_keys("a", "RS256") == []
    assert [key.key_id for key in found.find_keys(None, "ES256")] == ["a", "c"]
    assert (found.has_key("b"), found.has_key("d"), found.has_key(None)) == (True, False, True)
