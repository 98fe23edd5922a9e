"""PURE. SCRAM (RFC 5802, RFC 7677): mechanisms, keys, and the credential that a server stores.

A server stores no password: it verifies a proof with the stored key, and proves by the server key
that it knows the credential. As in Kafka, names and passwords are UTF-8 and are not normalized.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

MIN_ITERATIONS: Final = 4096
MAX_ITERATIONS: Final = 16_384
#: Characters of a salt of Kafka's tools, and the bits from which they are made.
_SALT_BITS: Final = 130
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class ScramMechanism(IntEnum):
    """SCRAM mechanisms with the numbers of Kafka's protocol and records."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def mechanism_name(self) -> str:
        """Name of the mechanism in SASL, such as ``SCRAM-SHA-256``."""
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        """Name of the hash in ``hashlib``."""
        return f"sha{self.name.rpartition('_')[2]}"

    def hmac(self, key: bytes, message: bytes) -> bytes:
        return hmac.digest(key, message, self.hash_name)

    def hash(self, data: bytes) -> bytes:
        return hashlib.new(self.hash_name, data).digest()

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Return PBKDF2 of the password.

        Takes milliseconds: do not call it in the event loop's thread.
        """
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


MECHANISM_NAMES: Final = {one.mechanism_name: one for one in ScramMechanism}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramCredential:
    """Data with which a server verifies the SCRAM login of one user, without the password. Its
    representation shows no key.
    """

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int

    @classmethod
    def from_salted_password(
        cls, mechanism: ScramMechanism, salted: bytes, *, salt: bytes, iterations: int
    ) -> ScramCredential:
        client_key = mechanism.hmac(salted, b"Client Key")
        return cls(
            salt=salt,
            stored_key=mechanism.hash(client_key),
            server_key=mechanism.hmac(salted, b"Server Key"),
            iterations=iterations,
        )


@dataclass(frozen=True, slots=True)
class ScramUser:
    """A user with the credential for one mechanism."""

    name: str
    mechanism: ScramMechanism
    credential: ScramCredential


def salt_of(random: bytes) -> bytes:
    """Return a salt in the form that Kafka's tools use: 130 bits as digits of base 36.

    :param random: at least 17 bytes.
    """
    number = int.from_bytes(random) & ((1 << _SALT_BITS) - 1)
    digits = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return (digits or "0").encode()


def fake_credential(mechanism: ScramMechanism, user: str, secret: bytes) -> ScramCredential:
    """Return a credential that no password matches, for a user that does not exist.

    Salt and iterations look like those of a user, and are the same for each call with the same
    arguments.

    :param secret: a secret of the cluster, so that a client cannot compute the salt.
    """
    seed = mechanism.hmac(secret, b"salt of an unknown user\0" + user.encode())
    return ScramCredential(
        salt=salt_of(seed),
        stored_key=mechanism.hmac(seed, b"stored key"),
        server_key=mechanism.hmac(seed, b"server key"),
        iterations=MIN_ITERATIONS,
    )
