"""The files that ship with the package are ones that daemons take."""

from __future__ import annotations

from pathlib import Path

from kraftjbod.core.config import BrokerConfig, ControllerConfig, unknown_keys
from kraftjbod.core.properties import parse_properties
from kraftjbod.local.sample_config import write_samples


def test_samples_are_those_of_one_cluster_and_keep_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "broker-2.properties").write_text("mine=1\n")
    written = write_samples(tmp_path, brokers=3)
    assert [(path.name, is_new) for path, is_new in written.items()] == [
        ("controller-100.properties", True),
        ("broker-1.properties", True),
        ("broker-2.properties", False),
        ("broker-3.properties", True),
    ]
    assert (tmp_path / "broker-2.properties").read_text() == "mine=1\n"
    values = {path.stem: parse_properties(path.read_text(), str(path)) for path in written}
    for name in ("broker-1", "broker-3"):
        assert unknown_keys(BrokerConfig, values[name]) == []
    assert unknown_keys(ControllerConfig, values["controller-100"]) == []
    controller = ControllerConfig.from_properties(values["controller-100"], source="", base_dir="/")
    third = BrokerConfig.from_properties(values["broker-3"], source="", base_dir="/")
    assert (third.node_id, third.listeners[0].port, len(third.log_dirs)) == (3, 9094, 3)
    assert all(path.startswith("/var/lib/kraftjbod/broker-3/") for path in third.log_dirs)
    assert third.advertised_listeners == third.listeners
    assert third.controller_quorum_voters[0].port == controller.endpoint.port
