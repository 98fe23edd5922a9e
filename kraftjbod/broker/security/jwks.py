"""PURE. ``parse_jwks``: the public keys of a JWKS document (RFC 7517) that can verify tokens.

* Only asymmetric algorithms are accepted: RSA (PKCS#1 and PSS) and ECDSA. A symmetric key in a
  public document would let everyone sign tokens.
* Other keys of the document are left out, because documents also contain keys for encryption.
* The private part of a key is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from kraftjbod.core.errors import ConfigError

#: Signature algorithms (RFC 7518) of the two kinds of keys.
RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVE_ALGORITHMS: Final = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
ALGORITHMS: Final = (*RSA_ALGORITHMS, *CURVE_ALGORITHMS.values())
MAX_JWKS_BYTES: Final = 256 * 1024
MAX_JWKS_KEYS: Final = 100
#: Keys with longer ids are left out, as in Kafka.
MAX_KEY_ID_CHARS: Final = 1_000
#: Shorter keys can be broken, and the signatures of longer ones take milliseconds.
_MIN_RSA_BITS: Final = 2_048
_MAX_RSA_BITS: Final = 8_192
_PUBLIC_MEMBERS: Final = {"RSA": ("n", "e"), "EC": ("crv", "x", "y")}


@dataclass(frozen=True, slots=True)
class VerificationKey:
    """A public key, its id, and the algorithms of signatures that it may verify."""

    key_id: str | None
    algorithms: frozenset[str]
    key: RSAKey | ECKey


@dataclass(frozen=True, slots=True)
class Jwks:
    """The usable keys of a JWKS document."""

    keys: tuple[VerificationKey, ...] = ()
    left_out: int = 0
    """Number of keys of the document that cannot verify tokens."""

    def find_keys(self, key_id: str | None, algorithm: str) -> list[VerificationKey]:
        """Return the keys that may have signed a token.

        :param key_id: the token's ``kid``; None if it has none. Then all keys of the algorithm are
            returned.
        """
        return [
            key for key in self.keys if algorithm in key.algorithms and key_id in (None, key.key_id)
        ]

    def has_key(self, key_id: str | None) -> bool:
        """Return whether the document has a usable key with this id; any key if it is None."""
        return any(key_id in (None, key.key_id) for key in self.keys)


def parse_jwks(document: bytes) -> Jwks:
    """Parse a JWKS document.

    :raises ConfigError: the document is too large or malformed, or has no usable key.
    """
    if len(document) > MAX_JWKS_BYTES:
        raise ConfigError(f"the JWKS document has more than {MAX_JWKS_BYTES} bytes")
    try:
        parsed = json.loads(document)
    except (ValueError, RecursionError) as e:
        raise ConfigError("the JWKS document is not JSON") from e
    members = parsed.get("keys") if isinstance(parsed, dict) else None
    if not isinstance(members, list):
        raise ConfigError('the JWKS document is not an object with a list "keys"')
    if len(members) > MAX_JWKS_KEYS:
        raise ConfigError(f"the JWKS document has more than {MAX_JWKS_KEYS} keys")
    found = [key for key in map(_usable_key, members) if key is not None]
    if not found:
        raise ConfigError(
            f"the JWKS document has no key for signatures by {', '.join(ALGORITHMS)}, with at "
            f"least {_MIN_RSA_BITS} bits for RSA"
        )
    return Jwks(tuple(found), len(members) - len(found))


def _usable_key(members: Any) -> VerificationKey | None:
    if not isinstance(members, dict) or members.get("use", "sig") != "sig":
        return None
    operations = members.get("key_ops")
    if operations is not None and not (isinstance(operations, list) and "verify" in operations):
        return None
    key_id, algorithm = members.get("kid"), members.get("alg")
    if not all(value is None or isinstance(value, str) for value in (key_id, algorithm)):
        return None
    if key_id is not None and len(key_id) > MAX_KEY_ID_CHARS:
        return None
    try:
        found = _public_key(members)
    except (JoseError, ValueError, TypeError):
        return None
    if found is None:
        return None
    key, algorithms = found
    if algorithm is not None:
        algorithms = algorithms & {algorithm}
    return VerificationKey(key_id, algorithms, key) if algorithms else None


def _public_key(members: Mapping[str, Any]) -> tuple[RSAKey | ECKey, frozenset[str]] | None:
    kind = members.get("kty")
    names = _PUBLIC_MEMBERS.get(kind) if isinstance(kind, str) else None
    if names is None or not all(isinstance(members.get(name), str) for name in names):
        return None
    public: dict[str, Any] = {"kty": kind, **{name: members[name] for name in names}}
    if kind == "RSA":
        key = RSAKey.import_key(public)
        bits = key.public_key.key_size
        is_usable = _MIN_RSA_BITS <= bits <= _MAX_RSA_BITS
        return (key, frozenset(RSA_ALGORITHMS)) if is_usable else None
    algorithm = CURVE_ALGORITHMS.get(members["crv"])
    if algorithm is None:
        return None
    curve_key = ECKey.import_key(public)
    # Joserfc reads the point on the first use only, and a wrong point would fail a login then.
    _ = curve_key.public_key
    return curve_key, frozenset({algorithm})
