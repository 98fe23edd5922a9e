"""Messages of OAUTHBEARER as Kafka's clients send them, and malformed ones."""

from __future__ import annotations

import pytest

from kraftjbod.broker.security.jwt_validator import ValidToken
from kraftjbod.broker.security.oauthbearer_mechanism import REFUSAL, OauthbearerMechanism
from kraftjbod.net.sasl_mechanism import LoginFailedError, SaslStep

TOKEN = "canary.tok-en.text"


class Validator:
    """Accepts one token, and names its user."""

    def __init__(self, user: str) -> None:
        self.user = user

    def validate(self, token: str) -> ValidToken:
        if token != TOKEN:
            raise LoginFailedError("wrong token")
        return ValidToken(self.user, 1000)


def mechanism(user: str = "alice") -> OauthbearerMechanism:
    return OauthbearerMechanism(Validator(user), is_node=lambda user: user == "broker-1")


@pytest.mark.parametrize(
    "message",
    [
        f"n,,\x01auth=Bearer {TOKEN}\x01\x01",
        f"n,a=alice,\x01auth=bearer  {TOKEN}\x01\x01",
        f"n,,\x01auth=Bearer {TOKEN}\x01logicalCluster=lkc-1\x01traceId=1\x01\x01",
    ],
)
def test_valid_token_ends_the_login_with_user_and_lifetime(message: str) -> None:
    step = mechanism().respond(message.encode())
    assert step == SaslStep(token=b"", user="alice", lifetime_ms=1000)


@pytest.mark.parametrize(
    ("user", "message", "reason"),
    [
        ("alice", "n,,\x01auth=Bearer other\x01\x01", "wrong token"),
        ("alice", f"n,a=bob,\x01auth=Bearer {TOKEN}\x01\x01", "authorization id"),
        ("*", f"n,,\x01auth=Bearer {TOKEN}\x01\x01", "the user name is *"),
        ("broker-1", f"n,,\x01auth=Bearer {TOKEN}\x01\x01", "principal of a broker"),
    ],
)
def test_refused_token_is_answered_by_json_and_fails_at_the_confirmation(
    user: str, message: str, reason: str
) -> None:
    refused = mechanism(user)
    step = refused.respond(message.encode())
    assert (step.token, step.user) == (REFUSAL.encode(), None)
    assert step.failure is not None and reason in step.failure
    with pytest.raises(LoginFailedError) as caught:
        refused.respond(b"\x01")
    assert caught.value.shown == REFUSAL


def test_valid_token_after_a_refused_one_does_not_log_in() -> None:
    refused = mechanism()
    refused.respond(b"n,,\x01auth=Bearer other\x01\x01")
    with pytest.raises(LoginFailedError, match="confirmation is malformed"):
        refused.respond(f"n,,\x01auth=Bearer {TOKEN}\x01\x01".encode())


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x01",
        b"\xff",
        b"n,,\x01\x01",
        f"n,,\x01auth=Bearer {TOKEN}\x01".encode(),
        f"n,,\x01auth=Bearer {TOKEN}\x01\x01\x01".encode(),
        f"y,,\x01auth=Bearer {TOKEN}\x01\x01".encode(),
        f"p=tls-unique,,\x01auth=Bearer {TOKEN}\x01\x01".encode(),
        f"n,,auth=Bearer {TOKEN}\x01\x01".encode(),
        f"n,,\x01auth=Basic {TOKEN}\x01\x01".encode(),
        f"n,,\x01auth=Bearer {TOKEN} more\x01\x01".encode(),
        f"n,,\x01auth=Bearer {TOKEN}\x01auth=Bearer {TOKEN}\x01\x01".encode(),
        f"n,,\x01auth=Bearer {TOKEN}\x01bad-name=1\x01\x01".encode(),
        f"n,a=\x01,\x01auth=Bearer {TOKEN}\x01\x01".encode(),
        b"n,,\x01auth=Bearer " + b"a" * 90_000 + b"\x01\x01",
    ],
)
def test_malformed_message_fails_without_quoting_the_token(message: bytes) -> None:
    with pytest.raises(LoginFailedError) as caught:
        mechanism().respond(message)
    assert TOKEN not in str(caught.value) and caught.value.shown is None
