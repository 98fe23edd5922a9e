"""PURE. Reconciliation of a member from its current to its target assignment: first revoke, then
assign.

* Partitions outside the target are revoked. The member stays in its epoch until it reports that it
  released them.
* Then the member gets the target's epoch and those target partitions that no other member holds.
  The rest follows when the other members have released them.

Rules are Kafka's (CurrentAssignmentBuilder).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from kraftjbod.broker.groups.records.consumer_group_records import (
    CurrentAssignment,
    MemberState,
    Partitions,
)
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicId, TopicIdPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Destination:
    """Input of one step of a member's reconciliation: the member's target assignment and epoch, the
    present holders of partitions, and the partitions that the member reports.

    ``holders`` has the member id that holds a partition; such a partition is not assigned to
    another member yet.
    """

    member_id: str
    target: Partitions
    target_epoch: int
    topics: Collection[TopicId]
    """Topics that the member subscribes to."""
    is_subscription_new: bool = False
    holders: Mapping[TopicIdPartition, str]
    owned: Partitions | None = None
    """Partitions that the member reports as owned, possibly none; None if it reports nothing."""


def reconciled(current: CurrentAssignment, to: Destination) -> CurrentAssignment:
    """Return the member's assignment after the next step, or ``current`` if no step is possible
    now.

    :raises OperatingError: FENCED_MEMBER_EPOCH: the coordinator does not know the member's
        state, and the member owns partitions or does not report that it owns none.
    """
    match current.state:
        case MemberState.STABLE if current.epoch == to.target_epoch:
            return _without_dropped_topics(current, to)
        case MemberState.UNREVOKED_PARTITIONS if _still_owns(current.revoking, to):
            return _without_dropped_topics(current, to)
        case MemberState.UNKNOWN if to.owned is None or to.owned:
            raise OperatingError(
                "the member's state is not known here; it has to rejoin without partitions",
                code=ErrorCode.FENCED_MEMBER_EPOCH,
            )
        case _:
            return _next(current, to)


def _still_owns(partitions: Collection[TopicIdPartition], to: Destination) -> bool:
    return to.owned is None or any(one in to.owned for one in partitions)


def _without_dropped_topics(current: CurrentAssignment, to: Destination) -> CurrentAssignment:
    """Revoke the partitions of topics that the member no longer subscribes to.

    The revocation does not wait for another target assignment.
    """
    if not to.is_subscription_new:
        return current
    dropped = {one: at for one, at in current.assigned.items() if one.topic_id not in to.topics}
    if not dropped:
        return current
    kept = {one: at for one, at in current.assigned.items() if one not in dropped}
    revoking = {**current.revoking, **dropped}
    is_waiting = _still_owns(revoking, to)
    return CurrentAssignment(
        epoch=current.epoch,
        previous_epoch=current.epoch,
        state=MemberState.UNREVOKED_PARTITIONS if is_waiting else current.state,
        assigned=kept,
        revoking=revoking if is_waiting else current.revoking,
    )


def _next(current: CurrentAssignment, to: Destination) -> CurrentAssignment:
    target = {one for one in to.target if one.topic_id in to.topics}
    kept = {one: at for one, at in current.assigned.items() if one in target}
    revoking = {one: at for one, at in current.assigned.items() if one not in target}
    if revoking and _still_owns(revoking, to):
        return CurrentAssignment(
            epoch=current.epoch,
            previous_epoch=current.epoch,
            state=MemberState.UNREVOKED_PARTITIONS,
            assigned=kept,
            revoking=revoking,
        )
    missing = target - kept.keys()
    held = {one for one in missing if to.holders.get(one, to.member_id) != to.member_id}
    state = MemberState.UNRELEASED_PARTITIONS if held else MemberState.STABLE
    return CurrentAssignment(
        epoch=to.target_epoch,
        previous_epoch=current.epoch,
        state=state,
        assigned=kept | dict.fromkeys(missing - held, to.target_epoch),
        revoking={},
    )
