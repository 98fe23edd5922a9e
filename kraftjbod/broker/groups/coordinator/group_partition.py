"""PURE. ``GroupPartition``: the contents of one partition of ``__consumer_offsets`` in memory.

It has the groups and their committed offsets. Facts are applied when they are replicated, or when
the partition is loaded. Methods for requests only return the facts to write. Times are wall
milliseconds, except ``now_ms``, which is monotonic.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from kraftjbod.broker.groups.classic.classic_group import ClassicGroup, GroupLimits
from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.consumer.consumer_group import ConsumerGroup
from kraftjbod.broker.groups.consumer.consumer_group_events import ConsumerGroupSettings
from kraftjbod.broker.groups.coordinator.group_tally import GroupTally, Standing
from kraftjbod.broker.groups.coordinator.pending_offsets import PendingOffset, PendingOffsets
from kraftjbod.broker.groups.records.group_records import (
    NO_EXPIRY,
    CommittedOffset,
    Fact,
    GroupFact,
    GroupMetadata,
    OffsetFact,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import ZERO_UUID, TopicPartition
from kraftjbod.protocol.record_batch import NO_PRODUCER_ID

#: Counting visits all groups with a commit in flight, and any client may ask for new groups.
RECOUNT_INTERVAL_MS: Final = 1_000
_CONSUMER: Final = "consumer"
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_NOTHING: Final[Mapping[TopicPartition, CommittedOffset]] = MappingProxyType({})
#: A group that only has committed offsets.
_BARE: Final = Standing(is_consumer=False, state=GroupState.EMPTY, members=0)


class GroupPartition:
    def __init__(self, limits: GroupLimits, consumer: ConsumerGroupSettings) -> None:
        self._limits = limits
        self._consumer = consumer
        #: A group is in one of the two, or in none if it only has committed offsets.
        self.groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self._offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        #: Number of committed offsets of all groups.
        self.offset_count = 0
        #: All known groups, including those that only have committed offsets.
        self.tally = GroupTally()
        self.pending = PendingOffsets()
        #: Number of commits per group that are in flight to the log.
        self._committing: Counter[str] = Counter()
        #: Time of each group's last change of state.
        self._since_ms: dict[str, int] = {}
        #: Groups with a record in the log, whose deletion must be written.
        self._kept: dict[str, GroupMetadata] = {}
        #: An upper bound of the number of groups.
        self._most_groups = 0
        #: When the groups may be counted again.
        self._recount_from_ms = 0

    def __len__(self) -> int:
        """Number of known groups, including those that only have committed offsets."""
        return len(self.tally)

    def admits(self, group_id: str, max_groups: int, now_ms: int) -> bool:
        """Return whether the group exists, or ``max_groups`` allows to create it.

        The limit includes groups whose first commit is in flight, so that many commits at once stay
        below it. It includes an admitted group at once. If that was not created, or others were
        deleted, a partition that seems full notices it within :data:`RECOUNT_INTERVAL_MS`.
        """
        in_flight: tuple[Collection[str], ...] = (self.pending.arriving_groups, self._committing)
        if group_id in self.tally or any(group_id in some for some in in_flight):
            return True
        if self._most_groups >= max_groups and now_ms >= self._recount_from_ms:
            new = sum(one not in self.tally for one in set().union(*in_flight))
            self._most_groups = len(self.tally) + new
            self._recount_from_ms = now_ms + RECOUNT_INTERVAL_MS
        if self._most_groups >= max_groups:
            return False
        self._most_groups += 1
        return True

    # --- facts -----------------------------------------------------------------------------------

    def take(self, fact: Fact, record_offset: int = -1, producer_id: int = NO_PRODUCER_ID) -> None:
        """Apply a fact that is replicated or was read from the log.

        A fact of a consumer group must be from a load: the group applies the facts that it writes
        itself.

        :param record_offset: the offset of the fact's record.
        :param producer_id: the producer of its transaction, if it has one.
        """
        match fact:
            case OffsetFact(group_id, topic_partition, None):
                self.pending.drop(group_id, topic_partition)
                of_group = self._offsets.get(group_id)
                if of_group is not None:
                    self.offset_count -= of_group.pop(topic_partition, None) is not None
                    if not of_group:
                        del self._offsets[group_id]
                self.recount(group_id)
            case OffsetFact(group_id, topic_partition, committed) if committed is not None:
                committed = replace(committed, record_offset=record_offset)
                if producer_id != NO_PRODUCER_ID:
                    self.pending.add(
                        producer_id, PendingOffset(group_id, topic_partition, committed)
                    )
                    self.recount(group_id)
                    return
                self._put_offset(group_id, topic_partition, committed)
            case GroupFact(group_id, None):
                self._kept.pop(group_id, None)
                if group_id in self.groups:
                    self.forget_unused(self.groups[group_id])
            case GroupFact(group_id, group) if group is not None:
                self._kept[group_id] = group
            case OffsetFact() | GroupFact():
                pass
            case _:
                self.consumer_group(fact.group_id).load(fact)
                self.recount(fact.group_id)

    def transaction_ended(self, producer_id: int, marker_offset: int, *, commits: bool) -> None:
        """Apply a transaction marker that is replicated or was read from the log.

        Offsets that the group committed later, without a transaction, stay. Pending offsets behind
        the marker stay too: they belong to the producer's next transaction.
        """
        for group_id, topic_partition, committed in self.pending.end(producer_id, marker_offset):
            present = self.offsets(group_id).get(topic_partition)
            is_newer = present is None or committed.record_offset > present.record_offset
            if commits and is_newer:
                self._put_offset(group_id, topic_partition, committed)
            else:
                self.recount(group_id)

    def _put_offset(
        self, group_id: str, topic_partition: TopicPartition, committed: CommittedOffset
    ) -> None:
        of_group = self._offsets.get(group_id)
        if of_group is None:
            of_group = self._offsets[group_id] = {}
            self.recount(group_id)
        self.offset_count += topic_partition not in of_group
        of_group[topic_partition] = committed

    def loaded(self, now_ms: int) -> None:
        """Start the loaded groups at ``now_ms`` (monotonic), after all facts of the log were
        applied.
        """
        for group_id, kept in self._kept.items():
            group = self.groups[group_id] = ClassicGroup(group_id, self._limits)
            group.load(kept, now_ms)
            if kept.since_ms >= 0:
                self._since_ms[group_id] = kept.since_ms
            self.recount(group_id)
        for consumer_group in list(self.consumer_groups.values()):
            consumer_group.loaded(now_ms)
            self.forget_unused_consumer(consumer_group)
        self._most_groups = len(self)

    # --- groups ----------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup:
        """Return the classic group with that id; create it if needed."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id, self._limits)
            self.recount(group_id)
        return group

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """Return the consumer group with that id; create it if needed."""
        group = self.consumer_groups.get(group_id)
        if group is None:
            group = self.consumer_groups[group_id] = ConsumerGroup(group_id, self._consumer)
            self.recount(group_id)
        return group

    def drop_classic(self, group_id: str) -> None:
        """Remove the classic group with that id, if there is one. Its committed offsets stay."""
        self.groups.pop(group_id, None)
        self.recount(group_id)

    def recount(self, group_id: str) -> None:
        """Update :attr:`tally`. Required after each change of the group's state or members.

        Cost: O(1).
        """
        self.tally.put(group_id, self._standing(group_id))

    def _standing(self, group_id: str) -> Standing | None:
        group = self.groups.get(group_id)
        if group is not None:
            return Standing(False, group.state, len(group.members))
        consumer_group = self.consumer_groups.get(group_id)
        if consumer_group is not None:
            state = consumer_group.state
            return Standing(True, state.phase, len(state.members))
        is_known = group_id in self._offsets or group_id in self.pending.groups
        return _BARE if is_known else None

    def became_classic(self, group_id: str, group: GroupMetadata | None, now_ms: int) -> None:
        """Replace a consumer group by a classic group, or remove it if ``group`` is None. The
        sessions of the members start at ``now_ms`` (monotonic).
        """
        self.consumer_groups.pop(group_id, None)
        if group is not None:
            self.take(GroupFact(group_id, group))
            self.group(group_id).load(group, now_ms)
        self.recount(group_id)

    def forget_unused_consumer(self, group: ConsumerGroup) -> bool:
        """Drop a consumer group that has no records and no pending requests; return whether it
        did."""
        if group.is_used or self.consumer_groups.get(group.group_id) is not group:
            return False
        del self.consumer_groups[group.group_id]
        self.recount(group.group_id)
        return True

    def restore(self, group_id: str, now_ms: int) -> ClassicGroup | None:
        """Restore a classic group whose conversion to a consumer group was not written. Return it,
        or None if there is nothing to restore. The sessions of its members start at ``now_ms``
        (monotonic).
        """
        kept = self._kept.get(group_id)
        if kept is None or group_id in self.groups or group_id in self.consumer_groups:
            return None
        group = self.group(group_id)
        group.load(kept, now_ms)
        self.recount(group_id)
        return group

    def state_changed(self, group_id: str, wall_ms: int) -> None:
        self._since_ms[group_id] = wall_ms

    def forget_unused(self, group: ClassicGroup) -> bool:
        """Drop a classic group that has no members, requests or records; return whether it did."""
        is_used = group.is_used or group.group_id in self._kept
        if is_used or self.groups.get(group.group_id) is not group:
            return False
        del self.groups[group.group_id]
        self._since_ms.pop(group.group_id, None)
        self.recount(group.group_id)
        return True

    def state_of(self, group_id: str) -> GroupState:
        """Return the group's state: DEAD if unknown, EMPTY if it only has committed offsets."""
        standing = self._standing(group_id)
        return GroupState.DEAD if standing is None else standing.state

    def group_ids(self) -> list[str]:
        return self.tally.group_ids()

    def check_deletion(self, group_id: str) -> ErrorCode:
        match self.state_of(group_id):
            case GroupState.DEAD:
                return ErrorCode.GROUP_ID_NOT_FOUND
            case GroupState.EMPTY:
                return ErrorCode.NONE
            case _:
                return ErrorCode.NON_EMPTY_GROUP

    def deletion(self, group_id: str) -> list[Fact]:
        """Return the facts that delete the group's committed offsets and the record of a classic
        group.

        A consumer group is deleted by its own facts afterwards (``DeletionRequested``).
        """
        pending = dict.fromkeys(self.pending.of_group(group_id))
        facts: list[Fact] = [
            OffsetFact(group_id, topic_partition, None)
            for topic_partition in {**self.offsets(group_id), **pending}
        ]
        if group_id in self._kept:
            facts.append(GroupFact(group_id, None))
        return facts

    # --- offsets ---------------------------------------------------------------------------------

    def offsets(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        return self._offsets.get(group_id, _NOTHING)

    @contextmanager
    def committing(self, group_id: str) -> Iterator[None]:
        """Mark a commit of the group as in flight, within the context.

        Meanwhile its offsets do not expire, because those in memory may be older than those in the
        log.
        """
        self._committing[group_id] += 1
        try:
            yield
        finally:
            self._committing[group_id] -= 1
            if not self._committing[group_id]:
                del self._committing[group_id]

    def subscribed(self, group_id: str) -> frozenset[str] | None:
        """Return the topics that the group's members subscribe to; None if that cannot be found
        out."""
        if group_id in self.consumer_groups:
            return self.consumer_groups[group_id].state.subscribed_names()
        group = self.groups.get(group_id)
        if group is None or not group.members:
            return frozenset()
        if group.protocol_type != _CONSUMER or group.protocol_name is None:
            return None
        topics: set[str] = set()
        for member in group.members.values():
            names = subscribed_topics(member.metadata_for(group.protocol_name))
            if names is None:
                return None
            topics |= names
        return frozenset(topics)

    def expired(self, group_id: str, wall_ms: int, retention_ms: int) -> list[Fact]:
        """Return the facts that delete the group's expired offsets; none while a commit of the
        group is in flight.

        A classic group that has no offsets left is deleted with them. For a consumer group see
        :meth:`is_over`.
        """
        if group_id in self._committing:
            return []
        # Once for all offsets: it decodes the subscription of each member.
        subscribed = self.subscribed(group_id)
        facts: list[Fact] = [
            OffsetFact(group_id, topic_partition, None)
            for topic_partition, committed in self.offsets(group_id).items()
            if not self.pending.is_open(group_id, topic_partition)
            and self._is_expired(
                group_id, topic_partition.topic, committed, subscribed, wall_ms, retention_ms
            )
        ]
        is_bare = len(facts) == len(self.offsets(group_id)) and not self.pending.of_group(group_id)
        if is_bare and group_id in self._kept and self.state_of(group_id) is GroupState.EMPTY:
            facts.append(GroupFact(group_id, None))
        return facts

    def orphaned(self, group_id: str, is_gone: Callable[[str, bytes], bool]) -> list[Fact]:
        """Return the facts that delete the group's offsets of deleted topics; none while a commit
        of the group is in flight.

        :param is_gone: takes a topic's name and id; the id is zero if only the name is known.
        """
        if group_id in self._committing:
            return []
        offsets, pending = self.offsets(group_id), self.pending.of_group(group_id)
        gone = {
            one: None
            for one, committed in offsets.items()
            if is_gone(one.topic, committed.topic_id)
        }
        for one in [*gone, *pending]:
            # A transaction may have committed an offset for the present topic of that name.
            if self.pending.is_open(group_id, one) and not is_gone(one.topic, ZERO_UUID):
                gone.pop(one, None)
            else:
                gone[one] = None
        return [OffsetFact(group_id, one, None) for one in gone]

    def is_over(self, group_id: str) -> bool:
        """Return whether the group is a consumer group without members, offsets, pending writes and
        pending requests.
        """
        group = self.consumer_groups.get(group_id)
        has_offsets = self.offsets(group_id) or self.pending.of_group(group_id)
        return group is not None and group.is_idle and not has_offsets

    def _is_expired(
        self,
        group_id: str,
        topic: str,
        committed: CommittedOffset,
        subscribed: frozenset[str] | None,
        wall_ms: int,
        retention_ms: int,
    ) -> bool:
        group = self.groups.get(group_id)
        since_ms = committed.commit_ms
        if group is not None and group.protocol_type is not None:
            if group.state is GroupState.EMPTY:
                since_ms = self._since_ms.get(group_id, since_ms)
            elif group.state is not GroupState.STABLE or subscribed is None or topic in subscribed:
                return False
        elif topic in (subscribed or ()):
            return False
        if committed.expire_ms != NO_EXPIRY:
            return wall_ms >= committed.expire_ms
        return wall_ms - since_ms >= retention_ms


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Return the topic names in the metadata of a member of a ``consumer`` group.

    None if the metadata cannot be decoded. All versions begin like version 0; the rest is for the
    group leader.
    """
    try:
        (version,) = _INT16.unpack_from(subscription)
        (count,) = _INT32.unpack_from(subscription, 2)
        if version < 0 or not 0 <= count <= len(subscription):
            return None
        names, at = [], 6
        for _ in range(count):
            (length,) = _INT16.unpack_from(subscription, at)
            at += 2 + length
            if length < 0 or at > len(subscription):
                return None
            names.append(subscription[at - length : at].decode())
    except (struct.error, UnicodeDecodeError):
        return None
    return frozenset(names)
