"""The server's side of SCRAM: right and wrong proofs, downgrade and replay attempts, fuzz."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.broker.security.scram_mechanism import ScramServer
from kraftjbod.core.scram import ScramCredential, ScramMechanism, fake_credential
from kraftjbod.net.sasl_mechanism import LoginFailedError

PASSWORD = "pencil=,ö"
SALT = b"salt"
mechanisms = pytest.mark.parametrize("mechanism", ScramMechanism)
SHA_256 = ScramMechanism.SCRAM_SHA_256


def credential(mechanism: ScramMechanism, password: str = PASSWORD) -> ScramCredential:
    salted = mechanism.salted_password(password, SALT, 4096)
    return ScramCredential.from_salted_password(mechanism, salted, salt=SALT, iterations=4096)


@dataclass
class Login:
    """A server, and a client of it whose messages can be changed."""

    mechanism: ScramMechanism = SHA_256
    users: dict[str, ScramCredential] = field(default_factory=dict)
    user: str = "alice"
    password: str = PASSWORD
    first: str = "n,,n={user},r=client"
    first_number: int = 1
    """The server's nonces are this number and those after it."""

    def __post_init__(self) -> None:
        self.users = self.users or {"alice": credential(self.mechanism)}
        numbers = itertools.count(self.first_number)
        self.server = ScramServer(
            self.mechanism,
            find=self.users.get,
            secret=lambda: b"secret",
            random_bytes=lambda count: next(numbers).to_bytes(count),
        )

    def begin(self) -> dict[str, str]:
        """Send the first message, and return the attributes of the answer."""
        self.sent = self.first.format(user=self.user)
        self.answer = self.server.respond(self.sent.encode()).token.decode()
        return dict(part.split("=", 1) for part in self.answer.split(","))

    def last(
        self, header: bytes = b"n,,", nonce: Callable[[str], str] = lambda nonce: nonce
    ) -> bytes:
        """Return the last message, with a proof that fits what it says."""
        said = dict(part.split("=", 1) for part in self.answer.split(","))
        salt = base64.b64decode(said["s"])
        salted = self.mechanism.salted_password(self.password, salt, int(said["i"]))
        key = self.mechanism.hmac(salted, b"Client Key")
        bare = f"c={base64.b64encode(header).decode()},r={nonce(said['r'])}"
        self.exchange = f"{self.sent.split(',', 2)[2]},{self.answer},{bare}".encode()
        signature = self.mechanism.hmac(self.mechanism.hash(key), self.exchange)
        proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
        return f"{bare},p={base64.b64encode(proof).decode()}".encode()


@mechanisms
def test_scram_login_with_right_password_proves_both_sides(mechanism: ScramMechanism) -> None:
    login = Login(mechanism)
    said = login.begin()
    assert said["r"].startswith("client") and said["i"] == "4096"
    step = login.server.respond(login.last())
    verifier = mechanism.hmac(login.users["alice"].server_key, login.exchange)
    assert (step.user, step.token) == ("alice", b"v=" + base64.b64encode(verifier))


@pytest.mark.parametrize(
    "first",
    [
        "n,a=alice,n={user},r=client",
        "n,,n={user},r=client,tokenauth=false",
        "n,,n={user},r=client,ext=a=b,other=1",
    ],
)
def test_scram_login_with_authorization_id_or_extension_is_accepted(first: str) -> None:
    login = Login(first=first)
    login.begin()
    assert login.server.respond(login.last()).user == "alice"


def test_scram_login_repeating_its_header_is_accepted() -> None:
    login = Login(first="n,a=alice,n={user},r=client")
    login.begin()
    assert login.server.respond(login.last(header=b"n,a=alice,")).user == "alice"


def test_scram_user_name_is_unescaped() -> None:
    login = Login(users={"a=b,ö": credential(SHA_256)}, user="a=3Db=2Cö")
    login.begin()
    assert login.server.respond(login.last()).user == "a=b,ö"


