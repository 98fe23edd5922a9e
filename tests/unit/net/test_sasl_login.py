"""The client's side of SCRAM, against the server's side of a broker."""

from __future__ import annotations

import base64

import pytest

from kraftjbod.broker.security.scram_mechanism import ScramServer
from kraftjbod.core.errors import RemoteProtocolError
from kraftjbod.core.scram import ScramCredential, ScramMechanism
from kraftjbod.net.sasl_login import SaslLogin, ScramExchange
from kraftjbod.net.sasl_mechanism import LoginFailedError

SHA_256 = ScramMechanism.SCRAM_SHA_256


def server(mechanism: ScramMechanism, user: str, password: str) -> ScramServer:
    salted = mechanism.salted_password(password, b"salt", 4096)
    known = ScramCredential.from_salted_password(mechanism, salted, salt=b"salt", iterations=4096)
    return ScramServer(
        mechanism,
        find={user: known}.get,
        secret=lambda: b"secret",
        random_bytes=lambda count: bytes(range(count)),
    )


@pytest.mark.parametrize("mechanism", ScramMechanism)
@pytest.mark.parametrize("user", ["alice", "a=b,c"])
def test_scram_exchange_with_right_password_ends_with_proofs_of_both_sides(
    mechanism: ScramMechanism, user: str
) -> None:
    broker, client = server(mechanism, user, "pencil"), ScramExchange(mechanism, user, "own")
    key = client.take_first_answer(broker.respond(client.first()).token)
    assert key == (b"salt", 4096)
    step = broker.respond(client.last(mechanism.salted_password("pencil", *key)))
    assert step.user == user
    client.require_proof(step.token)


def test_scram_exchange_with_wrong_password_is_refused_by_the_broker() -> None:
    broker, client = server(SHA_256, "alice", "pencil"), ScramExchange(SHA_256, "alice", "own")
    key = client.take_first_answer(broker.respond(client.first()).token)
    with pytest.raises(LoginFailedError):
        broker.respond(client.last(SHA_256.salted_password("wrong", *key)))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"r=other-nonce,s=c2FsdA==,i=4096", "does not extend"),
        (b"r=own,s=c2FsdA==,i=4096", "does not extend"),
        (b"r=own-more,s=c2FsdA==,i=1", "demands 1 iterations"),
        (b"r=own-more,s=c2FsdA==,i=1000000", "demands 1000000 iterations"),
        (b"r=own-more,s=!,i=4096", "malformed"),
        (b"r=own-more,i=4096", "malformed"),
        (b"\xff", "no UTF-8"),
        (b"", "malformed"),
    ],
)
def test_scram_exchange_refuses_first_answer_of_an_impostor(answer: bytes, problem: str) -> None:
    with pytest.raises(RemoteProtocolError, match=problem):
        ScramExchange(SHA_256, "alice", "own").take_first_answer(answer)


@pytest.mark.parametrize("answer", [b"", b"v=", b"v=!", b"v=" + base64.b64encode(b"wrong")])
def test_scram_exchange_refuses_broker_that_does_not_know_the_password(answer: bytes) -> None:
    client = ScramExchange(SHA_256, "alice", "own")
    key = client.take_first_answer(b"r=own-more,s=c2FsdA==,i=4096")
    client.last(SHA_256.salted_password("pencil", *key))
    with pytest.raises(RemoteProtocolError, match="does not prove"):
        client.require_proof(answer)


def test_sasl_login_repr_contains_no_password() -> None:
    assert "canary" not in repr(SaslLogin("PLAIN", "alice", "canary", bytes))
