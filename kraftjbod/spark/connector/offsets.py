"""PURE. Arithmetic of offsets: the ranges of a read, their split into tasks, and lost records.

* A range is ``start <= offset < end``. Its number of records is unknown, because compaction and
  transactions leave gaps.
* Checkpoints have the form of Spark's Kafka connector, ``{"topic": {"0": 5}}``. An additional entry
  per topic, ``{"topic#topicId=ID": {}}``, has the topic's id. It reveals a topic that was deleted
  and recreated, even if it has grown past the old offsets. No topic can have such a name, and the
  entry has no partitions, so readers of the connector's form are not affected. Older checkpoints,
  with ``topicId`` among the partitions, are read as well.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import TopicPartition

Offsets = Mapping[TopicPartition, int]

#: Separates topic and id in the additional key.
_TOPIC_ID: Final = "#topicId="
#: Key among the partitions of a topic in older checkpoints.
_OLD_TOPIC_ID: Final = "topicId"


class DataLossError(OperatingError):
    """Records that a query should read no longer exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamOffset:
    """Progress of a stream: the next offset of each partition, and ids of topics if known."""

    offsets: Offsets
    topic_ids: Mapping[str, str] = field(default_factory=dict)

    @property
    def topics(self) -> frozenset[str]:
        return frozenset(partition.topic for partition in self.offsets)

    def to_json(self) -> dict[str, dict[str, int]]:
        """Return the offset as a checkpoint stores it, sorted, so that equal offsets have equal
        texts."""
        by_topic: dict[str, dict[str, int]] = defaultdict(dict)
        for partition, offset in sorted(self.offsets.items()):
            by_topic[partition.topic][str(partition.partition)] = offset
        known = [topic for topic in by_topic if topic in self.topic_ids]
        ids: dict[str, dict[str, int]] = {
            f"{topic}{_TOPIC_ID}{self.topic_ids[topic]}": {} for topic in known
        }
        return {**by_topic, **ids}

    @classmethod
    def from_json(cls, by_topic: Mapping[str, Mapping[str, int | str]]) -> StreamOffset:
        offsets: dict[TopicPartition, int] = {}
        ids: dict[str, str] = {}
        for key, own in by_topic.items():
            topic, _, id_ = key.partition(_TOPIC_ID)
            if id_:
                ids[topic] = id_
            for index, value in own.items():
                if index == _OLD_TOPIC_ID:
                    ids[topic] = str(value)
                else:
                    offsets[TopicPartition(topic, int(index))] = int(value)
        return cls(offsets=offsets, topic_ids=ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRange:
    """The range of offsets that one task reads: ``start`` inclusive, ``end`` exclusive."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.partition} offsets {self.start} to {self.end}"


def limit_offsets(start: Offsets, latest: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return end offsets that are about ``limit`` offsets after ``start`` in total, and none after
    ``latest``.

    The limit is divided in proportion to the available offsets. As in the connector, shares are
    rounded down, but a partition with any offsets gets at least one. A latest offset before its
    start is kept.

    :param start: the start of every partition of ``latest``.
    """
    sizes = {p: end - start[p] for p, end in latest.items() if end > start[p]}
    total = sum(sizes.values())
    ends = dict(latest)
    for partition, size in sizes.items():
        share = limit * size // total or 1
        ends[partition] = min(latest[partition], start[partition] + share)
    return ends


def split_ranges(
    ranges: Iterable[OffsetRange],
    *,
    min_partitions: int | None = None,
    max_records_per_partition: int | None = None,
) -> list[OffsetRange]:
    """Split ranges for tasks; empty ranges are dropped.

    :param min_partitions: if there are fewer ranges, long ones are split in proportion to reach
        about this number.
    :param max_records_per_partition: maximum length of a range, in offsets.
    """
    whole = [found for found in ranges if found.size > 0]
    if max_records_per_partition is not None:
        whole = [
            piece
            for found in whole
            for piece in _pieces(found, math.ceil(found.size / max_records_per_partition))
        ]
    if min_partitions is None or len(whole) >= min_partitions:
        return whole
    total = sum(found.size for found in whole)
    small = {found for found in whole if _parts(found.size, total, min_partitions) == 1}
    left = total - sum(found.size for found in small)
    wanted = max(min_partitions - len(small), 1)
    return [
        piece
        for found in whole
        for piece in _pieces(found, 1 if found in small else _parts(found.size, left, wanted))
    ]


def _parts(size: int, total: int, wanted: int) -> int:
    return max(round(size / total * wanted), 1)


def _pieces(found: OffsetRange, count: int) -> list[OffsetRange]:
    """Split a range into ``count`` equal pieces, or into single offsets if it has fewer."""
    count = min(count, found.size)
    bounds = [found.start + found.size * i // count for i in range(count + 1)]
    return [
        OffsetRange(partition=found.partition, start=start, end=end)
        for start, end in pairwise(bounds)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The work of one batch of a stream: the ranges to read, and a sentence about each loss of
    records."""

    ranges: Sequence[OffsetRange]
    losses: Sequence[str]


def plan_batch(
    start: StreamOffset, end: StreamOffset, earliest: Offsets, topic_ids: Mapping[str, str]
) -> Plan:
    """Return the ranges from ``start`` to ``end``, two offsets of a stream.

    :param earliest: first offset of each existing partition that ``start`` lacks, or knows of an
        older topic with the same name.
    :param topic_ids: ids of the existing topics.
    """
    ranges = []
    there = StreamOffset(offsets={}, topic_ids=topic_ids)
    losses = [
        f"{partition} is gone: it was read up to offset {start.offsets[partition]}"
        for partition in sorted(start.offsets.keys() - end.offsets.keys())
    ]
    for partition, until in sorted(end.offsets.items()):
        known = start.offsets.get(partition)
        if is_recreated(end, there, partition.topic):
            losses.append(
                f"topic {partition.topic} was deleted and recreated: records of {partition} up to "
                f"offset {until} were not read"
            )
            continue
        if known is not None and is_recreated(start, end, partition.topic):
            losses.append(
                f"topic {partition.topic} was deleted and recreated: records of {partition} from "
                f"offset {known} on were not read, and the new topic is read from its beginning"
            )
            known = None
        if known is None:
            first = earliest.get(partition)
            if first is None:
                losses.append(f"{partition} is gone before anything of it was read")
                continue
            if first > 0 and partition not in start.offsets:
                losses.append(f"{partition} is new and begins at offset {first} instead of 0")
            known = first
        if until < known:
            losses.append(
                f"{partition} ends at offset {until}, but was read up to offset {known} already: "
                "its log was truncated"
            )
        ranges.append(OffsetRange(partition=partition, start=known, end=until))
    return Plan(ranges=ranges, losses=losses)


def is_recreated(start: StreamOffset, end: StreamOffset, topic: str) -> bool:
    """Return whether both offsets have an id of the topic, and the ids differ."""
    before, after = start.topic_ids.get(topic), end.topic_ids.get(topic)
    return before is not None and after is not None and before != after


def unknown_first_offsets(start: StreamOffset, end: StreamOffset) -> list[TopicPartition]:
    """Return the partitions of ``end`` that are new, or whose topic was recreated since ``start``:
    :func:`plan_batch` needs their first offsets.
    """
    return sorted(
        partition
        for partition in end.offsets
        if partition not in start.offsets or is_recreated(start, end, partition.topic)
    )


def check_range(
    partition: TopicPartition, start: int, end: int, earliest: int, latest: int
) -> list[str]:
    """Return sentences about errors in the offsets that a user gave for one partition, none if they
    are right.

    :param end: exclusive, as ``latest``.
    """
    wrong = []
    if start > end:
        wrong.append(f"{partition} begins at offset {start} and ends before it, at {end}")
    if start < earliest or start > latest:
        wrong.append(
            f"{partition} has no offset {start} to begin at: it holds {earliest} to {latest}"
        )
    if end > latest:
        wrong.append(f"{partition} has no offset {end} to end at: it holds {earliest} to {latest}")
    return wrong
