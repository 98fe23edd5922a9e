"""Files of a secure local cluster; tests/integration/local runs daemons with them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.errors import ConfigError, StartupError
from kraftjbod.core.properties import parse_properties
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.cluster_security import CLIENT_LISTENER, SECURITIES


@pytest.mark.parametrize("security", SECURITIES)
def test_created_secure_cluster_has_a_second_listener_and_client_settings(
    tmp_path: Path, security: str
) -> None:
    made = ClusterProcesses.create(tmp_path, brokers=2, security=security)
    made.write_cluster_json()
    cluster = ClusterProcesses.load(tmp_path)
    assert cluster is not None and cluster.security == made.security
    assert [one.files for one in cluster.daemons] == [one.files for one in made.daemons]
    for broker in cluster.brokers.values():
        path = broker.files.config_path
        values = parse_properties(path.read_text(), str(path))
        config = BrokerConfig.from_properties(values, source=str(path), base_dir=str(tmp_path))
        assert config.protocol_of(CLIENT_LISTENER) == security.upper()
        assert broker.client_address in cluster.bootstrap_servers
    assert cluster.security is not None
    for user in ("admin", "client"):
        path = cluster.security.properties_path(user)
        assert path.stat().st_mode & 0o777 == 0o600
        settings = cluster.security.settings_of(user)
        settings.make_dialer(str(path))
        assert (settings.make_login(str(path)) is not None) == security.startswith("sasl")
    document = json.loads((tmp_path / "cluster.json").read_text())
    assert document["client_properties"] == str(cluster.security.properties_path())


def test_scram_users_of_loaded_cluster_are_those_of_created_one(tmp_path: Path) -> None:
    made = ClusterProcesses.create(tmp_path, brokers=1, security="sasl_plaintext")
    made.write_cluster_json()
    loaded = ClusterProcesses.load(tmp_path)
    assert made.security is not None and loaded is not None and loaded.security is not None
    assert loaded.security.scram_users() == made.security.scram_users()
    assert [user.name for user in made.security.scram_users()] == ["admin", "client"]
    made.security.properties_path("admin").unlink()
    with pytest.raises(StartupError, match=r"cannot read .*admin\.properties"):
        made.security.scram_users()


def test_added_broker_of_secure_cluster_has_both_listeners(tmp_path: Path) -> None:
    cluster = ClusterProcesses.create(tmp_path, brokers=1, security="ssl")
    cluster.add_brokers(1)
    files = cluster.brokers[2].files
    assert files.client_port not in (None, files.port)
    assert f"{CLIENT_LISTENER}\\://" in files.config_path.read_text()


def test_create_refuses_unknown_security_and_security_with_hosts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one of ssl, sasl_ssl, sasl_plaintext"):
        ClusterProcesses.create(tmp_path / "run", security="tls")
    with pytest.raises(ConfigError, match="leave out hosts"):
        ClusterProcesses.create(tmp_path / "run", security="ssl", hosts=True)
    assert not (tmp_path / "run").exists()
