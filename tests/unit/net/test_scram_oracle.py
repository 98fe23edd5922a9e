"""SCRAM against scramp, another implementation, in random exchanges that both accept.

scramp refuses some users that Kafka accepts: short salts, and names and passwords that SASLprep
changes. So names and passwords are ASCII here.
"""

from __future__ import annotations

import pytest
import scramp
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.broker.security.scram_mechanism import ScramServer
from kraftjbod.core.scram import MIN_ITERATIONS, ScramCredential, ScramMechanism
from kraftjbod.net.sasl_login import ScramExchange
from kraftjbod.net.sasl_mechanism import LoginFailedError

#: Includes the comma and the equals sign, which messages escape.
NAMES = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=20)
SALTS = st.binary(min_size=16, max_size=40)
NONCES = st.text("abcXYZ019+/", min_size=18, max_size=30)
MECHANISMS = st.sampled_from(list(ScramMechanism))
ITERATIONS = st.integers(MIN_ITERATIONS, MIN_ITERATIONS + 50)


def credential_of(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> ScramCredential:
    salted = mechanism.salted_password(password, salt, iterations)
    return ScramCredential.from_salted_password(mechanism, salted, salt=salt, iterations=iterations)


class Exchange:
    """The messages of one login at our server by scramp's client."""

    def __init__(self, mechanism: ScramMechanism, user: str, stored: ScramCredential) -> None:
        self._mechanism = mechanism
        self._user = user
        self._server = ScramServer(
            mechanism, find={user: stored}.get, secret=lambda: b"secret", random_bytes=bytes
        )

    def log_in(self, password: str, nonce: str) -> str | None:
        """Return the name of the user. scramp raises if the proof of the server is wrong."""
        names = [self._mechanism.mechanism_name]
        client = scramp.ScramClient(names, self._user, password, c_nonce=nonce)
        first = self._server.respond(client.get_client_first().encode())
        client.set_server_first(first.token.decode())
        done = self._server.respond(client.get_client_final().encode())
        client.set_server_final(done.token.decode())
        return done.user


@given(MECHANISMS, NAMES, NAMES, NAMES, SALTS, NONCES, ITERATIONS)
def test_scram_server_accepts_scramp_client_with_right_password_only(
    mechanism: ScramMechanism,
    user: str,
    password: str,
    other: str,
    salt: bytes,
    nonce: str,
    iterations: int,
) -> None:
    stored = credential_of(mechanism, password, salt, iterations)
    assert Exchange(mechanism, user, stored).log_in(password, nonce) == user
    if other != password:
        with pytest.raises(LoginFailedError):
            Exchange(mechanism, user, stored).log_in(other, nonce)


@given(MECHANISMS, NAMES, NAMES, NAMES, SALTS, NONCES, ITERATIONS)
def test_scram_exchange_is_accepted_by_scramp_server_with_right_password_only(
    mechanism: ScramMechanism,
    user: str,
    password: str,
    other: str,
    salt: bytes,
    nonce: str,
    iterations: int,
) -> None:
    oracle = scramp.ScramMechanism(mechanism.mechanism_name)
    stored = oracle.make_auth_info(password, iteration_count=iterations, salt=salt)

    def log_in(given_password: str) -> None:
        server = oracle.make_server(lambda name: {user: stored}[name])
        client = ScramExchange(mechanism, user, nonce)
        server.set_client_first(client.first().decode())
        found_salt, found_iterations = client.take_first_answer(server.get_server_first().encode())
        assert (found_salt, found_iterations) == (salt, iterations)
        salted = mechanism.salted_password(given_password, found_salt, found_iterations)
        server.set_client_final(client.last(salted).decode())
        client.require_proof(server.get_server_final().encode())

    log_in(password)
    if other != password:
        with pytest.raises(scramp.ScramException):
            log_in(other)
