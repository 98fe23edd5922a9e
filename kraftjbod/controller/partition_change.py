"""From a partition and what is wanted of it to at most one record: election, ISR, directories.

Rules of this file:

* an *acceptable* leader has an active broker and an online directory; a *valid* one is acceptable
  and in the wanted in-sync set;
* the in-sync set is never emptied: its last member stays while the partition has no leader, so
  that it can lead again when it returns;
* only an unclean election may choose outside the in-sync set; it leaves that one member, marked
  as recovering;
* every change completes a reassignment for which its time has come, if somebody in the target can
  lead; the leader epoch grows whenever a replica goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeVar

from kraftjbod.controller.partition_assignment import Assignment
from kraftjbod.core.ids import MIGRATING_DIR, NO_LEADER, BrokerId, DirectoryId, TopicIdPartition
from kraftjbod.metadata.records import PartitionChangeRecord
from kraftjbod.metadata.registrations import PartitionRegistration


class Election(Enum):
    """How far an election may go."""

    PREFERRED = "preferred"
    """The first replica if it can, else whoever leads."""
    ONLINE = "online"
    """Whoever leads if it still can, else the first that can."""
    UNCLEAN = "unclean"
    """As ONLINE, and then the first acceptable replica even if it may miss records."""


T = TypeVar("T")

IsAcceptable = Callable[[BrokerId, DirectoryId], bool]


def change_partition(
    key: TopicIdPartition,
    before: PartitionRegistration,
    *,
    election: Election,
    is_acceptable: IsAcceptable,
    isr: Sequence[BrokerId] | None = None,
    assignment: Assignment | None = None,
    leader_recovering: bool | None = None,
) -> PartitionChangeRecord | None:
    """The record that gives the partition what is wanted; None if that is so already.

    A wanted assignment must keep a member of the in-sync set, or UNCLEAN must find a leader in it.

    :param isr: the wanted in-sync set; None keeps it.
    :param assignment: the wanted replicas and their directories; None keeps them.
    :param leader_recovering: the wanted recovery state; an unclean election overrides it.
    """
    wanted = Assignment.of(before) if assignment is None else assignment

    def can_lead(replica: BrokerId) -> bool:
        return is_acceptable(replica, wanted.directory_of(replica))

    wanted_isr = before.isr if isr is None else tuple(isr)
    wanted = _completed_if_due(wanted, wanted_isr, can_lead)
    wanted_isr = _members(wanted_isr, wanted)
    leader = _elect_clean(before, election, wanted, wanted_isr, can_lead)
    if leader == NO_LEADER and election is Election.UNCLEAN:
        leader = _elect_any(wanted, can_lead)
        if leader != NO_LEADER:
            wanted_isr, leader_recovering = (leader,), True
    if not wanted_isr:
        wanted_isr = _members(before.isr, wanted)
        assert wanted_isr, (key, before, wanted)
    loses_replicas = not set(before.replicas) <= set(wanted.replicas)
    record = PartitionChangeRecord(
        topic_id=key.topic_id,
        partition_id=key.partition,
        isr=_if_new(wanted_isr, before.isr),
        # A new epoch tells a replica that left apart from one that fetches by right.
        leader=leader if loses_replicas else _if_new(leader, before.leader),
        replicas=_if_new(wanted.replicas, before.replicas),
        directories=_new_directories(wanted, before),
        leader_recovering=_if_new(leader_recovering, before.leader_recovering),
        adding_replicas=_if_new(wanted.adding, before.adding_replicas),
        removing_replicas=_if_new(wanted.removing, before.removing_replicas),
    )
    return record if _changes_something(record) else None


def _completed_if_due(
    wanted: Assignment, isr: tuple[BrokerId, ...], can_lead: Callable[[BrokerId], bool]
) -> Assignment:
    if not wanted.is_complete(isr):
        return wanted
    completed = wanted.completed()
    return completed if any(map(can_lead, _members(isr, completed))) else wanted


def _members(isr: Sequence[BrokerId], assignment: Assignment) -> tuple[BrokerId, ...]:
    return tuple(member for member in isr if member in assignment.replicas)


def _elect_clean(
    before: PartitionRegistration,
    election: Election,
    wanted: Assignment,
    isr: tuple[BrokerId, ...],
    can_lead: Callable[[BrokerId], bool],
) -> BrokerId:
    first = wanted.replicas[:1] if election is Election.PREFERRED else ()
    candidates = (*first, before.leader, *wanted.replicas)
    return next((c for c in candidates if c in isr and can_lead(c)), NO_LEADER)


def _elect_any(wanted: Assignment, can_lead: Callable[[BrokerId], bool]) -> BrokerId:
    """An added replica only if no other is there: it may not hold anything yet."""
    candidates = (*wanted.original, *wanted.adding)
    return next(filter(can_lead, candidates), NO_LEADER)


def _if_new(wanted: T | None, present: T) -> T | None:
    return None if wanted == present else wanted


def _new_directories(
    wanted: Assignment, before: PartitionRegistration
) -> tuple[DirectoryId, ...] | None:
    """A record that changes replicas and names no directories says that none is known."""
    if wanted.replicas == before.replicas:
        return _if_new(wanted.directories, before.directories)
    return _if_new(wanted.directories, (MIGRATING_DIR,) * len(wanted.replicas))


def _changes_something(record: PartitionChangeRecord) -> bool:
    changes = (
        record.isr,
        record.leader,
        record.replicas,
        record.directories,
        record.leader_recovering,
        record.adding_replicas,
        record.removing_replicas,
    )
    return any(change is not None for change in changes)
