"""PURE. Server-side assignors of consumer groups: Kafka's ``uniform`` and ``range``.

* ``range``: each topic separately, in ranges, in the order of members. The same range of topics
  with equal partition counts goes to the same member.
* ``uniform``: all topics together, as evenly as subscriptions allow, and with as few moves as that
  allows. With equal subscriptions, partition counts of members differ by at most one.

Racks do not count, as in Kafka since 4.0. A changed rack triggers a new assignment. An assignment
has every member, and each partition once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Final

from kraftjbod.broker.groups.records.consumer_group_records import Partitions
from kraftjbod.core.ids import TopicId, TopicIdPartition

#: Limit of the rounds in which the uniform assignor balances different subscriptions.
_BALANCE_ROUNDS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    member_id: str
    instance_id: str | None = None
    topics: frozenset[TopicId]
    """Existing topics of its subscription."""
    target: Partitions
    """Its previous assignment."""


#: Number of partitions per topic.
Sizes = Mapping[TopicId, int]
Assignment = dict[str, Partitions]
Assignor = Callable[[list[Subscriber], Sizes], Assignment]


def range_assignment(members: list[Subscriber], sizes: Sizes) -> Assignment:
    ordered = sorted(
        members, key=lambda one: (one.instance_id is None, one.instance_id or "", one.member_id)
    )
    assigned: dict[str, set[TopicIdPartition]] = {one.member_id: set() for one in ordered}
    for topic_id, size in sizes.items():
        readers = [one.member_id for one in ordered if topic_id in one.topics]
        if not readers:
            continue
        quota, extra = divmod(size, len(readers))
        first = 0
        for place, member_id in enumerate(readers):
            end = first + quota + (place < extra)
            assigned[member_id] |= {TopicIdPartition(topic_id, n) for n in range(first, end)}
            first = end
    return {member_id: frozenset(own) for member_id, own in assigned.items()}


def uniform_assignment(members: list[Subscriber], sizes: Sizes) -> Assignment:
    if all(one.topics == members[0].topics for one in members):
        return _assign_evenly(members, sizes)
    return _Balance(members, sizes).assignment()


ASSIGNORS: Final[Mapping[str, Assignor]] = {
    "uniform": uniform_assignment,
    "range": range_assignment,
}


def _assign_evenly(members: list[Subscriber], sizes: Sizes) -> Assignment:
    """Assign partitions to members with equal subscriptions.

    Members keep partitions up to a quota, and the free partitions fill the other members up.
    """
    topics = members[0].topics if members else frozenset()
    free = dict.fromkeys(
        TopicIdPartition(topic_id, index)
        for topic_id in sorted(topics)
        for index in range(sizes[topic_id])
    )
    quota, extra = divmod(len(free), len(members)) if members else (0, 0)
    kept: dict[str, set[TopicIdPartition]] = {}
    # Members above the quota may keep one more, while extra partitions remain.
    for one in sorted(members, key=lambda one: -len(one.target)):
        own = sorted(partition for partition in one.target if partition in free)
        may_keep = quota + (extra > 0 and len(own) > quota)
        extra -= may_keep > quota
        kept[one.member_id] = set(own[:may_keep])
        for partition in own[:may_keep]:
            del free[partition]
    left = iter(free)
    for one in members:
        own_now = kept[one.member_id]
        may_have = quota
        if extra > 0 and len(own_now) <= quota:
            may_have, extra = quota + 1, extra - 1
        own_now.update(islice(left, max(0, may_have - len(own_now))))
    return {member_id: frozenset(own_now) for member_id, own_now in kept.items()}


class _Balance:
    """Assigns partitions to members with different subscriptions.

    Each free partition goes to its least loaded subscriber. Then partitions move from loaded to
    less loaded subscribers.
    """

    def __init__(self, members: list[Subscriber], sizes: Sizes) -> None:
        self._sizes = sizes
        self._owner: dict[TopicIdPartition, str] = {}
        self._own: dict[str, set[TopicIdPartition]] = {one.member_id: set() for one in members}
        self._readers: dict[TopicId, list[str]] = {}
        for one in sorted(members, key=lambda one: one.member_id):
            for topic_id in one.topics:
                self._readers.setdefault(topic_id, []).append(one.member_id)
        for one in members:
            for partition in one.target:
                is_there = partition.partition < sizes.get(partition.topic_id, 0)
                if is_there and partition.topic_id in one.topics:
                    self._give(partition, one.member_id)

    def assignment(self) -> Assignment:
        #: Topics with most partitions per subscriber first, then those with fewer subscribers.
        topics = sorted(
            self._readers,
            key=lambda topic_id: (
                -self._sizes[topic_id] / len(self._readers[topic_id]),
                len(self._readers[topic_id]),
                topic_id,
            ),
        )
        for topic_id in topics:
            for index in range(self._sizes[topic_id]):
                partition = TopicIdPartition(topic_id, index)
                if partition not in self._owner:
                    self._give(partition, min(self._readers[topic_id], key=self._load))
        for _ in range(_BALANCE_ROUNDS):
            if not any([self._balance(topic_id) for topic_id in topics]):
                break
        return {member_id: frozenset(own) for member_id, own in self._own.items()}

    def _load(self, member_id: str) -> tuple[int, str]:
        return len(self._own[member_id]), member_id

    def _give(self, partition: TopicIdPartition, member_id: str) -> None:
        before = self._owner.get(partition)
        if before is not None:
            self._own[before].discard(partition)
        self._owner[partition] = member_id
        self._own[member_id].add(partition)

    def _balance(self, topic_id: TopicId) -> bool:
        """Move partitions of the topic from its most to its least loaded subscribers.

        Return whether any partition moved.
        """
        readers, has_moved = self._readers[topic_id], False
        of_topic: dict[str, list[TopicIdPartition]] = {member_id: [] for member_id in readers}
        for index in range(self._sizes[topic_id]):
            partition = TopicIdPartition(topic_id, index)
            of_topic[self._owner[partition]].append(partition)
        while True:
            givers = [member_id for member_id in readers if of_topic[member_id]]
            if not givers:
                return has_moved
            giver, taker = max(givers, key=self._load), min(readers, key=self._load)
            if len(self._own[giver]) - len(self._own[taker]) <= 1:
                return has_moved
            partition = of_topic[giver].pop()
            of_topic[taker].append(partition)
            self._give(partition, taker)
            has_moved = True
