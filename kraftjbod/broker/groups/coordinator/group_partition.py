"""PURE. ``GroupPartition``: what one partition of ``__consumer_offsets`` says, in memory.

Groups, and what they have committed. Facts are taken over when they are replicated, or as they are
read when the partition is loaded; requests only say which facts are to be written.
Times are wall milliseconds but where they are called ``now_ms`` of a group's machine.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from kraftjbod.broker.groups.classic.classic_group import ClassicGroup, GroupLimits
from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.consumer.consumer_group import ConsumerGroup
from kraftjbod.broker.groups.consumer.consumer_group_events import ConsumerGroupSettings
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

_CONSUMER: Final = "consumer"
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_NOTHING: Final[Mapping[TopicPartition, CommittedOffset]] = MappingProxyType({})


class GroupPartition:
    def __init__(self, limits: GroupLimits, consumer: ConsumerGroupSettings) -> None:
        self._limits = limits
        self._consumer = consumer
        #: A group is in one of the two, or in none if it only commits.
        self.groups: dict[str, ClassicGroup] = {}
        self.consumer_groups: dict[str, ConsumerGroup] = {}
        self._offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self.pending = PendingOffsets()
        #: By group: how many commits are on their way to the log, and not in memory yet.
        self._committing: Counter[str] = Counter()
        #: When each group came into its state.
        self._since_ms: dict[str, int] = {}
        #: Groups that are written, so that their end has to be written too.
        self._kept: dict[str, GroupMetadata] = {}

    def __len__(self) -> int:
        """How many groups are known, also those that only commit."""
        return len(self.group_ids())

    # --- facts -----------------------------------------------------------------------------------

    def take(self, fact: Fact, record_offset: int = -1, producer_id: int = NO_PRODUCER_ID) -> None:
        """It is replicated, or was read from the log.

        Facts of consumer groups are taken over here only as they are read: what is written of them
        was theirs before.

        :param producer_id: of the transaction that it is part of.
        """
        match fact:
            case OffsetFact(group_id, topic_partition, None):
                self.pending.drop(group_id, topic_partition)
                of_group = self._offsets.get(group_id)
                if of_group is not None:
                    of_group.pop(topic_partition, None)
                    if not of_group:
                        del self._offsets[group_id]
            case OffsetFact(group_id, topic_partition, committed) if committed is not None:
                committed = replace(committed, record_offset=record_offset)
                if producer_id != NO_PRODUCER_ID:
                    self.pending.add(
                        producer_id, PendingOffset(group_id, topic_partition, committed)
                    )
                    return
                self._offsets.setdefault(group_id, {})[topic_partition] = committed
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

    def transaction_ended(self, producer_id: int, marker_offset: int, *, commits: bool) -> None:
        """Apply a marker that is replicated, or was read from the log.

        Offsets that the group committed later, without a transaction, stay. So do pending offsets
        behind the marker: they belong to the producer's next transaction.
        """
        for group_id, topic_partition, committed in self.pending.end(producer_id, marker_offset):
            present = self.offsets(group_id).get(topic_partition)
            is_newer = present is None or committed.record_offset > present.record_offset
            if commits and is_newer:
                self._offsets.setdefault(group_id, {})[topic_partition] = committed

    def loaded(self, now_ms: int) -> None:
        """All facts of the log were taken: the groups go on as they were."""
        for group_id, kept in self._kept.items():
            group = self.groups[group_id] = ClassicGroup(group_id, self._limits)
            group.load(kept, now_ms)
            if kept.since_ms >= 0:
                self._since_ms[group_id] = kept.since_ms
        for consumer_group in list(self.consumer_groups.values()):
            consumer_group.loaded(now_ms)
            self.forget_unused_consumer(consumer_group)

    # --- groups ----------------------------------------------------------------------------------

    def group(self, group_id: str) -> ClassicGroup:
        """The group of that name, which is made if there is none."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ClassicGroup(group_id, self._limits)
        return group

    def consumer_group(self, group_id: str) -> ConsumerGroup:
        """The consumer group of that name, which is made if there is none."""
        group = self.consumer_groups.get(group_id)
        if group is None:
            group = self.consumer_groups[group_id] = ConsumerGroup(group_id, self._consumer)
        return group

    def became_classic(self, group_id: str, group: GroupMetadata | None, now_ms: int) -> None:
        """A consumer group is a classic one from now on; None: one without members."""
        self.consumer_groups.pop(group_id, None)
        if group is not None:
            self.take(GroupFact(group_id, group))
            self.group(group_id).load(group, now_ms)

    def forget_unused_consumer(self, group: ConsumerGroup) -> bool:
        """Drop a group of which nothing is written; if it was."""
        if group.is_used or self.consumer_groups.get(group.group_id) is not group:
            return False
        del self.consumer_groups[group.group_id]
        return True

    def restore(self, group_id: str, now_ms: int) -> ClassicGroup | None:
        """The classic group that did not become a consumer group after all, as it was written."""
        kept = self._kept.get(group_id)
        if kept is None or group_id in self.groups or group_id in self.consumer_groups:
            return None
        group = self.group(group_id)
        group.load(kept, now_ms)
        return group

    def state_changed(self, group_id: str, wall_ms: int) -> None:
        self._since_ms[group_id] = wall_ms

    def forget_unused(self, group: ClassicGroup) -> bool:
        """Drop a group that nobody is a member of and nothing was written of; if it was."""
        is_used = group.is_used or group.group_id in self._kept
        if is_used or self.groups.get(group.group_id) is not group:
            return False
        del self.groups[group.group_id]
        self._since_ms.pop(group.group_id, None)
        return True

    def state_of(self, group_id: str) -> GroupState:
        """DEAD if nothing is known of it; a group that only commits is EMPTY."""
        group = self.groups.get(group_id)
        if group is not None:
            return group.state
        if group_id in self.consumer_groups:
            return self.consumer_groups[group_id].state.phase
        is_known = group_id in self._offsets or group_id in self.pending.groups
        return GroupState.EMPTY if is_known else GroupState.DEAD

    def group_ids(self) -> list[str]:
        return list(
            dict.fromkeys(
                [*self.groups, *self.consumer_groups, *self._offsets, *self.pending.groups]
            )
        )

    def check_deletion(self, group_id: str) -> ErrorCode:
        match self.state_of(group_id):
            case GroupState.DEAD:
                return ErrorCode.GROUP_ID_NOT_FOUND
            case GroupState.EMPTY:
                return ErrorCode.NONE
            case _:
                return ErrorCode.NON_EMPTY_GROUP

    def deletion(self, group_id: str) -> list[Fact]:
        """What has to be written so that nothing of the group is left."""
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
        """Around a commit until it is replicated: what is in memory may be older than the log."""
        self._committing[group_id] += 1
        try:
            yield
        finally:
            self._committing[group_id] -= 1
            if not self._committing[group_id]:
                del self._committing[group_id]

    def subscribed(self, group_id: str) -> frozenset[str] | None:
        """Topics that members read; None if that cannot be told, and may be any."""
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
        """What of the group was kept long enough, and has to be written to be gone.

        Of a consumer group that has nothing more, :meth:`is_over` says it.
        """
        if group_id in self._committing:
            return []
        facts: list[Fact] = [
            OffsetFact(group_id, topic_partition, None)
            for topic_partition, committed in self.offsets(group_id).items()
            if not self.pending.is_open(group_id, topic_partition)
            and self._is_expired(group_id, topic_partition, committed, wall_ms, retention_ms)
        ]
        is_bare = len(facts) == len(self.offsets(group_id)) and not self.pending.of_group(group_id)
        if is_bare and group_id in self._kept and self.state_of(group_id) is GroupState.EMPTY:
            facts.append(GroupFact(group_id, None))
        return facts

    def orphaned(self, group_id: str, is_gone: Callable[[str, bytes], bool]) -> list[Fact]:
        """What was committed for topics that are gone, and has to be written to be forgotten.

        :param is_gone: by a topic's name and id; zeros where only the name is known.
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
            # A transaction may have committed for the topic that has the name now.
            if self.pending.is_open(group_id, one) and not is_gone(one.topic, ZERO_UUID):
                gone.pop(one, None)
            else:
                gone[one] = None
        return [OffsetFact(group_id, one, None) for one in gone]

    def is_over(self, group_id: str) -> bool:
        """A consumer group without members and offsets, which nobody will miss."""
        group = self.consumer_groups.get(group_id)
        has_offsets = self.offsets(group_id) or self.pending.of_group(group_id)
        return group is not None and group.is_idle and not has_offsets

    def _is_expired(
        self,
        group_id: str,
        topic_partition: TopicPartition,
        committed: CommittedOffset,
        wall_ms: int,
        retention_ms: int,
    ) -> bool:
        group = self.groups.get(group_id)
        since_ms = committed.commit_ms
        if group is not None and group.protocol_type is not None:
            if group.state is GroupState.EMPTY:
                since_ms = self._since_ms.get(group_id, since_ms)
            elif group.state is not GroupState.STABLE:
                return False
            else:
                subscribed = self.subscribed(group_id)
                if subscribed is None or topic_partition.topic in subscribed:
                    return False
        elif topic_partition.topic in (self.subscribed(group_id) or ()):
            return False
        if committed.expire_ms != NO_EXPIRY:
            return wall_ms >= committed.expire_ms
        return wall_ms - since_ms >= retention_ms


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The names in the metadata of a member of a ``consumer`` group; None if they cannot be read.

    All versions begin as version 0 does; the rest is for the leader.
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
