"""``write_samples``: the sample files of the package are accepted by daemons."""

from __future__ import annotations

from pathlib import Path

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.config_model import unknown_keys
from kraftjbod.core.properties import parse_properties
from kraftjbod.local.sample_config import sample_nodes, security_dir, write_samples


def test_write_samples_describes_one_cluster_and_keeps_existing_files(tmp_path: Path) -> None:
    (tmp_path / "broker-2.properties").write_text("mine=1\n")
    written = write_samples(tmp_path, brokers=3)
    assert [(path.name, is_new) for path, is_new in written.items()] == [
        *((f"controller-{number}.properties", True) for number in (100, 101, 102)),
        ("broker-1.properties", True),
        ("broker-2.properties", False),
        ("broker-3.properties", True),
    ]
    assert (tmp_path / "broker-2.properties").read_text() == "mine=1\n"
    values = {path.stem: parse_properties(path.read_text(), str(path)) for path in written}
    for name in ("broker-1", "broker-3"):
        assert unknown_keys(BrokerConfig, values[name]) == []
    controllers = [
        ControllerConfig.from_properties(values[f"controller-{number}"], source="", base_dir="/")
        for number in (100, 101, 102)
    ]
    assert unknown_keys(ControllerConfig, values["controller-102"]) == []
    voters = controllers[0].controller_quorum_voters
    assert [(v.node_id, v.port) for v in voters] == [
        (one.node_id, one.endpoint.port) for one in controllers
    ]
    assert all(one.controller_quorum_voters == voters for one in controllers)
    assert len({one.metadata_log_dir for one in controllers}) == 3
    third = BrokerConfig.from_properties(values["broker-3"], source="", base_dir="/")
    assert (third.node_id, third.listeners[0].port, len(third.log_dirs)) == (3, 9094, 3)
    assert all(path.startswith("/var/lib/kraftjbod/broker-3/") for path in third.log_dirs)
    assert third.advertised_listeners == third.listeners
    assert third.controller_quorum_voters == voters


def test_write_samples_with_one_controller_names_it_as_only_voter(tmp_path: Path) -> None:
    paths = list(write_samples(tmp_path, brokers=1, controllers=1))
    assert [path.stem for path in paths] == ["controller-100", "broker-1"]
    for path in paths:
        voters = parse_properties(path.read_text(), str(path))["controller.quorum.voters"]
        assert voters == "100@127.0.0.1:9090"


def test_secured_samples_are_accepted_and_name_the_keys_of_their_nodes(tmp_path: Path) -> None:
    paths = list(write_samples(tmp_path, brokers=2, secured=True))
    names = {node.name for node in sample_nodes(brokers=2, controllers=3)}
    assert names == {path.stem for path in paths}
    for path in paths:
        values = parse_properties(path.read_text(), str(path))
        folder = security_dir(tmp_path) / path.stem
        assert values["ssl.keystore.location"] == f"{folder}/node.pem"
        assert values["ssl.truststore.location"] == f"{folder}/ca.pem"
        assert "@" not in path.read_text().partition("# Added at the end")[2]
        daemon = BrokerConfig if path.stem.startswith("broker") else ControllerConfig
        unknown = unknown_keys(daemon, values)
        assert [key for key in unknown if not key.startswith("listener.name.")] == []
        config = daemon.from_properties(values, source="", base_dir="/")
        assert config.cluster_node_principals and not config.allow_insecure_cluster_listener
        assert {config.protocol_of(one.name) for one in config.listeners} <= {"SSL", "SASL_SSL"}
