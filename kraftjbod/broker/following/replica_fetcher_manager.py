"""LOOP. ``ReplicaFetcherManager``: the fetch loops of this broker, one per (leader, log directory).

The metadata publisher passes the replicas to follow. The handler of directory states reports
directories that failed or recovered. A loop without replicas ends. A replica in an impaired
directory is not followed, and is passed here again after the recovery.
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
from kraftjbod.storage.log_dirs.log_dir import LogDir


class _FetcherKey(NamedTuple):
    leader: BrokerId
    log_dir_path: str


class ReplicaFetcherManager:
    """Assigns each followed replica to a fetch loop: one loop per leader and log directory. A loop
    is started for its first replica, and ends when it has none.

    ``make_fetcher`` creates a loop for a leader and the path of a log directory.
    """

    def __init__(
        self,
        *,
        make_fetcher: Callable[[BrokerId, str], ReplicaFetcher],
        tasks: BackgroundTasks,
        metrics: Metrics,
    ) -> None:
        self._make_fetcher = make_fetcher
        self._tasks = tasks
        self._fetchers: dict[_FetcherKey, tuple[ReplicaFetcher, asyncio.Task[None]]] = {}
        self._key_of: dict[TopicPartition, _FetcherKey] = {}
        metrics.gauge("ReplicaFetcherCount", lambda: len(self._fetchers))

    def follow(self, replicas: Iterable[HostedReplica]) -> None:
        """Fetch the replicas from their present leaders. A replica that is already fetched moves to
        its new leader's fetch loop.

        A replica without an open log is skipped. One in an impaired directory leaves its loop.
        """
        by_key: dict[_FetcherKey, list[HostedReplica]] = defaultdict(list)
        left: list[_FetcherKey] = []
        for replica in replicas:
            if replica.partition is None or replica.handle is None:
                continue
            key = _FetcherKey(replica.partition.leader, replica.handle.log_dir.path)
            left += self._leave_fetcher(replica.topic_partition)
            if replica.handle.log_dir.is_impaired:
                continue
            self._key_of[replica.topic_partition] = key
            by_key[key].append(replica)
        for key, joining in by_key.items():
            self._fetcher(key).add(joining)
        self._end_empty(left)

    def unfollow(self, topic_partitions: Iterable[TopicPartition]) -> None:
        left: list[_FetcherKey] = []
        for topic_partition in topic_partitions:
            left += self._leave_fetcher(topic_partition)
        self._end_empty(left)

    def stop_in(self, log_dir: LogDir) -> None:
        """Cancel all loops that write to ``log_dir``, which is unusable, without waiting for their
        end."""
        for topic_partition, key in list(self._key_of.items()):
            if key.log_dir_path == log_dir.path:
                del self._key_of[topic_partition]
        for key in list(self._fetchers):
            if key.log_dir_path == log_dir.path:
                self._end(key)

    def close(self) -> None:
        self._key_of.clear()
        for key in list(self._fetchers):
            self._end(key)

    def _fetcher(self, key: _FetcherKey) -> ReplicaFetcher:
        if key not in self._fetchers:
            fetcher = self._make_fetcher(key.leader, key.log_dir_path)
            task = self._tasks.keep(fetcher.run_fetcher, f"replica-fetcher-{key}")
            self._fetchers[key] = (fetcher, task)
        return self._fetchers[key][0]

    def _leave_fetcher(self, topic_partition: TopicPartition) -> list[_FetcherKey]:
        key = self._key_of.pop(topic_partition, None)
        if key is None:
            return []
        self._fetchers[key][0].remove(topic_partition)
        return [key]

    def _end_empty(self, keys: Iterable[_FetcherKey]) -> None:
        for key in keys:
            if key in self._fetchers and not self._fetchers[key][0]:
                self._end(key)

    def _end(self, key: _FetcherKey) -> None:
        _, task = self._fetchers.pop(key)
        task.cancel()
