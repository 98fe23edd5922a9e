"""Tokens: the accepted ones, the refused ones, and messages without the token."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any, Final

import pytest
from joserfc import jwt
from joserfc.jwk import OctKey

from kraftjbod.broker.security.jwks import Jwks, parse_jwks
from kraftjbod.broker.security.jwt_validator import ClaimRules, JwtValidator, ValidToken
from kraftjbod.net.sasl_mechanism import LoginFailedError
from tests.identity_provider import AUDIENCE, ISSUER, IdentityProvider

NOW_S: Final = 1_800_000_000
RULES: Final = ClaimRules(audiences=frozenset({AUDIENCE, "second"}), issuer=ISSUER)


class Keys:
    """The keys of a provider, and the number of tokens with unknown keys."""

    def __init__(self, provider: IdentityProvider | None) -> None:
        self.provider = provider
        self.unknown = 0

    @property
    def jwks(self) -> Jwks:
        return Jwks() if self.provider is None else parse_jwks(self.provider.jwks())

    def report_unknown_key(self) -> None:
        self.unknown += 1


PROVIDER: Final = IdentityProvider()


def claims(**changed: Any) -> dict[str, Any]:
    values = {
        "sub": "alice",
        "iss": ISSUER,
        "aud": AUDIENCE,
        "iat": NOW_S - 10,
        "exp": NOW_S + 50,
        **changed,
    }
    return {name: value for name, value in values.items() if value is not None}


def validate(token: str, rules: ClaimRules = RULES, keys: Keys | None = None) -> ValidToken:
    validator = JwtValidator(rules, keys or Keys(PROVIDER), wall_ms=lambda: NOW_S * 1000)
    return validator.validate(token)


def refusal(token: str, rules: ClaimRules = RULES, keys: Keys | None = None) -> str:
    with pytest.raises(LoginFailedError) as caught:
        validate(token, rules, keys)
    reason = str(caught.value)
    for part in token.split("."):
        assert len(part) < 8 or part not in reason
    return reason


@pytest.mark.parametrize(
    "algorithm", ["RS256", "RS512", "PS256", "PS384", "ES256", "ES384", "ES512"]
)
def test_token_by_each_algorithm_is_valid_until_its_expiry(algorithm: str) -> None:
    provider = IdentityProvider()
    provider.rotate("key", algorithm)
    assert validate(provider.sign(claims()), keys=Keys(provider)) == ValidToken("alice", 50_000)


@pytest.mark.parametrize(
    ("changed", "rules", "valid"),
    [
        ({"aud": ["x", "second"]}, {}, ValidToken("alice", 50_000)),
        ({"aud": None, "iss": None}, {"audiences": frozenset(), "issuer": None}, None),
        ({"email": "bob@x"}, {"subject_claim": "email"}, ValidToken("bob@x", 50_000)),
        ({"scope": ["a", "b"], "scp": "c"}, {}, None),
        ({"exp": NOW_S - 29}, {}, ValidToken("alice", 1000)),
        ({"exp": NOW_S + 0.5}, {}, ValidToken("alice", 500)),
        ({"iat": NOW_S + 30, "nbf": NOW_S + 30}, {}, None),
    ],
)
def test_token_with_accepted_claims_is_valid(
    changed: dict[str, Any], rules: dict[str, Any], valid: ValidToken | None
) -> None:
    found = validate(PROVIDER.sign(claims(**changed)), replace(RULES, **rules))
    assert found == (valid or ValidToken("alice", 50_000))


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"exp": None}, "no expiry"),
        ({"exp": "soon"}, "exp of the token is not a number"),
        ({"exp": True}, "exp of the token is not a number"),
        ({"exp": -1}, "not a time"),
        ({"exp": 10**400}, "not a time"),
        ({"exp": NOW_S - 30}, "expired 30 s ago"),
        ({"iat": None}, "no time of issue"),
        ({"iat": NOW_S + 31}, "valid in 31 s"),
        ({"nbf": NOW_S + 31}, "valid in 31 s"),
        ({"aud": None}, "the audience of the token is None"),
        ({"aud": "other"}, "the audience of the token is 'other', expected kraftjbod or second"),
        ({"aud": [["kraftjbod"], 7]}, "the audience"),
        ({"aud": {"kraftjbod": 1}}, "the audience"),
        ({"iss": None}, "the issuer of the token is None"),
        ({"iss": ISSUER + "/"}, "the issuer"),
        ({"sub": None}, "no user name"),
        ({"sub": "  "}, "no user name"),
        ({"sub": 7}, "no user name"),
        ({"scope": ["a", "a "]}, "scope twice"),
        ({"scope": ["a", ""]}, "scope without a name"),
        ({"scope": {}}, "scope without a name"),
    ],
)
def test_token_with_other_claims_is_refused(changed: dict[str, Any], reason: str) -> None:
    assert reason in refusal(PROVIDER.sign(claims(**changed)))


def encoded(value: Any) -> str:
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def test_token_without_signature_or_by_a_symmetric_algorithm_is_refused() -> None:
    payload = encoded(claims())
    assert "not a signed" in refusal(f"{encoded({'alg': 'none'})}.{payload}.")
    for algorithm in ("none", "HS256", "RS1", "", None, ["ES256"]):
        header = encoded({"alg": algorithm, "kid": "first"})
        assert "algorithm of the token" in refusal(f"{header}.{payload}.AAAA")
    public = OctKey.import_key(PROVIDER.jwks())
    confused = jwt.encode({"alg": "HS256", "kid": "first"}, claims(), public)
    assert "algorithm of the token" in refusal(confused)


def test_token_with_wrong_signature_is_refused() -> None:
    other = IdentityProvider()
    assert "signature of the token is wrong" in refusal(other.sign(claims()))
    header, payload, signature = PROVIDER.sign(claims()).split(".")
    forged = encoded(claims(sub="root"))
    assert "signature of the token is wrong" in refusal(f"{header}.{forged}.{signature}")
    assert "signature of the token is wrong" in refusal(f"{header}.{payload}.{signature[:-8]}")


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("", "not a signed JSON web token"),
        ("a.b", "not a signed JSON web token"),
        ("a.b.c.d.e", "not a signed JSON web token"),
        ("=.b.c", "not a signed JSON web token"),
        ("AAAA.AAAA.AAAA", "header of the token is not JSON"),
        (f"{encoded(b'[' * 40_000)}.AAAA.AAAA", "header of the token is not JSON"),
        (f"{encoded('alg')}.AAAA.AAAA", "header of the token is not a JSON object"),
        (f"{encoded({'alg': 'ES256', 'kid': 7})}.AAAA.AAAA", "is not a string"),
        (f"{encoded({'alg': 'RS256', 'kid': 'first'})}.AAAA.AAAA", "for another algorithm"),
        ("a" * 70_000, "more than 65536 characters"),
    ],
)
def test_malformed_token_is_refused(token: str, reason: str) -> None:
    assert reason in refusal(token)


def test_token_with_critical_header_or_other_payload_is_refused() -> None:
    header = {"alg": "ES256", "kid": "first", "crit": ["b64"], "b64": False}
    assert "crit" in refusal(f"{encoded(header)}.AAAA.AAAA")
    key, algorithm = PROVIDER.keys["first"], ["ES256"]
    from joserfc import jws

    listed = jws.serialize_compact({"alg": "ES256", "kid": "first"}, b"[]", key, algorithm)
    assert "payload of the token is not a JSON object" in refusal(listed)


def test_unknown_key_id_is_reported_and_a_known_one_is_not() -> None:
    keys = Keys(PROVIDER)
    validate(PROVIDER.sign(claims()), keys=keys)
    assert keys.unknown == 0
    assert "no key with the key id" in refusal(PROVIDER.sign(claims(), kid="new"), keys=keys)
    assert keys.unknown == 1
    assert "was not read yet" in refusal(PROVIDER.sign(claims()), keys=Keys(None))


def test_token_without_key_id_is_valid_if_one_key_has_its_algorithm() -> None:
    provider = IdentityProvider()
    token = provider.sign(claims(), kid=None)
    assert validate(token, keys=Keys(provider)).user == "alice"
    kept = dict(provider.keys)
    provider.rotate("second")
    provider.keys |= kept
    assert "has several keys" in refusal(provider.sign(claims(), kid=None), keys=Keys(provider))
