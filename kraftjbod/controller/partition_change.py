"""From a partition and what is wanted of it to at most one record: election, ISR, directories.

Rules of this file:

* elections go through the in-sync set: its acceptable members first (acceptance.py), and only if
  there is none those of last resort, the present leader before all others (KIP-928);
* whoever is not acceptable leaves the in-sync set, but for a leader of last resort;
* the in-sync set is never emptied: its last member stays while the partition has no leader, so
  that it can lead again when it returns;
* only an unclean election may choose outside the in-sync set, and only if nobody in it can lead at
  all; it leaves that one member, marked as recovering;
* every change completes a reassignment for which its time has come: the replicas that it waits for
  are in sync and acceptable; the leader epoch grows whenever a replica goes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, TypeVar

from kraftjbod.controller.acceptance import Acceptance, AcceptanceOf
from kraftjbod.controller.partition_assignment import Assignment
from kraftjbod.core.ids import MIGRATING_DIR, NO_LEADER, BrokerId, DirectoryId, TopicIdPartition
from kraftjbod.metadata.records import PartitionChangeRecord
from kraftjbod.metadata.registrations import PartitionRegistration


class Election(Enum):
    """How far an election may go."""

    PREFERRED = "preferred"
    """The first replica if it is acceptable, else as ONLINE."""
    ONLINE = "online"
    """Whoever leads if it still can, else the first that can."""
    UNCLEAN = "unclean"
    """As ONLINE, and then the first replica that can lead even if it may miss records."""


T = TypeVar("T")

_Standing = Callable[[BrokerId], Acceptance]
_ACCEPTABLE: Final = Acceptance.ACCEPTABLE
_LAST_RESORT: Final = Acceptance.LAST_RESORT


def change_partition(
    key: TopicIdPartition,
    before: PartitionRegistration,
    *,
    election: Election,
    acceptance: AcceptanceOf,
    isr: Sequence[BrokerId] | None = None,
    assignment: Assignment | None = None,
    leader_recovering: bool | None = None,
) -> PartitionChangeRecord | None:
    """The record that gives the partition what is wanted; None if that is so already.

    A wanted assignment must keep a member of the in-sync set, or UNCLEAN must find a leader in it.

    :param isr: the wanted in-sync set; None keeps it. If it is empty, the present one stays until
        somebody can lead.
    :param assignment: the wanted replicas and their directories; None keeps them.
    :param leader_recovering: the wanted recovery state; an unclean election overrides it.
    """
    wanted = Assignment.of(before) if assignment is None else assignment

    def standing(replica: BrokerId) -> Acceptance:
        return acceptance(replica, wanted.directory_of(replica))

    wanted_isr = _members(before.isr if isr is None else isr, wanted)
    wanted = _completed_if_due(wanted, _acceptable(wanted_isr, standing))
    wanted_isr = _members(wanted_isr, wanted) or _members(before.isr, wanted)
    leader = _elect_clean(before, election, wanted, wanted_isr, standing)
    if leader == NO_LEADER and election is Election.UNCLEAN:
        leader = _elect_any(wanted, standing)
        if leader != NO_LEADER:
            wanted_isr, leader_recovering = (leader,), True
    if leader != NO_LEADER:
        wanted_isr = _acceptable(wanted_isr, standing) or (leader,)
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


def _completed_if_due(wanted: Assignment, fit: tuple[BrokerId, ...]) -> Assignment:
    """``fit`` are the members of the in-sync set that are acceptable."""
    if not wanted.is_complete(fit):
        return wanted
    completed = wanted.completed()
    return completed if _members(fit, completed) else wanted


def _members(isr: Sequence[BrokerId], assignment: Assignment) -> tuple[BrokerId, ...]:
    return tuple(member for member in isr if member in assignment.replicas)


def _acceptable(isr: Sequence[BrokerId], standing: _Standing) -> tuple[BrokerId, ...]:
    return tuple(member for member in isr if standing(member) is _ACCEPTABLE)


def _elect_clean(
    before: PartitionRegistration,
    election: Election,
    wanted: Assignment,
    isr: tuple[BrokerId, ...],
    standing: _Standing,
) -> BrokerId:
    first = wanted.replicas[:1] if election is Election.PREFERRED else ()
    in_order = (before.leader, *wanted.replicas)
    acceptable = (c for c in (*first, *in_order) if c in isr and standing(c) is _ACCEPTABLE)
    last_resort = (c for c in in_order if c in isr and standing(c) is _LAST_RESORT)
    return next(itertools.chain(acceptable, last_resort), NO_LEADER)


def _elect_any(wanted: Assignment, standing: _Standing) -> BrokerId:
    """An added replica only if no other is there: it may not hold anything yet."""
    in_order = (*wanted.original, *wanted.adding)
    acceptable = (c for c in in_order if standing(c) is _ACCEPTABLE)
    last_resort = (c for c in in_order if standing(c) is _LAST_RESORT)
    return next(itertools.chain(acceptable, last_resort), NO_LEADER)


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
