"""LOOP. ``ReplicaFetcherManager``: the fetch loops of this broker, one per (leader, log directory).

Told by the metadata publisher what to follow, and by the handler of the directories' states what
died or came back.
A loop without replicas ends.
A replica in an impaired directory is not followed: it is told here again once that has recovered.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.following.replica_fetcher import ReplicaFetcher
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.ids import BrokerId, TopicPartition
from kraftjbod.core.telemetry import Metrics
from kraftjbod.storage.dirs.log_dir import LogDir


class _Purpose(NamedTuple):
    leader: BrokerId
    log_dir_path: str


class ReplicaFetcherManager:
    """``make_fetcher`` builds the loop for a leader and a directory's path."""

    def __init__(
        self,
        *,
        make_fetcher: Callable[[BrokerId, str], ReplicaFetcher],
        tasks: BackgroundTasks,
        metrics: Metrics,
    ) -> None:
        self._make_fetcher = make_fetcher
        self._tasks = tasks
        self._fetchers: dict[_Purpose, tuple[ReplicaFetcher, asyncio.Task[None]]] = {}
        self._lane_of: dict[TopicPartition, _Purpose] = {}
        metrics.gauge("ReplicaFetcherCount", lambda: len(self._fetchers))

    def follow(self, replicas: Iterable[HostedReplica]) -> None:
        """Fetch these, each from its leader of now; a replica that is followed already moves."""
        by_lane: dict[_Purpose, list[HostedReplica]] = defaultdict(list)
        left: set[_Purpose] = set()
        for replica in replicas:
            if replica.partition is None or replica.handle is None:
                continue
            lane = _Purpose(replica.partition.leader, replica.handle.log_dir.path)
            left |= self._leave_lane(replica.topic_partition)
            if replica.handle.log_dir.is_impaired:
                continue
            self._lane_of[replica.topic_partition] = lane
            by_lane[lane].append(replica)
        for lane, joining in by_lane.items():
            self._fetcher(lane).add(joining)
        self._end_empty(left)

    def unfollow(self, topic_partitions: Iterable[TopicPartition]) -> None:
        left: set[_Purpose] = set()
        for topic_partition in topic_partitions:
            left |= self._leave_lane(topic_partition)
        self._end_empty(left)

    def stop_in(self, log_dir: LogDir) -> None:
        """The directory takes nothing: end every loop that writes there, without waiting for it."""
        for topic_partition, lane in list(self._lane_of.items()):
            if lane.log_dir_path == log_dir.path:
                del self._lane_of[topic_partition]
        for lane in list(self._fetchers):
            if lane.log_dir_path == log_dir.path:
                self._end(lane)

    def close(self) -> None:
        self._lane_of.clear()
        for lane in list(self._fetchers):
            self._end(lane)

    def _fetcher(self, lane: _Purpose) -> ReplicaFetcher:
        if lane not in self._fetchers:
            fetcher = self._make_fetcher(lane.leader, lane.log_dir_path)
            task = self._tasks.keep(fetcher.run, f"replica-fetcher-{lane}")
            self._fetchers[lane] = (fetcher, task)
        return self._fetchers[lane][0]

    def _leave_lane(self, topic_partition: TopicPartition) -> set[_Purpose]:
        lane = self._lane_of.pop(topic_partition, None)
        if lane is None:
            return set()
        self._fetchers[lane][0].remove(topic_partition)
        return {lane}

    def _end_empty(self, lanes: Iterable[_Purpose]) -> None:
        for lane in lanes:
            if lane in self._fetchers and not self._fetchers[lane][0]:
                self._end(lane)

    def _end(self, lane: _Purpose) -> None:
        _, task = self._fetchers.pop(lane)
        task.cancel()
