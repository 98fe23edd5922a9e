"""``meta.properties`` files, and their consistency over the directories of a node."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.storage.meta_properties import (
    MetaProperties,
    MetaPropertiesEnsemble,
    parse_meta_properties,
    read_meta_properties,
    write_meta_properties,
)
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import CLUSTER_ID, NODE_ID, directory_id


def properties(number: int = 1, **changes: object) -> MetaProperties:
    values = {"cluster_id": CLUSTER_ID, "node_id": NODE_ID, "directory_id": directory_id(number)}
    return MetaProperties(**{**values, **changes})  # type: ignore[arg-type]


def ensemble(**loaded: MetaProperties) -> MetaPropertiesEnsemble:
    return MetaPropertiesEnsemble(metadata_dir="a", loaded=loaded)


def test_meta_properties_are_read_as_written() -> None:
    vfs = MemVfs()
    vfs.make_dirs("/d")
    assert read_meta_properties(vfs, "/d/meta.properties") is None
    write_meta_properties(vfs, "/d", properties())
    assert read_meta_properties(vfs, "/d/meta.properties") == properties()
    lines = bytes(vfs.read_if_exists("/d/meta.properties") or b"").decode().splitlines()
    assert [line for line in lines if not line.startswith("#")] == [
        f"cluster.id={CLUSTER_ID}",
        f"directory.id={directory_id(1)}",
        "node.id=1",
        "version=1",
    ]


def test_parse_meta_properties_version_0_has_a_broker_id() -> None:
    found = parse_meta_properties("version=0\nbroker.id=4\ncluster.id=x\n", "p")
    assert (found.node_id, found.directory_id, found.version) == (4, None, 0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("version=1\nnode.id=1", "cluster.id was not found."),
        ("version=1\ncluster.id=x", "node.id was not found."),
        ("version=2", "Unknown meta.properties version number 2"),
        ("version=x", "Invalid meta.properties version string 'x'"),
        ("version=1\ncluster.id=x\nnode.id=y", "Invalid node id 'y'"),
        ("version=1\ncluster.id=x\nnode.id=1\ndirectory.id=z", "'z' is not a uuid"),
    ],
)
def test_parse_meta_properties_rejects_a_wrong_file_and_names_its_path(
    text: str, message: str
) -> None:
    with pytest.raises(StartupError, match="the/path") as caught:
        parse_meta_properties(text, "the/path")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (ensemble(a=properties(1), b=properties(1)), "It was the ID of a, but also of b"),
        (ensemble(a=properties(1), b=properties(2, cluster_id="y")), "Invalid cluster.id in: b/"),
        (ensemble(a=properties(1, node_id=BrokerId(2))), "Stored node id 2 doesn't match"),
        (
            ensemble(a=properties(1, directory_id=DirectoryId(bytes(16)))),
            "Invalid reserved directory ID",
        ),
        (
            MetaPropertiesEnsemble(metadata_dir="a", loaded={}, errors={"a": "EIO"}),
            "Encountered I/O error in metadata log directory a",
        ),
    ],
)
def test_meta_properties_ensemble_rejects_contradictions(
    found: MetaPropertiesEnsemble, message: str
) -> None:
    with pytest.raises(StartupError) as caught:
        found.verify(node_id=NODE_ID)
    assert message in str(caught.value)


def test_meta_properties_ensemble_accepts_consistent_directories() -> None:
    found = ensemble(a=properties(1), b=properties(2), c=properties(3, directory_id=None))
    found.verify(node_id=NODE_ID)
    assert found.cluster_id == CLUSTER_ID
