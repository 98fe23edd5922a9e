"""PURE. The server's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802), with Kafka's checks.

* A user that does not exist gets a salt as well, and fails as one with a wrong password.
* The nonce of the last message has to be the server's (CVE-2024-56128), and the header the one of
  the first message. Both are compared in constant time, as is the proof.
* There is no channel binding, and no login by delegation token.

ADR 112 explains why this is not a library.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Callable
from typing import Final

from kraftjbod.core.scram import ScramCredential, ScramMechanism, fake_credential
from kraftjbod.net.sasl_mechanism import LoginFailedError, SaslStep

#: Header of a client without channel binding, as Kafka's clients repeat it for each user.
_PLAIN_HEADER: Final = b"n,,"
_NONCE_BYTES: Final = 18
#: A longer message is refused before it is parsed.
_MAX_MESSAGE_BYTES: Final = 8192
_NAME: Final = r"(?:[^=,\0]|=2C|=3D)+"
_FIRST: Final = re.compile(
    rf"(?P<header>n,(?:a=(?P<authorization_id>{_NAME}))?,)"
    rf"(?P<bare>n=(?P<user>{_NAME}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*))"
)
_FINAL: Final = re.compile(
    r"(?P<bare>c=(?P<header>[A-Za-z0-9+/]+={0,2}),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?:,[A-Za-z]+=[^,\0]+)*?),p=(?P<proof>[A-Za-z0-9+/]+={0,2})"
)
_TOKEN_LOGIN: Final = "tokenauth=true"  # noqa: S105 - an extension, no secret

FindCredential = Callable[[str], ScramCredential | None]


class ScramServer:
    """The server's side of one login by SCRAM (RFC 5802): checks the messages of one client."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        *,
        find: FindCredential,
        secret: Callable[[], bytes],
        random_bytes: Callable[[int], bytes],
    ) -> None:
        """
        :param find: returns the present credential of a user.
        :param secret: returns the secret of the cluster, for salts of unknown users.
        """
        self._mechanism = mechanism
        self._find = find
        self._secret = secret
        self._random_bytes = random_bytes
        self._user: str | None = None
        self._credential: ScramCredential | None = None
        #: What the signatures are about, except for the client's last message.
        self._exchange = b""
        self._nonce = b""
        self._header = b""

    def respond(self, message: bytes) -> SaslStep:
        """Return the answer to the first or the last message of the client; after the last, with
        the user.

        :raises LoginFailedError: the message is malformed, or the proof is wrong.
        """
        if len(message) > _MAX_MESSAGE_BYTES:
            raise LoginFailedError(f"a message of SCRAM has {len(message)} bytes")
        try:
            text = message.decode()
        except UnicodeDecodeError as e:
            raise LoginFailedError("a message of SCRAM is not UTF-8") from e
        return self._first(text) if self._user is None else self._final(text, self._user)

    def _first(self, text: str) -> SaslStep:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise LoginFailedError("the client's first message is malformed")
        user = _name(found["user"])
        if _TOKEN_LOGIN in found["extensions"].lower().split(","):
            raise LoginFailedError("there are no logins by delegation token")
        if found["authorization_id"] and _name(found["authorization_id"]) != user:
            raise LoginFailedError("the authorization id is not the name of the user")
        self._user, self._credential = user, self._find(user)
        shown = self._credential_shown(user)
        nonce = found["nonce"] + base64.b64encode(self._random_bytes(_NONCE_BYTES)).decode()
        salt = base64.b64encode(shown.salt).decode()
        answer = f"r={nonce},s={salt},i={shown.iterations}"
        self._nonce, self._header = nonce.encode(), found["header"].encode()
        self._exchange = f"{found['bare']},{answer},".encode()
        return SaslStep(token=answer.encode())

    def _final(self, text: str, user: str) -> SaslStep:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise LoginFailedError("the client's last message is malformed")
        header, proof = _decoded(found["header"]), _decoded(found["proof"])
        credential = self._credential_shown(user)
        mechanism = self._mechanism
        exchange = self._exchange + found["bare"].encode()
        signature = mechanism.hmac(credential.stored_key, exchange)
        is_right = len(proof) == len(signature) and hmac.compare_digest(
            mechanism.hash(_xor(proof, signature)), credential.stored_key
        )
        is_header = hmac.compare_digest(header, self._header) or hmac.compare_digest(
            header, _PLAIN_HEADER
        )
        is_nonce = hmac.compare_digest(found["nonce"].encode(), self._nonce)
        # Deleted or changed since the first message: the client proved another password.
        is_present = self._credential is not None and self._find(user) == self._credential
        if not (is_right and is_header and is_nonce and is_present):
            raise LoginFailedError("the proof is wrong, or the user has no credential")
        verifier = base64.b64encode(mechanism.hmac(credential.server_key, exchange))
        return SaslStep(token=b"v=" + verifier, user=user)

    def _credential_shown(self, user: str) -> ScramCredential:
        return self._credential or fake_credential(self._mechanism, user, self._secret())


def _name(escaped: str) -> str:
    return escaped.replace("=2C", ",").replace("=3D", "=")


def _decoded(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as e:
        raise LoginFailedError("the client's last message has invalid base64") from e
    # Python ignores the surplus bits of the last digit, so that several texts had one value.
    if base64.b64encode(data).decode() != text:
        raise LoginFailedError("the client's last message has invalid base64")
    return data


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))
