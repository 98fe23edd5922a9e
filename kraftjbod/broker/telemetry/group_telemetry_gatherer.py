"""LOOP. ``GroupTelemetryGatherer``: the lag of the coordinated groups, one record per group
partition.

A round has a limited size; groups that do not fit come first in the next round. Offsets are
gathered in slices, with event loop iterations in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.groups.coordinator.group_coordinator import GroupCoordinator
from kraftjbod.broker.groups.coordinator.group_partition import GroupPartition
from kraftjbod.broker.telemetry.log_ends import Ends, LogEnds
from kraftjbod.broker.telemetry.sample_emitter import Gathered
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.protocol.records import Record
from kraftjbod.protocol.telemetry.group_telemetry import LagSample, encode, record_key
from kraftjbod.protocol.telemetry.storage_telemetry import Origin


class GroupOffset(NamedTuple):
    """A group's committed offset for one partition of an existing topic, with the values for its
    sample.

    ``is_consumer``: it is a consumer group of KIP-848, not a classic one. ``commit_ms`` is the
    wall-clock time of the commit.
    """

    group_id: str
    topic_partition: TopicPartition
    is_consumer: bool
    state: str
    members: int
    offset: int
    commit_ms: int


class GroupTelemetryGatherer:
    def __init__(
        self,
        *,
        coordinator: GroupCoordinator,
        cache: MetadataCache,
        ends: LogEnds,
        max_samples: int,
    ) -> None:
        self._coordinator = coordinator
        self._cache = cache
        self._ends = ends
        self._max_samples = max_samples
        #: Index of the next group; approximate, because groups come and go.
        self._next_group = 0
        #: Log ends of the last :meth:`gather`.
        self._found_ends: Ends = {}

    async def gather(self, *, whole: bool) -> Gathered[GroupOffset]:
        """Gather the offsets of whole groups up to the size limit, and the log ends of their
        partitions."""
        del whole  # All values change fast, so every round has them.
        groups = [
            (partition, group_id)
            for partition in self._coordinator.loaded_partitions()
            for group_id in partition.group_ids()
        ]
        start = self._next_group if self._next_group < len(groups) else 0
        found: list[GroupOffset] = []
        taken = left_out = 0
        async for partition, group_id in in_slices([*groups[start:], *groups[:start]]):
            if left_out or len(found) >= self._max_samples:
                left_out += len(partition.offsets(group_id))
                continue
            of_group = list(self._of_group(partition, group_id))
            if found and len(found) + len(of_group) > self._max_samples:
                left_out += len(of_group)
                continue
            found += of_group
            taken += 1
        self._next_group = (start + taken) % max(1, len(groups))
        self._found_ends = await self._ends.find({one.topic_partition for one in found})
        return Gathered(found, left_out)

    def records(self, origin: Origin, subjects: Sequence[GroupOffset]) -> Iterator[Record]:
        """Yield a record for each subject whose topic still exists.

        Call it with few subjects at a time, to keep the event loop responsive.
        """
        for one in subjects:
            topic = self._cache.state.topic(one.topic_partition.topic)
            if topic is None:
                continue
            end = self._found_ends.get(one.topic_partition)
            sample = LagSample(
                group_id=one.group_id,
                group_type="consumer" if one.is_consumer else "classic",
                state=one.state,
                members=one.members,
                topic=topic.name,
                topic_id=str(topic.topic_id),
                partition=one.topic_partition.partition,
                committed_offset=one.offset,
                committed_ms=one.commit_ms,
                log_end_offset=end,
                # The log end was requested later, but the log may have been truncated or recreated.
                lag=None if end is None else max(0, end - one.offset),
            )
            yield Record(
                key=record_key(sample), value=encode(origin, sample), timestamp_ms=origin.time_ms
            )

    def close(self) -> None:
        self._ends.close()

    def _of_group(self, partition: GroupPartition, group_id: str) -> Iterator[GroupOffset]:
        consumer = partition.consumer_groups.get(group_id)
        classic = partition.groups.get(group_id)
        if consumer is not None:
            members = len(consumer.state.members)
        else:
            members = 0 if classic is None else len(classic.members)
        state = partition.state_of(group_id).value
        for topic_partition, committed in partition.offsets(group_id).items():
            if self._cache.state.topic(topic_partition.topic) is not None:
                yield GroupOffset(
                    group_id=group_id,
                    topic_partition=topic_partition,
                    is_consumer=consumer is not None,
                    state=state,
                    members=members,
                    offset=committed.offset,
                    commit_ms=committed.commit_ms,
                )