@pytest.mark.parametrize(
    "first",
    [
        pytest.param("p=tls-unique,,n={user},r=client", id="channel-binding"),
        pytest.param("y,,n={user},r=client", id="binding-not-offered"),
        pytest.param("n,a=root,n={user},r=client", id="other-authorization-id"),
        pytest.param("n,,n={user},r=client,tokenauth=true", id="delegation-token"),
        pytest.param("n,,m=x,n={user},r=client", id="mandatory-extension"),
        pytest.param("n,,n=,r=client", id="no-user"),
        pytest.param("n,,n=a=b,r=client", id="unescaped-user"),
        pytest.param("n,,n={user},r=", id="no-nonce"),
        pytest.param("n,,n={user},r=a b", id="nonce-with-blank"),
        pytest.param("n,,n={user},r=" + "x" * 9000, id="too-long"),
        pytest.param("", id="empty"),
    ],
)
def test_scram_malformed_or_unsupported_first_message_is_refused(first: str) -> None:
    with pytest.raises(LoginFailedError):
        Login(first=first).begin()


def test_scram_login_with_wrong_password_or_unknown_user_fails_at_the_same_message() -> None:
    texts = set()
    for wrong in (Login(password="wrong"), Login(user="eve")):
        wrong.begin()
        with pytest.raises(LoginFailedError) as caught:
            wrong.server.respond(wrong.last())
        texts.add(str(caught.value))
        assert caught.value.shown is None
    assert len(texts) == 1


def test_unknown_user_gets_the_same_salt_each_time_and_known_users_theirs() -> None:
    salts = [Login(user=user).begin()["s"] for user in ("eve", "eve", "mallory", "alice")]
    assert salts[0] == salts[1] != salts[2]
    assert salts[3] == base64.b64encode(SALT).decode()


@pytest.mark.parametrize(
    "nonce",
    [
        pytest.param(lambda nonce: "client", id="of-the-client"),
        pytest.param(lambda nonce: "client" + nonce, id="prefixed"),
        pytest.param(lambda nonce: nonce + "x", id="longer"),
        pytest.param(lambda nonce: nonce[:-1], id="shorter"),
    ],
)
def test_scram_last_message_with_another_nonce_is_refused(nonce: Callable[[str], str]) -> None:
    """CVE-2024-56128: the proof is right for the message, and its nonce is not the server's."""
    login = Login()
    login.begin()
    with pytest.raises(LoginFailedError):
        login.server.respond(login.last(nonce=nonce))


@pytest.mark.parametrize("header", [b"y,,", b"n,a=root,", b"p=tls-unique,,", b""])
def test_scram_last_message_with_another_header_is_refused(header: bytes) -> None:
    login = Login()
    login.begin()
    with pytest.raises(LoginFailedError):
        login.server.respond(login.last(header=header))


def test_scram_messages_of_another_login_are_refused() -> None:
    """The server's nonces differ, so that recorded messages prove nothing."""
    recorded = Login()
    recorded.begin()
    last = recorded.last()
    replayed = Login(first_number=2)
    replayed.begin()
    with pytest.raises(LoginFailedError):
        replayed.server.respond(last)


@pytest.mark.parametrize("changed", ["deleted", "changed"])
def test_scram_login_fails_if_the_credential_changes_between_its_messages(changed: str) -> None:
    login = Login()
    login.begin()
    last = login.last()
    if changed == "deleted":
        del login.users["alice"]
    else:
        login.users["alice"] = credential(SHA_256, "new")
    with pytest.raises(LoginFailedError):
        login.server.respond(last)


def test_proof_for_the_credential_of_an_unknown_user_is_refused() -> None:
    """Even a client that knows the cluster's secret cannot log in as a user without credential."""
    login = Login(user="eve")
    login.begin()
    login.users["eve"] = fake_credential(SHA_256, "eve", b"secret")
    with pytest.raises(LoginFailedError):
        login.server.respond(login.last())


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_scram_random_messages_raise_login_failed(first: bytes, last: bytes) -> None:
    login = Login()
    with pytest.raises(LoginFailedError):
        login.server.respond(first)
    login = Login()
    login.begin()
    with pytest.raises(LoginFailedError):
        login.server.respond(last)


@given(st.data())
def test_scram_last_message_with_a_changed_byte_is_refused(data: st.DataObject) -> None:
    login = Login()
    login.begin()
    last = bytearray(login.last())
    position = data.draw(st.integers(0, len(last) - 1))
    flipped = data.draw(st.integers(1, 255))
    last[position] ^= flipped
    with pytest.raises(LoginFailedError):
        login.server.respond(bytes(last))
