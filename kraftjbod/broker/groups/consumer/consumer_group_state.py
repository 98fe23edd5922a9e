"""PURE. ``ConsumerGroupState``, a consumer group as the sum of its facts, and ``GroupChanges``.

Only facts change the state, both new facts and those that are loaded from the log. Each application
returns the previous fact, so that an unwritten change can be undone exactly. All other attributes
are derived from facts: holders of partitions, instance ids and subscribers of topics.

Names and numbers are Kafka's. This module makes no decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TypeVar, assert_never

from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.records.consumer_group_records import (
    NO_PARTITIONS,
    ConsumerFact,
    ConsumerMember,
    CurrentAssignment,
    CurrentFact,
    EpochFact,
    GroupEpoch,
    MemberFact,
    MemberState,
    PartitionMetadataFact,
    Partitions,
    RegexFact,
    ResolvedRegex,
    TargetEpoch,
    TargetEpochFact,
    TargetFact,
)
from kraftjbod.broker.groups.records.group_records import record_of
from kraftjbod.core.ids import TopicIdPartition
from kraftjbod.protocol.records import Record, most_bytes_of

T = TypeVar("T")
#: Epoch of a new group; its first member increments it, as in Kafka.
FIRST_EPOCH = 1
NEVER_ASSIGNED = 0
_NEW = GroupEpoch(epoch=FIRST_EPOCH)
_UNASSIGNED = TargetEpoch(epoch=NEVER_ASSIGNED)
_NOTHING = CurrentAssignment(epoch=0, previous_epoch=0, assigned={}, revoking={})


class ConsumerGroupState:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self._epoch: GroupEpoch | None = None
        self._target_epoch: TargetEpoch | None = None
        self._has_partition_metadata = False
        #: In the order of joining.
        self.members: dict[str, ConsumerMember] = {}
        self._targets: dict[str, Partitions] = {}
        self._currents: dict[str, CurrentAssignment] = {}
        #: Number of members in the state STABLE, by the epoch of their current assignment.
        self._stable_at: Counter[int] = Counter()
        self.regexes: dict[str, ResolvedRegex] = {}
        #: The member that has a partition or has not revoked it yet.
        self.holders: dict[TopicIdPartition, str] = {}
        #: Member ids by instance id.
        self.static_members: dict[str, str] = {}
        #: Number of members that name a topic, or use a regular expression.
        self.names: Counter[str] = Counter()
        self.used_regexes: Counter[str] = Counter()

    def __repr__(self) -> str:
        return f"<ConsumerGroupState {self.group_id} {self.epoch} members={len(self.members)}>"

    # --- reading ---------------------------------------------------------------------------------

    @property
    def epoch(self) -> int:
        return (self._epoch or _NEW).epoch

    @property
    def metadata_hash(self) -> int:
        return (self._epoch or _NEW).metadata_hash

    @property
    def assignment_epoch(self) -> int:
        return (self._target_epoch or _UNASSIGNED).epoch

    @property
    def assigned_ms(self) -> int:
        """Wall-clock time of the last assignment in ms; 0 if unknown."""
        return (self._target_epoch or _UNASSIGNED).since_ms

    def target(self, member_id: str) -> Partitions:
        return self._targets.get(member_id, NO_PARTITIONS)

    def current(self, member_id: str) -> CurrentAssignment:
        return self._currents.get(member_id, _NOTHING)

    @property
    def has_classic_members(self) -> bool:
        return any(member.classic is not None for member in self.members.values())

    @property
    def phase(self) -> GroupState:
        """The state of the group. Cost: O(1)."""
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        is_stable = self._stable_at[self.assignment_epoch] == len(self.members)
        return GroupState.STABLE if is_stable else GroupState.RECONCILING

    def topics_of(self, member: ConsumerMember) -> frozenset[str]:
        """Return the topic names that the member subscribes to by name or by regular expression."""
        resolved = self.regexes.get(member.topic_regex or "")
        return member.topic_names if resolved is None else member.topic_names | resolved.topics

    def subscribed_names(self) -> frozenset[str]:
        """Return the topic names that any member subscribes to."""
        found = (self.regexes[one].topics for one in self.used_regexes if one in self.regexes)
        return frozenset(self.names).union(*found)

    def facts(self) -> Iterator[ConsumerFact]:
        """Yield all facts of the group, in the order in which Kafka writes them."""
        group_id = self.group_id
        for member_id, member in self.members.items():
            yield MemberFact(group_id, member_id, member)
        if self._epoch is not None:
            yield EpochFact(group_id, self._epoch)
        for regex, resolved in self.regexes.items():
            yield RegexFact(group_id, regex, resolved)
        for member_id, target in self._targets.items():
            yield TargetFact(group_id, member_id, target)
        if self._target_epoch is not None:
            yield TargetEpochFact(group_id, self._target_epoch)
        for member_id, current in self._currents.items():
            yield CurrentFact(group_id, member_id, current)

    def end(self) -> list[ConsumerFact]:
        """Return the facts that delete the whole group."""
        group_id = self.group_id
        facts: list[ConsumerFact] = []
        facts += [CurrentFact(group_id, member_id, None) for member_id in self._currents]
        facts += [TargetFact(group_id, member_id, None) for member_id in self._targets]
        if self._target_epoch is not None:
            facts.append(TargetEpochFact(group_id, None))
        facts += [MemberFact(group_id, member_id, None) for member_id in self.members]
        facts += [RegexFact(group_id, regex, None) for regex in self.regexes]
        facts += self.obsolete()
        if self._epoch is not None:
            facts.append(EpochFact(group_id, None))
        return facts

    def obsolete(self) -> list[ConsumerFact]:
        """Return the facts that delete the partition metadata record, which Kafka before 4.1
        wrote."""
        return [PartitionMetadataFact(self.group_id, False)] * self._has_partition_metadata

    @property
    def is_written(self) -> bool:
        """Whether the group has any fact, written or about to be written."""
        return bool(
            self._epoch
            or self._target_epoch
            or self._has_partition_metadata
            or self.members
            or self._targets
            or self._currents
            or self.regexes
        )

    # --- changing --------------------------------------------------------------------------------

    def apply(self, fact: ConsumerFact) -> ConsumerFact:
        """Apply the fact and return the fact that undoes it."""
        match fact:
            case EpochFact(group_id, epoch):
                before, self._epoch = self._epoch, epoch
                return EpochFact(group_id, before)
            case PartitionMetadataFact(group_id, is_there):
                was_there, self._has_partition_metadata = self._has_partition_metadata, is_there
                return PartitionMetadataFact(group_id, was_there)
            case MemberFact(group_id, member_id, member):
                return MemberFact(group_id, member_id, self._put_member(member_id, member))
            case TargetEpochFact(group_id, target_epoch):
                target_before, self._target_epoch = self._target_epoch, target_epoch
                return TargetEpochFact(group_id, target_before)
            case TargetFact(group_id, member_id, target):
                return TargetFact(group_id, member_id, _put(self._targets, member_id, target))
            case CurrentFact(group_id, member_id, current):
                return CurrentFact(group_id, member_id, self._put_current(member_id, current))
            case RegexFact(group_id, regex, resolved):
                return RegexFact(group_id, regex, _put(self.regexes, regex, resolved))
            case _:
                assert_never(fact)

    def _put_member(self, member_id: str, member: ConsumerMember | None) -> ConsumerMember | None:
        self._count_stable(member_id, -1)
        before = _put(self.members, member_id, member)
        self._count_stable(member_id, 1)
        if before is not None:
            self._count(before, -1)
            if self.static_members.get(before.instance_id or "") == member_id:
                del self.static_members[before.instance_id or ""]
        if member is not None:
            self._count(member, 1)
            if member.instance_id is not None:
                self.static_members[member.instance_id] = member_id
        return before

    def _count(self, member: ConsumerMember, change: int) -> None:
        _add(self.names, member.topic_names, change)
        _add(self.used_regexes, frozenset(filter(None, [member.topic_regex])), change)

    def _count_stable(self, member_id: str, change: int) -> None:
        current = self.current(member_id)
        if member_id in self.members and current.state is MemberState.STABLE:
            self._stable_at[current.epoch] += change
            if not self._stable_at[current.epoch]:
                del self._stable_at[current.epoch]

    def _put_current(
        self, member_id: str, current: CurrentAssignment | None
    ) -> CurrentAssignment | None:
        self._count_stable(member_id, -1)
        before = _put(self._currents, member_id, current)
        self._count_stable(member_id, 1)
        for one in () if before is None else (*before.assigned, *before.revoking):
            if self.holders.get(one) == member_id:
                del self.holders[one]
        for one in () if current is None else (*current.assigned, *current.revoking):
            self.holders[one] = member_id
        return before


def _put(into: dict[str, T], key: str, value: T | None) -> T | None:
    before = into.get(key)
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value
    return before


def _add(counts: Counter[str], names: frozenset[str], change: int) -> None:
    """Add ``change`` to the count of each name, and remove counts that become 0."""
    for name in names:
        counts[name] += change
        if not counts[name]:
            del counts[name]


class GroupChanges:
    """Changes of a group that are applied to ``state`` but not written to the log yet: ``facts`` in
    order, and ``records`` with the encoded part of them.

    After the write call :meth:`keep`; after a failure call :meth:`take_back`.
    """

    def __init__(self, state: ConsumerGroupState) -> None:
        self.state = state
        self.facts: list[ConsumerFact] = []
        self._before: list[ConsumerFact] = []
        #: The encoded prefix of ``facts``.
        self.records: list[Record] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.facts)

    def put(self, *facts: ConsumerFact) -> None:
        for fact in facts:
            self._before.append(self.state.apply(fact))
            self.facts.append(fact)

    def encode(self, wall_ms: int) -> None:
        """Encode the facts that were added since the last call, so that ``records`` is complete.

        :raises LocalProtocolError: a name is longer than records can hold.
        """
        for fact in self.facts[len(self.records) :]:
            record = record_of(fact, wall_ms)
            self.records.append(record)
            self.size_bytes += most_bytes_of(record)

    def keep(self) -> None:
        """Forget the changes, because they are written."""
        self.facts.clear()
        self._before.clear()
        self.records.clear()
        self.size_bytes = 0

    def take_back(self, count: int = 0) -> None:
        """Undo all changes but the first ``count``."""
        for fact in reversed(self._before[count:]):
            self.state.apply(fact)
        self.size_bytes -= sum(map(most_bytes_of, self.records[count:]))
        del self.facts[count:], self._before[count:], self.records[count:]
