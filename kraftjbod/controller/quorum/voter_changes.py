"""PURE. Check changes of the voters, and compute the resulting set (KIP-853).

Only one change at a time is possible, and only if the metadata log names the voters
(``kraft.version`` 1). In a static quorum (``kraft.version`` 0) the controllers' files name them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.metadata_version import KRAFT_VERSION
from kraftjbod.core.node_config import Endpoint
from kraftjbod.protocol.rpc_messages import FeatureOutcome, UpdateFeaturesRequestRpc
from kraftjbod.protocol.rpc_quorum_messages import AddRaftVoterRequestRpc, RemoveRaftVoterRequestRpc
from kraftjbod.raft.machine.voter_set import ReplicaKey, Voter, VoterSet

_NAMED: Final = 1


def after_adding(voters: VoterSet, request: AddRaftVoterRequestRpc) -> VoterSet:
    """Return the voters with the requested one added.

    :raises OperatingError: UNSUPPORTED_VERSION, INVALID_REQUEST or DUPLICATE_VOTER.
    """
    _require_named(voters)
    try:
        endpoints = tuple(Endpoint.parse(text).text for text in request.endpoints)
    except ValueError as e:
        raise OperatingError(str(e), code=ErrorCode.INVALID_REQUEST) from e
    if not endpoints:
        raise OperatingError(
            f"controller {request.voter_id} says no endpoint to reach it at",
            code=ErrorCode.INVALID_REQUEST,
        )
    if any(key.node_id == request.voter_id for key in voters):
        raise OperatingError(
            f"controller {request.voter_id} votes already; if its disk was replaced, remove the "
            "voter with the former directory id first",
            code=ErrorCode.DUPLICATE_VOTER,
        )
    return voters.with_voter(Voter(ReplicaKey(request.voter_id, request.directory_id), endpoints))


def after_removing(voters: VoterSet, request: RemoveRaftVoterRequestRpc) -> VoterSet:
    """Return the voters without the requested one.

    :raises OperatingError: UNSUPPORTED_VERSION or VOTER_NOT_FOUND.
    """
    _require_named(voters)
    key = ReplicaKey(request.voter_id, request.directory_id)
    if key not in voters:
        raise OperatingError(
            f"no voter is {request.voter_id} with directory {request.directory_id}",
            code=ErrorCode.VOTER_NOT_FOUND,
        )
    if len(voters) == 1:
        raise OperatingError(
            f"controller {request.voter_id} is the last voter", code=ErrorCode.VOTER_NOT_FOUND
        )
    return voters.without(key)


def is_added(voters: VoterSet, request: AddRaftVoterRequestRpc) -> bool:
    """Return whether the request is a repetition whose first attempt has added the voter."""
    key = ReplicaKey(request.voter_id, request.directory_id)
    return request.is_repeated and request.was_checked and key in voters


def is_removed(voters: VoterSet, request: RemoveRaftVoterRequestRpc) -> bool:
    """Return whether the request is a repetition whose first attempt has removed the voter."""
    key = ReplicaKey(request.voter_id, request.directory_id)
    return request.is_repeated and request.was_checked and key not in voters


def _require_named(voters: VoterSet) -> None:
    if voters.is_static:
        raise OperatingError(
            "the voters are those of controller.quorum.voters; once every controller runs this "
            f"version, raise {KRAFT_VERSION}: kraftjbod-features upgrade --feature "
            f"{KRAFT_VERSION}={_NAMED}",
            code=ErrorCode.UNSUPPORTED_VERSION,
        )


def after_naming(voters: VoterSet, directories: Mapping[BrokerId, DirectoryId]) -> VoterSet:
    """Return the same voters, each with its directory id, as the metadata log names them.

    :raises OperatingError: INVALID_UPDATE_VERSION: the directory of a voter is not known yet.
    """
    unheard = sorted(key.node_id for key in voters if key.node_id not in directories)
    if unheard:
        raise OperatingError(
            f"controllers {unheard} have not reported to the active controller that their software "
            "can read the voters in the metadata log; start them with this version, and try again",
            code=ErrorCode.INVALID_UPDATE_VERSION,
        )
    return VoterSet(
        tuple(
            Voter(ReplicaKey(voter.key.node_id, directories[voter.key.node_id]), voter.endpoints)
            for voter in voters.voters
        )
    )


def is_about_voters(request: object) -> bool:
    """Return whether the request changes ``kraft.version``, which is not a level in the
    metadata."""
    return isinstance(request, UpdateFeaturesRequestRpc) and any(
        update.name == KRAFT_VERSION for update in request.updates
    )


def problem_of_update(voters: VoterSet, request: UpdateFeaturesRequestRpc) -> FeatureOutcome | None:
    """Return the refusal of an update of ``kraft.version``; None if it is possible.

    A known level can be set while the voters are static, later only the same level. The update must
    be the only one of its request.
    """
    (update, *others) = request.updates
    if others:
        code, why = ErrorCode.INVALID_REQUEST, f"{KRAFT_VERSION} cannot change with other features"
    elif update.level > _NAMED:
        code, why = ErrorCode.INVALID_UPDATE_VERSION, f"level {update.level} is not known"
    elif update.level < _NAMED and not voters.is_static:
        code, why = ErrorCode.INVALID_UPDATE_VERSION, "it cannot be lowered"
    else:
        return None
    return FeatureOutcome(name=KRAFT_VERSION, error_code=code, error_message=why)
