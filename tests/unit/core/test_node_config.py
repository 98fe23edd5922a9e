"""``NodeConfig``: configuration that brokers and controllers share."""

from __future__ import annotations

from kraftjbod.core.config_model import config_text
from kraftjbod.core.node_config import Endpoint, NodeConfig, StorageSettings, Voter

NODE = {
    "process.roles": "broker",
    "node.id": "1",
    "log.dirs": "d0, /mnt/d1/../d1",
    "listeners": "plaintext://:9092,OTHER://[::1]:9094",
    "controller.quorum.voters": "100@127.0.0.1:9093",
}


def node(**more: str) -> NodeConfig:
    values = NODE | {key.replace("_", "."): value for key, value in more.items()}
    return NodeConfig.from_properties(values, source="n.properties", base_dir="/srv")


def test_log_dirs_become_absolute_paths() -> None:
    config = node()
    assert config.data_dirs == ("/srv/d0", "/mnt/d1")
    assert config.metadata_dir == "/srv/d0"
    assert node(metadata_log_dir="m").metadata_dir == "/srv/m"


def test_log_dir_is_the_fallback_of_log_dirs() -> None:
    values = {key: value for key, value in NODE.items() if key != "log.dirs"}
    settings = StorageSettings.from_properties(
        values | {"log.dir": "one"}, source="x", base_dir="/srv"
    )
    assert settings.data_dirs == ("/srv/one",)


def test_ipv4_address_in_ipv6_notation_is_parsed_as_ipv4() -> None:
    """As Java does. No system can bind an IPv6 socket to such an address."""
    assert Endpoint.parse("A://[::ffff:127.0.0.1]:1") == Endpoint("A", "127.0.0.1", 1)
    assert Endpoint.parse("A://[fe80::1%eth0]:1") == Endpoint("A", "fe80::1%eth0", 1)


def test_listeners_with_ipv6_addresses_are_described_in_brackets() -> None:
    config = node(controller_quorum_voters="100@[::1]:9093")
    values = config.by_key()
    assert config_text(values["listeners"]) == "PLAINTEXT://0.0.0.0:9092,OTHER://[::1]:9094"
    assert config_text(values["controller.quorum.voters"]) == "100@[::1]:9093"


def test_listeners_and_voters_are_parsed() -> None:
    config = node()
    assert config.listeners == (
        Endpoint("PLAINTEXT", "0.0.0.0", 9092),
        Endpoint("OTHER", "::1", 9094),
    )
    assert config.controller_quorum_voters == (Voter(100, "127.0.0.1", 9093),)  # type: ignore[arg-type]
