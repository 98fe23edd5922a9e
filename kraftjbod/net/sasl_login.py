"""LOOP. The client's side of logins by SASL: PLAIN and SCRAM, over SaslHandshake version 1.

PBKDF2 of SCRAM runs in an executor. Its result is kept, because a tool logs in at each broker with
the same password and, by the metadata, the same salt.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from kraftjbod.core.errors import ErrorCode, OperatingError, RemoteProtocolError
from kraftjbod.core.scram import MAX_ITERATIONS, MECHANISM_NAMES, MIN_ITERATIONS, ScramMechanism
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.messages import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
)

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *MECHANISM_NAMES)
_NONCE_BYTES: Final = 24
_HANDSHAKE_VERSION: Final = 1
#: Base64 of the header ``n,,``, which a client repeats in its last message.
_HEADER: Final = "biws"


async def choose_mechanism(connection: KafkaConnection, mechanism: str, timeout_ms: int) -> None:
    """Start a login by ``mechanism``, by SaslHandshake version 1.

    :raises OperatingError: UNSUPPORTED_SASL_MECHANISM, or the broker does not answer.
    """
    request = SaslHandshakeRequest(mechanism=mechanism)
    answer = await connection.request(request, timeout_ms=timeout_ms, version=_HANDSHAKE_VERSION)
    if answer.error_code != ErrorCode.NONE:
        raise OperatingError(
            f"the broker has no mechanism {mechanism}: set sasl.mechanism to one of "
            f"{', '.join(answer.mechanisms)}",
            code=ErrorCode.UNSUPPORTED_SASL_MECHANISM,
        )


@dataclass(slots=True)
class SaslLogin:
    """User, password and SASL mechanism with which this side logs in on each new connection. Its
    representation shows no password.
    """

    mechanism: str
    user: str
    password: str = field(repr=False)
    random_bytes: Callable[[int], bytes] = field(repr=False)
    #: Salted passwords by salt and iterations.
    _salted: dict[tuple[bytes, int], bytes] = field(default_factory=dict, repr=False)

    async def __call__(self, connection: KafkaConnection, timeout_ms: int) -> int:
        """Log in, and return the lifetime of the session in ms; 0: unlimited.

        :raises OperatingError: UNSUPPORTED_SASL_MECHANISM, or SASL_AUTHENTICATION_FAILED with the
            broker's message; or the broker does not answer.
        :raises RemoteProtocolError: a message of SCRAM is malformed, or does not prove that the
            broker knows the password.
        """
        await choose_mechanism(connection, self.mechanism, timeout_ms)
        if self.mechanism == PLAIN:
            token = f"\0{self.user}\0{self.password}".encode()
            return (await self._send(connection, token, timeout_ms)).session_lifetime_ms
        return await self._log_in_by_scram(connection, timeout_ms)

    async def _send(
        self, connection: KafkaConnection, token: bytes, timeout_ms: int
    ) -> SaslAuthenticateResponse:
        request = SaslAuthenticateRequest(auth_bytes=token)
        answer = await connection.request(request, timeout_ms=timeout_ms)
        if answer.error_code != ErrorCode.NONE:
            raise OperatingError(
                f"the login of {self.user} by {self.mechanism} failed: {answer.error_message}",
                code=ErrorCode.SASL_AUTHENTICATION_FAILED,
            )
        return answer

    async def _log_in_by_scram(self, connection: KafkaConnection, timeout_ms: int) -> int:
        nonce = base64.urlsafe_b64encode(self.random_bytes(_NONCE_BYTES)).decode()
        exchange = ScramExchange(MECHANISM_NAMES[self.mechanism], self.user, nonce)
        first = await self._send(connection, exchange.first(), timeout_ms)
        key = exchange.take_first_answer(bytes(first.auth_bytes))
        if key not in self._salted:
            self._salted[key] = await asyncio.get_running_loop().run_in_executor(
                None, exchange.mechanism.salted_password, self.password, *key
            )
        last = await self._send(connection, exchange.last(self._salted[key]), timeout_ms)
        exchange.require_proof(bytes(last.auth_bytes))
        return last.session_lifetime_ms


class ScramExchange:
    """The client's messages of one login by SCRAM (RFC 5802)."""

    def __init__(self, mechanism: ScramMechanism, user: str, nonce: str) -> None:
        """:param nonce: random printable characters without a comma."""
        self.mechanism = mechanism
        self._nonce = nonce
        name = user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={name},r={self._nonce}"
        self._answer = ""
        self._whole_nonce = ""
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def take_first_answer(self, token: bytes) -> tuple[bytes, int]:
        """Read the broker's first message, and return the salt and the iteration count.

        :raises RemoteProtocolError: the message is malformed, or does not contain this side's
            nonce, or the iteration count is outside the limits of Kafka.
        """
        said = _attributes(token)
        try:
            salt, count = base64.b64decode(said["s"], validate=True), int(said["i"])
            nonce = said["r"]
        except (KeyError, ValueError) as e:
            raise RemoteProtocolError("the broker's message of SCRAM is malformed") from e
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise RemoteProtocolError("the broker's nonce of SCRAM does not extend this side's")
        # With a low count an impostor of the broker could guess the password from the proof.
        if not MIN_ITERATIONS <= count <= MAX_ITERATIONS:
            raise RemoteProtocolError(
                f"the broker demands {count} iterations, expected {MIN_ITERATIONS} to "
                f"{MAX_ITERATIONS}"
            )
        self._whole_nonce, self._answer = nonce, token.decode()
        return salt, count

    def last(self, salted: bytes) -> bytes:
        """Return the last message, with the proof from the salted password."""
        mechanism = self.mechanism
        bare = f"c={_HEADER},r={self._whole_nonce}"
        exchange = f"{self._bare},{self._answer},{bare}".encode()
        key = mechanism.hmac(salted, b"Client Key")
        signature = mechanism.hmac(mechanism.hash(key), exchange)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        self._signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), exchange)
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()

    def require_proof(self, token: bytes) -> None:
        """Require that the broker knows the credential.

        :raises RemoteProtocolError: it does not.
        """
        try:
            proof = base64.b64decode(_attributes(token).get("v", ""), validate=True)
        except binascii.Error:
            proof = b""
        if not hmac.compare_digest(proof, self._signature):
            raise RemoteProtocolError("the broker does not prove that it knows the password")


def _attributes(token: bytes) -> Mapping[str, str]:
    try:
        parts = token.decode().split(",")
    except UnicodeDecodeError as e:
        raise RemoteProtocolError("the broker's message of SCRAM is no UTF-8") from e
    return {part[:1]: part[2:] for part in parts if part[1:2] == "="}
