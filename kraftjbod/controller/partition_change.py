"""From a partition and what is wanted of it to at most one record: election, ISR, directories.

Rules of this file:

* an *acceptable* leader has an active broker and an online directory; a *valid* one is acceptable
  and in the wanted in-sync set;
* the in-sync set is never emptied: its last member stays while the partition has no leader, so
  that it can lead again when it returns;
* only an unclean election may choose outside the in-sync set; it leaves that one member, marked
  as recovering.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeVar

from kraftjbod.core.ids import NO_LEADER, BrokerId, DirectoryId, TopicIdPartition
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
    directories: tuple[DirectoryId, ...] | None = None,
    leader_recovering: bool | None = None,
) -> PartitionChangeRecord | None:
    """The record that gives the partition what is wanted; None if that is so already.

    :param isr: the wanted in-sync set; None keeps it.
    :param directories: the wanted directories, in the order of the replicas; None keeps them.
    :param leader_recovering: the wanted recovery state; an unclean election overrides it.
    """
    wanted_isr = before.isr if isr is None else tuple(isr)
    homes = directories or before.directories

    def can_lead(replica: BrokerId) -> bool:
        return is_acceptable(replica, homes[before.replicas.index(replica)])

    leader = _elect_clean(before, election, wanted_isr, can_lead)
    if leader == NO_LEADER and election is Election.UNCLEAN:
        leader = next(filter(can_lead, before.replicas), NO_LEADER)
        if leader != NO_LEADER:
            wanted_isr, leader_recovering = (leader,), True
    if not wanted_isr:
        wanted_isr = before.isr
    record = PartitionChangeRecord(
        topic_id=key.topic_id,
        partition_id=key.partition,
        isr=_if_new(wanted_isr, before.isr),
        leader=_if_new(leader, before.leader),
        directories=_if_new(directories, before.directories),
        leader_recovering=_if_new(leader_recovering, before.leader_recovering),
    )
    return record if _changes_something(record) else None


def _elect_clean(
    before: PartitionRegistration,
    election: Election,
    isr: tuple[BrokerId, ...],
    can_lead: Callable[[BrokerId], bool],
) -> BrokerId:
    first = before.replicas[:1] if election is Election.PREFERRED else ()
    candidates = (*first, before.leader, *before.replicas)
    return next((c for c in candidates if c in isr and can_lead(c)), NO_LEADER)


def _if_new(wanted: T | None, present: T) -> T | None:
    return None if wanted == present else wanted


def _changes_something(record: PartitionChangeRecord) -> bool:
    changes = (record.isr, record.leader, record.directories, record.leader_recovering)
    return any(change is not None for change in changes)
