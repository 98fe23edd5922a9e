"""Traces in nearby directories that show that a cluster was used before."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.cli.earlier_cluster import find_earlier_cluster
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.storage.meta_properties import MetaProperties, write_meta_properties
from kraftjbod.storage.vfs import RealVfs

CLUSTER = "Ly8mJ2xkQpGdTn7tYw0fVA"


def format_dir(path: Path, cluster_id: str = CLUSTER) -> Path:
    path.mkdir(parents=True)
    properties = MetaProperties(
        cluster_id=cluster_id, node_id=BrokerId(1), directory_id=DirectoryId(b"d" * 16)
    )
    write_meta_properties(RealVfs(), str(path), properties)
    return path


@pytest.mark.parametrize("place", ["broker-1", "broker-1/disk-1", "x/controller-2/disk"])
@pytest.mark.parametrize("trace", ["orders-0", "orders-0.0123456789abcdef0123456789abcdef-stray"])
def test_find_earlier_cluster_finds_replicas_of_same_cluster_nearby(
    tmp_path: Path, place: str, trace: str
) -> None:
    home = tmp_path / "x/controller"
    used = format_dir(tmp_path / place)
    assert find_earlier_cluster(str(home), CLUSTER) is None
    (used / trace).mkdir()
    assert str(used) in (find_earlier_cluster(str(home), CLUSTER) or "")
    assert find_earlier_cluster(str(home), "another") is None


def test_find_earlier_cluster_finds_metadata_log_in_the_directory_itself(tmp_path: Path) -> None:
    (tmp_path / "__cluster_metadata-0").mkdir()
    assert "__cluster_metadata-0 is left" in (find_earlier_cluster(str(tmp_path), CLUSTER) or "")
