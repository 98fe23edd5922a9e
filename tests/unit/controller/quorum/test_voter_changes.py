"""Changes of the voter set: refusals with their errors, and results."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.controller.quorum.voter_changes import (
    after_adding,
    after_naming,
    after_removing,
    is_added,
    is_removed,
    problem_of_update,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.metadata_version import KRAFT_VERSION
from kraftjbod.protocol.rpc_messages import FeatureUpdate, UpdateFeaturesRequestRpc
from kraftjbod.protocol.rpc_quorum_messages import AddRaftVoterRequestRpc, RemoveRaftVoterRequestRpc
from kraftjbod.raft.machine.voter_set import ReplicaKey, Voter, VoterSet

DIRS = {BrokerId(i): DirectoryId(bytes(15) + bytes([i])) for i in (1, 2, 3)}


def voter(node: int) -> Voter:
    return Voter(ReplicaKey(BrokerId(node), DIRS[BrokerId(node)]), (f"C://c{node}:9090",))


STATIC = VoterSet(tuple(Voter(ReplicaKey(BrokerId(i)), (f"C://c{i}:9090",)) for i in (1, 2)))
NAMED = VoterSet((voter(1), voter(2)))


def add(node: int, *endpoints: str) -> AddRaftVoterRequestRpc:
    return AddRaftVoterRequestRpc(
        voter_id=BrokerId(node), directory_id=DIRS[BrokerId(node)], endpoints=endpoints
    )


def remove(node: int, directory: int | None = None) -> RemoveRaftVoterRequestRpc:
    directory_id = DIRS[BrokerId(directory or node)]
    return RemoveRaftVoterRequestRpc(voter_id=BrokerId(node), directory_id=directory_id)


def test_repeated_voter_change_is_treated_as_done_only_if_sender_checked_the_voters() -> None:
    for needed in (False, True):
        checked = {"was_checked": needed, "is_repeated": True}
        assert is_added(NAMED, add(2, "C://c2:1").model_copy(update=checked)) is needed
        assert is_removed(NAMED, remove(2, 3).model_copy(update=checked)) is needed
        assert not is_added(NAMED, add(3, "C://c3:1").model_copy(update=checked))
        assert not is_removed(NAMED, remove(2).model_copy(update=checked))


@pytest.mark.parametrize(
    ("change", "voters", "request_", "code"),
    [
        (after_adding, STATIC, add(3, "C://c3:9090"), ErrorCode.UNSUPPORTED_VERSION),
        (after_adding, NAMED, add(3), ErrorCode.INVALID_REQUEST),
        (after_adding, NAMED, add(3, "c3"), ErrorCode.INVALID_REQUEST),
        (after_adding, NAMED, add(2, "C://c2:1"), ErrorCode.DUPLICATE_VOTER),
        (after_removing, STATIC, remove(2), ErrorCode.UNSUPPORTED_VERSION),
        (after_removing, NAMED, remove(3), ErrorCode.VOTER_NOT_FOUND),
        (after_removing, NAMED, remove(2, 3), ErrorCode.VOTER_NOT_FOUND),
        (after_removing, VoterSet((voter(1),)), remove(1), ErrorCode.VOTER_NOT_FOUND),
    ],
)
def test_voter_change_is_refused_with_error_code(
    change: Any, voters: VoterSet, request_: Any, code: ErrorCode
) -> None:
    with pytest.raises(OperatingError) as refused:
        change(voters, request_)
    assert refused.value.code is code


def test_after_naming_adding_and_removing_return_the_changed_voter_set() -> None:
    with pytest.raises(OperatingError, match=r"controllers \[2\] have not reported"):
        after_naming(STATIC, {BrokerId(1): DIRS[BrokerId(1)]})
    assert after_naming(STATIC, DIRS) == NAMED
    three = after_adding(NAMED, add(3, "C://c3:9090"))
    assert three == VoterSet((voter(1), voter(2), voter(3)))
    assert after_removing(three, remove(3)) == NAMED
    assert VoterSet.decode(three.encode()) == three


@pytest.mark.parametrize(
    ("voters", "level", "is_refused"),
    [
        (STATIC, 1, False),
        (STATIC, 0, False),
        (NAMED, 1, False),
        (NAMED, 0, True),
        (STATIC, 2, True),
    ],
)
def test_kraft_version_update_refuses_downgrades_and_unknown_levels(
    voters: VoterSet, level: int, is_refused: bool
) -> None:
    update = FeatureUpdate(name=KRAFT_VERSION, level=level, upgrade_type=1)
    problem = problem_of_update(voters, UpdateFeaturesRequestRpc(updates=(update,)))
    assert (problem is not None) is is_refused
