"""PURE. Compute the record that changes a partition: leader, ISR, ELR and directories.

Rules of this file:

* A leader is elected from the in-sync set: an acceptable member (acceptance.py), or else a member
  of last resort, the present leader first (KIP-928).
* Members that are not acceptable leave the in-sync set, except a leader of last resort.
* With eligible leader replicas (KIP-966) the in-sync set may become empty. If it is smaller than
  ``min.insync.replicas``, nothing new is committed. So members that left it remain eligible, and
  are elected if no member of the in-sync set can lead (ADR 57).
* Without eligible leader replicas the set is never emptied. Its last member stays while the
  partition has no leader, so that this member can lead after its return.
* A replica that returned *unclean* may have lost the end of its log. It is neither in sync nor
  eligible. If no replica is left that is, the last known leader leads again, marked as recovering.
* A leader that returned unclean never continues in the same leader epoch.
* Only an unclean election may choose another replica, and only if none of these can lead. The
  in-sync set is then the new leader, marked as recovering.
* Every change completes a reassignment that is due: the replicas that it waits for are in sync and
  acceptable, and enough of the target are in sync to commit. The leader epoch grows whenever a
  replica is removed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeVar

from kraftjbod.controller.partitions.acceptance import Acceptance, AcceptanceOf
from kraftjbod.controller.partitions.partition_assignment import Assignment
from kraftjbod.controller.partitions.topic_rules import TopicRules
from kraftjbod.core.ids import (
    LOST_DIR,
    MIGRATING_DIR,
    NO_LEADER,
    BrokerId,
    DirectoryId,
    TopicIdPartition,
)
from kraftjbod.metadata.records import PartitionChangeRecord
from kraftjbod.metadata.registrations import PartitionRegistration


class Election(Enum):
    """Which replicas an election may choose."""

    PREFERRED = "preferred"
    """The first replica if it is acceptable, else as ONLINE."""
    ONLINE = "online"
    """The present leader if it still can lead, else the first in-sync replica that can."""
    UNCLEAN = "unclean"
    """As ONLINE, then the first replica that can lead, even if it may lack records."""

    @classmethod
    def allowed_by(cls, rules: TopicRules) -> Election:
        return cls.UNCLEAN if rules.may_elect_unclean else cls.ONLINE


T = TypeVar("T")

_AcceptanceOf = Callable[[BrokerId], Acceptance]
_ACCEPTABLE: Final = Acceptance.ACCEPTABLE
_LAST_RESORT: Final = Acceptance.LAST_RESORT


class _Elected(NamedTuple):
    """The leader that an election has chosen, and whether the election was unclean, so that the
    leader may lack committed records.
    """

    leader: BrokerId
    unclean: bool = False


def change_partition(
    key: TopicIdPartition,
    before: PartitionRegistration,
    *,
    rules: TopicRules,
    election: Election,
    acceptance: AcceptanceOf,
    isr: Sequence[BrokerId] | None = None,
    assignment: Assignment | None = None,
    leader_recovering: bool | None = None,
    unclean: BrokerId | None = None,
) -> PartitionChangeRecord | None:
    """Return the record of the requested change; None if it changes nothing.

    A requested assignment must keep an in-sync or eligible replica, or UNCLEAN must find a leader.

    :param election: the replicas that may become leader.
    :param acceptance: returns whether a replica may lead and be in sync.
    :param isr: the requested in-sync replicas; None keeps them. Without eligible leader replicas,
        an empty set keeps the present one until a replica can lead.
    :param assignment: the requested replicas and their directories; None keeps them.
    :param leader_recovering: the requested recovery state; an unclean election overrides it.
    :param unclean: a replica that may have lost the end of its log.
    """
    wanted = Assignment.of_partition(before) if assignment is None else assignment

    def acceptance_of(replica: BrokerId) -> Acceptance:
        return acceptance(replica, wanted.directory_of(replica))

    asked = [m for m in (before.isr if isr is None else isr) if m != unclean]
    wanted_isr = _members(asked, wanted)
    wanted = _completed_if_due(wanted, _acceptable(wanted_isr, acceptance_of), rules)
    wanted_isr = _members(wanted_isr, wanted)
    if not wanted_isr and not rules.has_elr:
        wanted_isr = _members(before.isr, wanted)
        leader_recovering = True if unclean in wanted_isr else leader_recovering
    eligible = _eligible(before, wanted, unclean) if rules.has_elr else ()
    last_known = _last_known(before, wanted, unclean)
    elected = _elect(before, election, wanted, acceptance_of, wanted_isr, eligible, last_known)
    leader = elected.leader
    if elected.unclean:
        wanted_isr, eligible, leader_recovering = (leader,), (), True
    elif leader != NO_LEADER:
        in_sync = _acceptable(wanted_isr, acceptance_of)
        wanted_isr = in_sync if leader in in_sync else (leader,)
    elif rules.has_elr:
        wanted_isr = ()
    assert wanted_isr or rules.has_elr, (key, before, wanted)
    is_enough = len(wanted_isr) >= wanted.min_isr(rules.min_isr)
    is_leaderless = rules.has_elr and leader == NO_LEADER
    is_new_epoch = before.leader == unclean or not set(before.replicas) <= set(wanted.replicas)
    record = PartitionChangeRecord(
        topic_id=key.topic_id,
        partition_id=key.partition,
        isr=_if_new(wanted_isr, before.isr),
        # A new epoch distinguishes a removed replica from one that may fetch.
        leader=leader if is_new_epoch else _if_new(leader, before.leader),
        replicas=_if_new(wanted.replicas, before.replicas),
        directories=_new_directories(wanted, before),
        leader_recovering=_if_new(leader_recovering, before.leader_recovering),
        adding_replicas=_if_new(wanted.adding, before.adding_replicas),
        removing_replicas=_if_new(wanted.removing, before.removing_replicas),
        elr=_if_new(() if is_enough else _without(eligible, wanted_isr), before.elr),
        last_known_elr=_if_new(last_known if is_leaderless else (), before.last_known_elr),
    )
    return record if _changes_something(record) else None


def _completed_if_due(
    wanted: Assignment, fit: tuple[BrokerId, ...], rules: TopicRules
) -> Assignment:
    """Return ``wanted`` with its reassignment completed if that is due, else unchanged.

    A completion is due if all awaited replicas are in ``fit``, the acceptable in-sync replicas, and
    enough in-sync replicas remain for ``min.insync.replicas``.
    """
    if not wanted.is_complete(fit):
        return wanted
    completed = wanted.completed()
    # A removed replica is a copy that counted when records were acknowledged.
    stay = _members(fit, completed)
    return completed if len(stay) >= completed.min_isr(rules.min_isr) else wanted


def _members(isr: Sequence[BrokerId], assignment: Assignment) -> tuple[BrokerId, ...]:
    return tuple(member for member in isr if member in assignment.replicas)


def _without(replicas: Iterable[BrokerId], others: Sequence[BrokerId]) -> tuple[BrokerId, ...]:
    return tuple(replica for replica in replicas if replica not in others)


def _acceptable(isr: Sequence[BrokerId], acceptance_of: _AcceptanceOf) -> tuple[BrokerId, ...]:
    return tuple(member for member in isr if acceptance_of(member) is _ACCEPTABLE)


def _eligible(
    before: PartitionRegistration, wanted: Assignment, unclean: BrokerId | None
) -> tuple[BrokerId, ...]:
    """Return the replicas, except ``unclean``, that were in sync or eligible, in assignment
    order."""
    whole = {*before.isr, *before.elr} - {unclean}
    return tuple(replica for replica in wanted.replicas if replica in whole)


def _last_known(
    before: PartitionRegistration, wanted: Assignment, unclean: BrokerId | None
) -> tuple[BrokerId, ...]:
    """Return the candidates for leader if no replica is in sync or eligible any more.

    A lost copy has no records and is recreated: any other replica has more. A clean replica is also
    preferred to one that returns unclean.
    """
    present = (before.leader,) if before.has_leader else before.last_known_elr
    there = [r for r in wanted.replicas if wanted.directory_of(r) != LOST_DIR and r != unclean]
    for known in (present, before.holders):
        if left := _members([replica for replica in known if replica in there], wanted):
            return left
    return _members(present, wanted) or _members(before.holders, wanted)


def _elect(
    before: PartitionRegistration,
    election: Election,
    wanted: Assignment,
    acceptance_of: _AcceptanceOf,
    isr: tuple[BrokerId, ...],
    eligible: tuple[BrokerId, ...],
    last_known: tuple[BrokerId, ...],
) -> _Elected:
    clean = _clean_candidates(before, election, wanted, acceptance_of, isr, eligible)
    leader = next(clean, NO_LEADER)
    if leader != NO_LEADER:
        return _Elected(leader)
    if not isr and not eligible:
        leader = next(_by_acceptance(last_known, acceptance_of), NO_LEADER)
    if leader == NO_LEADER and election is Election.UNCLEAN:
        # Added replicas come last: they may not have any records yet.
        in_order = (*wanted.original, *wanted.adding)
        leader = next(_by_acceptance(in_order, acceptance_of), NO_LEADER)
    return _Elected(leader, unclean=leader != NO_LEADER)


def _clean_candidates(
    before: PartitionRegistration,
    election: Election,
    wanted: Assignment,
    acceptance_of: _AcceptanceOf,
    isr: tuple[BrokerId, ...],
    eligible: tuple[BrokerId, ...],
) -> Iterator[BrokerId]:
    """Yield the replicas that may lead without loss of records, in order of preference.

    Acceptable in-sync replicas come first, then acceptable eligible ones, then replicas of last
    resort.
    """
    first = wanted.replicas[:1] if election is Election.PREFERRED else ()
    in_order = (before.leader, *wanted.replicas)
    for acceptance, candidates in ((_ACCEPTABLE, (*first, *in_order)), (_LAST_RESORT, in_order)):
        for whole in (isr, eligible):
            for candidate in candidates:
                if candidate in whole and acceptance_of(candidate) is acceptance:
                    yield candidate


def _by_acceptance(
    candidates: Sequence[BrokerId], acceptance_of: _AcceptanceOf
) -> Iterator[BrokerId]:
    acceptable = (c for c in candidates if acceptance_of(c) is _ACCEPTABLE)
    last_resort = (c for c in candidates if acceptance_of(c) is _LAST_RESORT)
    return itertools.chain(acceptable, last_resort)


def _if_new(wanted: T | None, present: T) -> T | None:
    return None if wanted == present else wanted


def _new_directories(
    wanted: Assignment, before: PartitionRegistration
) -> tuple[DirectoryId, ...] | None:
    """Return the directories to record; None if they stay, or if new replicas imply MIGRATING."""
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
        record.elr,
        record.last_known_elr,
    )
    return any(change is not None for change in changes)
