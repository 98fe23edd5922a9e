"""The mechanism PLAIN: Kafka's checks in Kafka's order, with Kafka's texts."""

from __future__ import annotations

import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.broker.security.plain_mechanism import PlainMechanism, plain_digests
from kraftjbod.net.sasl_mechanism import LoginFailedError

DIGESTS = plain_digests({"alice": "secret", "bøb": "pässword"})


@pytest.mark.parametrize(
    ("message", "user"),
    [
        (b"\0alice\0secret", "alice"),
        (b"alice\0alice\0secret", "alice"),
        ("\0bøb\0pässword".encode(), "bøb"),
    ],
)
def test_plain_mechanism_accepts_right_password(message: bytes, user: str) -> None:
    assert PlainMechanism(DIGESTS).respond(message).user == user


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        (b"", "Invalid SASL/PLAIN response: expected 3 tokens, got 1"),
        (b"alice\0secret", "Invalid SASL/PLAIN response: expected 3 tokens, got 2"),
        (b"\0alice\0secret\0", "Invalid SASL/PLAIN response: expected 3 tokens, got 4"),
        (b"\0\0", "Authentication failed: username not specified"),
        (b"\0alice\0", "Authentication failed: password not specified"),
        (b"\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\0carol\0secret", "Authentication failed: Invalid username or password"),
        (
            b"root\0alice\0secret",
            "Authentication failed: Client requested an authorization id that is different from "
            "username",
        ),
        (b"root\0alice\0wrong", "Authentication failed: Invalid username or password"),
        (b"\xff", None),
    ],
)
def test_plain_mechanism_refuses_malformed_messages_and_wrong_credentials_with_reason(
    message: bytes, shown: str | None
) -> None:
    with pytest.raises(LoginFailedError) as caught:
        PlainMechanism(DIGESTS).respond(message)
    assert caught.value.shown == shown


def test_plain_mechanism_compares_one_digest_in_constant_time_for_any_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((len(left), len(right)))
        return left == right

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for message in (b"\0alice\0x", b"\0alice\0secret and more", b"\0carol\0x"):
        with pytest.raises(LoginFailedError):
            PlainMechanism(DIGESTS).respond(message)
    assert compared == [(32, 32)] * 3


@given(st.binary())
def test_plain_mechanism_raises_login_failed_for_random_messages(message: bytes) -> None:
    with pytest.raises(LoginFailedError):
        PlainMechanism(DIGESTS).respond(message)
