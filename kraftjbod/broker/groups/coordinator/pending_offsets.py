"""PURE. ``PendingOffsets``: offsets that producers committed in open transactions.

An offset belongs to the transaction of a producer. Several producers may have an offset for the
same group and partition. The producer's first marker behind it in the log commits or drops it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from kraftjbod.broker.groups.records.group_records import CommittedOffset
from kraftjbod.core.ids import TopicPartition

_Key = tuple[str, TopicPartition]


class PendingOffset(NamedTuple):
    group_id: str
    topic_partition: TopicPartition
    committed: CommittedOffset


class PendingOffsets:
    def __init__(self) -> None:
        self._of_producers: dict[int, dict[_Key, CommittedOffset]] = {}
        #: The producers with a pending offset, by group and partition.
        self._open: dict[str, dict[TopicPartition, set[int]]] = {}
        #: Number of offsets in flight to the log, by group and partition.
        self._arriving: dict[str, Counter[TopicPartition]] = {}

    def arrives(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        """Note offsets that are in flight to the log. :meth:`arrived` must follow in every case."""
        self._arriving.setdefault(group_id, Counter()).update(list(partitions))

    def arrived(self, group_id: str, partitions: Collection[TopicPartition]) -> None:
        for one in partitions:
            _decrement(self._arriving, group_id, one)

    def add(self, producer_id: int, pending: PendingOffset) -> None:
        group_id, topic_partition, committed = pending
        of_producer = self._of_producers.setdefault(producer_id, {})
        of_group = self._open.setdefault(group_id, {})
        of_group.setdefault(topic_partition, set()).add(producer_id)
        of_producer[group_id, topic_partition] = committed

    def drop(self, group_id: str, topic_partition: TopicPartition) -> None:
        """Drop all producers' pending offsets of the group for the partition.

        Called when the group's offset was deleted.
        """
        for producer_id in list(self._open.get(group_id, {}).get(topic_partition, ())):
            self._remove(producer_id, group_id, topic_partition)

    def end(self, producer_id: int, marker_offset: int) -> list[PendingOffset]:
        """Remove and return the producer's offsets that were written before ``marker_offset``."""
        of_producer = self._of_producers.get(producer_id, {})
        ended = [
            PendingOffset(group_id, topic_partition, committed)
            for (group_id, topic_partition), committed in of_producer.items()
            if committed.record_offset < marker_offset
        ]
        for group_id, topic_partition, _ in ended:
            self._remove(producer_id, group_id, topic_partition)
        return ended

    def _remove(self, producer_id: int, group_id: str, topic_partition: TopicPartition) -> None:
        of_producer = self._of_producers[producer_id]
        del of_producer[group_id, topic_partition]
        if not of_producer:
            del self._of_producers[producer_id]
        of_group = self._open[group_id]
        of_group[topic_partition].remove(producer_id)
        if not of_group[topic_partition]:
            del of_group[topic_partition]
        if not of_group:
            del self._open[group_id]

    def is_open(self, group_id: str, topic_partition: TopicPartition) -> bool:
        """Return whether an open transaction may change the group's offset of the partition."""
        is_written = topic_partition in self._open.get(group_id, ())
        return is_written or topic_partition in self._arriving.get(group_id, ())

    def of_group(self, group_id: str) -> Collection[TopicPartition]:
        """Return the partitions for which the log has pending offsets of the group."""
        return self._open.get(group_id, {}).keys()

    @property
    def groups(self) -> Collection[str]:
        return self._open.keys()

    @property
    def arriving_groups(self) -> Collection[str]:
        """The groups with offsets in flight to the log."""
        return self._arriving.keys()


def _decrement(
    counts: dict[str, Counter[TopicPartition]], group_id: str, one: TopicPartition
) -> None:
    """Decrement the count of ``one``, and remove counts that become 0 and groups without counts."""
    counts[group_id][one] -= 1
    if not counts[group_id][one]:
        del counts[group_id][one]
    if not counts[group_id]:
        del counts[group_id]
