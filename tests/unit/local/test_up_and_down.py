"""Shape of a local cluster, and its lock; tests/integration runs daemons."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.core.errors import ConfigError, StartupError
from kraftjbod.core.properties import parse_properties
from kraftjbod.local.up_and_down import claimed, make_cluster, require_same_shape


@pytest.mark.parametrize(("brokers", "copies", "in_sync"), [(1, 1, 1), (2, 2, 1), (4, 3, 2)])
def test_make_cluster_sets_default_replication_factor(
    tmp_path: Path, brokers: int, copies: int, in_sync: int
) -> None:
    cluster = make_cluster(tmp_path, brokers=brokers, dirs=1, config={"num.partitions": "4"})
    files = {daemon.files.role: daemon.files.config_path for daemon in cluster.daemons}
    reported = {role: parse_properties(path.read_text(), str(path)) for role, path in files.items()}
    assert reported["broker"]["default.replication.factor"] == str(copies)
    assert reported["controller"]["min.insync.replicas"] == str(in_sync)
    assert reported["broker"]["num.partitions"] == "4"


def test_require_same_shape_and_make_cluster_reject_other_and_invalid_shapes(
    tmp_path: Path,
) -> None:
    cluster = make_cluster(tmp_path, brokers=2, dirs=1)
    require_same_shape(cluster)
    require_same_shape(cluster, brokers=2, dirs=1)
    with pytest.raises(ConfigError, match="has 2 brokers with 1 log directories each"):
        require_same_shape(cluster, dirs=2)
    with pytest.raises(ConfigError, match="1 to 32"):
        make_cluster(tmp_path / "other", brokers=33)
    with pytest.raises(ConfigError, match="did you mean num"):
        make_cluster(tmp_path / "other", config={"num.partition": "4"})
    assert not (tmp_path / "other").exists()


def test_claimed_admits_one_command_at_a_time(tmp_path: Path) -> None:
    refused = pytest.raises(StartupError, match="another command is starting or stopping")
    with claimed(tmp_path / "data"), refused, claimed(tmp_path / "data"):
        pass
    with claimed(tmp_path / "data"):
        pass
