"""``--add-scram`` of ``kraftjbod-storage format``."""

from __future__ import annotations

import pytest

from kraftjbod.cli.initial_users import initial_users
from kraftjbod.core.errors import StartupError
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION, MetadataVersion
from kraftjbod.core.scram import ScramCredential, ScramMechanism, ScramUser

VALUES = {"cluster.node.principals": "User:broker-{id}"}


def parsed(*texts: str, level: MetadataVersion = LATEST_METADATA_VERSION) -> tuple[ScramUser, ...]:
    return initial_users(texts, level, VALUES, lambda count: bytes(range(count)))


def test_user_with_password_has_the_keys_of_that_password() -> None:
    (user,) = parsed("SCRAM-SHA-256=[name=alice,password=alice-secret]")
    mechanism, of = ScramMechanism.SCRAM_SHA_256, user.credential
    salted = mechanism.salted_password("alice-secret", of.salt, 4096)
    make = ScramCredential.from_salted_password
    expected = make(mechanism, salted, salt=of.salt, iterations=4096)
    assert (user.name, user.mechanism, of) == ("alice", mechanism, expected)
    assert len(of.salt) > 20


def test_user_with_salted_password_has_its_keys() -> None:
    """The form of Kafka's documentation."""
    (user,) = parsed('SCRAM-SHA-512=[name=alice,iterations=8192,salt="N3E=",saltedpassword="YCE="]')
    mechanism = ScramMechanism.SCRAM_SHA_512
    expected = ScramCredential.from_salted_password(mechanism, b"`!", salt=b"7q", iterations=8192)
    assert user == ScramUser("alice", mechanism, expected)


def test_user_may_be_a_node_if_brokers_log_in_by_its_mechanism() -> None:
    values = {**VALUES, "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-512"}
    text = "SCRAM-SHA-512=[name=broker-3,password=x]"
    (user,) = initial_users([text], LATEST_METADATA_VERSION, values, lambda count: bytes(count))
    assert user.name == "broker-3"
    with pytest.raises(StartupError, match="is the principal of a node"):
        initial_users([text.replace("512", "256")], LATEST_METADATA_VERSION, values, bytes)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SCRAM-SHA-1=[name=a,password=canary]", "write SCRAM-SHA-256 or SCRAM-SHA-512"),
        ("SCRAM-SHA-256=name=a,password=canary", "write SCRAM-SHA-256"),
        ("SCRAM-SHA-256=[password=canary]", "a user has a name"),
        ("SCRAM-SHA-256=[name=a]", "either a password"),
        ("SCRAM-SHA-256=[name=a,password=canary,saltedpassword=YCE=]", "either a password"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=YCE=]", "a salt and a saltedpassword"),
        ("SCRAM-SHA-256=[name=a,salt=!,saltedpassword=YCE=]", "are base64"),
        ("SCRAM-SHA-256=[name=a,password=a,canary]", "values have no comma"),
        ("SCRAM-SHA-256=[name=a,iterations=1,password=canary]", "iterations are 4096 to 16384"),
        ("SCRAM-SHA-256=[name=*,password=canary]", "no user can be called"),
        ("SCRAM-SHA-256=[name=broker-3,password=canary]", "is the principal of a node"),
    ],
)
def test_malformed_user_is_refused_without_quoting_the_password(text: str, problem: str) -> None:
    with pytest.raises(StartupError, match=problem) as refused:
        parsed(text)
    assert "canary" not in str(refused.value)


def test_user_that_occurs_twice_is_refused() -> None:
    user = "SCRAM-SHA-256=[name=a,password=x]"
    with pytest.raises(StartupError, match="twice"):
        parsed(user, user)
    assert len(parsed(user, user.replace("256", "512"))) == 2


def test_user_needs_a_level_with_credentials() -> None:
    with pytest.raises(StartupError, match=r"only supported in metadata\.version 4\.4-IV2-J1"):
        parsed("SCRAM-SHA-256=[name=a,password=x]", level=MetadataVersion.IV_4_4_IV2)
    assert parsed(level=MetadataVersion.IV_4_4_IV2) == ()
