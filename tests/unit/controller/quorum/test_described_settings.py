"""``described_settings``: values of a controller with their sources."""

from __future__ import annotations

from pydantic import SecretStr

from kraftjbod.controller.quorum.controller_settings import settings_in_force
from kraftjbod.controller.quorum.described_settings import described_settings
from kraftjbod.core.ids import BrokerId
from kraftjbod.metadata.records import ResourceType
from kraftjbod.protocol.rpc_config_messages import ConfigSource
from tests.unit.controller.quorum.test_controller_settings import FILE, TIMEOUT

GRACE = "broker.reconnect.grace.ms"


def test_described_settings_list_synonyms_by_precedence() -> None:
    configs = {
        (ResourceType.BROKER, ""): {TIMEOUT: "6000", GRACE: "0", "log.retention.ms": "1"},
        (ResourceType.BROKER, "100"): {TIMEOUT: "7000"},
        (ResourceType.BROKER, "101"): {TIMEOUT: "8000"},
    }
    settings = settings_in_force(FILE, configs, BrokerId(100))
    found = {each.name: each for each in described_settings(FILE, settings, configs)}
    assert [(s.value, s.source) for s in found[TIMEOUT].synonyms] == [
        ("7000", ConfigSource.DYNAMIC_BROKER),
        ("6000", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ("5000", ConfigSource.STATIC_BROKER),
        ("9000", ConfigSource.DEFAULT),
    ]
    assert (found[TIMEOUT].value, found[TIMEOUT].is_read_only) == ("7000", False)
    assert (found[GRACE].value, found[GRACE].source) == ("0", ConfigSource.DYNAMIC_DEFAULT_BROKER)
    voters = found["controller.quorum.voters"]
    assert (voters.value, voters.is_read_only) == ("100@h:1", True)
    assert (found["listeners"].value, found["listeners"].source) == (
        "CONTROLLER://h:1",
        ConfigSource.STATIC_BROKER,
    )
    assert (found["cluster.id"].value, found["cluster.id"].synonyms) == (None, ())
    assert found["auto.leader.rebalance.enable"].value == "true"
    assert "log.retention.ms" not in found


def test_described_settings_contain_no_password() -> None:
    secret = FILE.model_copy(update={"ssl_keystore_password": SecretStr("canary")})
    settings = settings_in_force(secret, {}, BrokerId(100))
    found = {each.name: each for each in described_settings(secret, settings, {})}
    assert "canary" not in repr(found)
    password = found["ssl.keystore.password"]
    assert (password.value, password.source) == (None, ConfigSource.STATIC_BROKER)
    assert password.synonyms == ()
    assert password.is_sensitive and not found["node.id"].is_sensitive
    assert found["ssl.key.password"].source == ConfigSource.DEFAULT
