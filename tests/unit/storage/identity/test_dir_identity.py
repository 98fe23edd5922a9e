"""Table of all results of ``identify``."""

from __future__ import annotations

import pytest

from kraftjbod.core.ids import LOST_DIR, BrokerId, DirectoryId
from kraftjbod.storage.identity.dir_identity import (
    Found,
    Identity,
    Refused,
    Unnamed,
    foreign,
    identify,
)
from kraftjbod.storage.identity.known_dirs import KnownDirs
from kraftjbod.storage.meta_properties import MetaProperties
from tests.faults.rig import CLUSTER_ID, NODE_ID, directory_id

A, B, C = (directory_id(n) for n in (1, 2, 3))
KNOWN = KnownDirs(ids={"/a": A, "/b": B})


def properties(
    uid: DirectoryId | None, *, cluster_id: str = CLUSTER_ID, node_id: int = NODE_ID
) -> MetaProperties:
    return MetaProperties(cluster_id=cluster_id, node_id=BrokerId(node_id), directory_id=uid)


def identify_disk(
    path: str, found: MetaProperties | None, present: dict[DirectoryId, str] | None = None
) -> Identity:
    return identify(
        path,
        found,
        known=KNOWN,
        present=present or {},
        cluster_id=CLUSTER_ID,
        node_id=NODE_ID,
    )


@pytest.mark.parametrize(
    ("path", "found", "present", "expected"),
    [
        pytest.param("/a", properties(A), {A: "/a"}, Found(directory_id=A), id="unchanged"),
        pytest.param(
            "/b", properties(A), {A: "/b"}, Found(directory_id=A), id="moved to a known path"
        ),
        pytest.param(
            "/new", properties(A), {A: "/new"}, Found(directory_id=A), id="moved to a new path"
        ),
        pytest.param("/new", properties(C), {C: "/new"}, Found(directory_id=C), id="formatted"),
        pytest.param(
            "/a", properties(C), {C: "/a", A: "/x"}, Found(directory_id=C), id="path was vacated"
        ),
        pytest.param("/new", None, {}, Unnamed(), id="unformatted"),
        pytest.param("/new", properties(None), {}, Unnamed(), id="without directory.id"),
    ],
)
def test_identify_accepts_disks_of_this_node(
    path: str, found: MetaProperties | None, present: dict[DirectoryId, str], expected: Identity
) -> None:
    assert identify_disk(path, found, present) == expected


@pytest.mark.parametrize(
    ("found", "present", "missing", "message"),
    [
        pytest.param(None, {}, A, f"directory {A} is missing from /a: ", id="unformatted"),
        pytest.param(
            properties(C), {C: "/a"}, A, f"the disk there is directory {C}", id="another directory"
        ),
        pytest.param(None, {A: "/x"}, None, f"{A} was at /a and is at /x now", id="moved away"),
        pytest.param(
            properties(A, cluster_id="other"),
            {A: "/a"},
            A,
            f"directory {A} at /a belongs to cluster other, and this node to {CLUSTER_ID}",
            id="another cluster",
        ),
        pytest.param(
            properties(C, node_id=9),
            {C: "/a"},
            A,
            f"directory {C} at /a belongs to node 9, and this is node {NODE_ID}",
            id="another node",
        ),
        pytest.param(
            properties(LOST_DIR), {LOST_DIR: "/a"}, A, "reserved directory ID", id="reserved id"
        ),
    ],
)
def test_identify_refuses_disks_with_a_reason(
    found: MetaProperties | None,
    present: dict[DirectoryId, str],
    missing: DirectoryId | None,
    message: str,
) -> None:
    answer = identify_disk("/a", found, present)
    assert isinstance(answer, Refused)
    assert answer.directory_id == missing
    assert message in answer.reason


def test_foreign_detects_another_node_without_a_directory_id() -> None:
    reason = foreign("/x", properties(None, node_id=9), cluster_id=CLUSTER_ID, node_id=NODE_ID)
    assert reason is not None
    assert reason.startswith("the disk at /x belongs to node 9")
