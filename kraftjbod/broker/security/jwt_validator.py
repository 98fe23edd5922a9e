"""PURE. ``JwtValidator``: checks the signature and the claims of a JSON web token (RFC 7519).

* The algorithm of the token must be one of the key's. ``none`` and symmetric algorithms are no
  algorithm of any key.
* The checks are Kafka's: ``exp`` and ``iat`` are required, one audience of several, the issuer
  exactly, a user name that is not blank. A token from the future is refused too.
* No error message contains the token. Values of claims appear in messages only after the signature
  was verified.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from joserfc import jws
from joserfc.errors import JoseError

from kraftjbod.broker.security.jwks import ALGORITHMS, Jwks, VerificationKey
from kraftjbod.net.sasl_mechanism import LoginFailedError

MAX_TOKEN_CHARS: Final = 64 * 1024
_MAX_SHOWN_CHARS: Final = 100
_TOKEN: Final = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)")
#: Later times are treated as malformed, because Java's clients could not represent them.
_MAX_TIME_S: Final = 2**53


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimRules:
    """Required values and names of a token's claims."""

    audiences: frozenset[str] = frozenset()
    """Accepted audiences; empty: every audience."""
    issuer: str | None = None
    """The accepted issuer; None: every issuer."""
    clock_skew_s: int = 30
    subject_claim: str = "sub"
    scope_claim: str = "scope"


@dataclass(frozen=True, slots=True)
class ValidToken:
    """User and remaining lifetime of a valid token."""

    user: str
    lifetime_ms: int


class TokenKeys(Protocol):
    """The present keys of an identity provider."""

    @property
    def jwks(self) -> Jwks: ...

    def report_unknown_key(self) -> None:
        """Read the keys again soon, because a token was signed with another key."""
        ...


class JwtValidator:
    """Validates tokens of one identity provider for one listener."""

    def __init__(self, rules: ClaimRules, keys: TokenKeys, *, wall_ms: Callable[[], int]) -> None:
        self._rules = rules
        self._keys = keys
        self._wall_ms = wall_ms
        self._registry = jws.JWSRegistry(algorithms=list(ALGORITHMS), strict_check_header=False)
        self._registry.max_header_length = MAX_TOKEN_CHARS
        self._registry.max_signature_length = MAX_TOKEN_CHARS

    def validate(self, token: str) -> ValidToken:
        """Return the user of ``token`` and how long it is valid.

        :raises LoginFailedError: the token is malformed, has expired, has another audience or
            issuer, or no known key signed it.
        """
        if len(token) > MAX_TOKEN_CHARS:
            raise LoginFailedError(f"the token has more than {MAX_TOKEN_CHARS} characters")
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            raise LoginFailedError("the token is not a signed JSON web token")
        header = _json_object(parts[1], "header")
        if "crit" in header:
            raise LoginFailedError("the token's header has crit, which is not supported")
        keys = self._keys_of(header)
        if not any(self._is_signed_by(token, key) for key in keys):
            raise LoginFailedError("the signature of the token is wrong")
        return self._check_claims(_json_object(parts[2], "payload"))

    def _keys_of(self, header: Mapping[str, Any]) -> list[VerificationKey]:
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in ALGORITHMS:
            raise LoginFailedError(
                f"the algorithm of the token is not one of {', '.join(ALGORITHMS)}"
            )
        if key_id is not None and not isinstance(key_id, str):
            raise LoginFailedError("the key id (kid) of the token is not a string")
        jwks = self._keys.jwks
        if not jwks.has_key(key_id):
            self._keys.report_unknown_key()
            raise LoginFailedError(
                "the JWKS document has no key with the key id (kid) of the token"
                if jwks.keys
                else "the JWKS document was not read yet"
            )
        found = jwks.find_keys(key_id, algorithm)
        if not found:
            raise LoginFailedError("the key of the token is for another algorithm")
        if key_id is None and len(found) > 1:
            raise LoginFailedError(
                "the token has no key id (kid), and the JWKS document has several keys for its "
                "algorithm"
            )
        return found

    def _is_signed_by(self, token: str, key: VerificationKey) -> bool:
        try:
            jws.deserialize_compact(token, key.key, registry=self._registry)
        except (JoseError, ValueError):
            return False
        return True

    def _check_claims(self, claims: Mapping[str, Any]) -> ValidToken:
        rules, now_s = self._rules, self._wall_ms() / 1000
        expires_s, issued_s = _time(claims, "exp"), _time(claims, "iat")
        if expires_s is None:
            raise LoginFailedError("the token has no expiry (exp)")
        if issued_s is None:
            raise LoginFailedError("the token has no time of issue (iat)")
        if now_s >= expires_s + rules.clock_skew_s:
            raise LoginFailedError(f"the token expired {now_s - expires_s:.0f} s ago")
        for start_s in (issued_s, _time(claims, "nbf")):
            if start_s is not None and start_s > now_s + rules.clock_skew_s:
                raise LoginFailedError(
                    f"the token is valid in {start_s - now_s:.0f} s: check the clocks of the "
                    "identity provider and the broker"
                )
        self._check_origin(claims)
        _check_scope(claims.get(rules.scope_claim), rules.scope_claim)
        user = claims.get(rules.subject_claim)
        if not isinstance(user, str) or not user.strip():
            raise LoginFailedError(f"the claim {rules.subject_claim} of the token has no user name")
        # A token that only the clock skew keeps valid still gives a session.
        ends_s = expires_s if expires_s > now_s else expires_s + rules.clock_skew_s
        return ValidToken(user, max(1, int((ends_s - now_s) * 1000)))

    def _check_origin(self, claims: Mapping[str, Any]) -> None:
        rules = self._rules
        issuer, audience = claims.get("iss"), claims.get("aud")
        if rules.issuer is not None and issuer != rules.issuer:
            raise LoginFailedError(
                f"the issuer of the token is {_shown(issuer)}, expected {rules.issuer}"
            )
        audiences = audience if isinstance(audience, list) else [audience]
        if rules.audiences and rules.audiences.isdisjoint(filter(_is_text, audiences)):
            raise LoginFailedError(
                f"the audience of the token is {_shown(audience)}, expected "
                f"{' or '.join(sorted(rules.audiences))}"
            )


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _shown(value: object) -> str:
    return repr(value)[:_MAX_SHOWN_CHARS]


def _time(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        raise LoginFailedError(f"the claim {name} of the token is not a number")
    if not 0 <= value <= _MAX_TIME_S:
        raise LoginFailedError(f"the claim {name} of the token is not a time in seconds")
    return float(value)


def _check_scope(scope: object, claim: str) -> None:
    scopes = scope if isinstance(scope, list) else [] if scope is None else [scope]
    names = [one.strip() for one in scopes if isinstance(one, str)]
    if len(names) != len(scopes) or not all(names):
        raise LoginFailedError(f"the claim {claim} of the token has a scope without a name")
    if len(set(names)) != len(names):
        raise LoginFailedError(f"the claim {claim} of the token has a scope twice")


def _json_object(encoded: str, part: str) -> dict[str, Any]:
    try:
        text = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
        found = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise LoginFailedError(f"the {part} of the token is not JSON in base64url") from e
    if not isinstance(found, dict):
        raise LoginFailedError(f"the {part} of the token is not a JSON object")
    return found
