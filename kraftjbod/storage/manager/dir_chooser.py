"""LOOP. ``DirChooser``: the dir for one more replica, by the bytes that each dir has left.

What a dir has promised counts as used: the rest of a segment for each of its replicas, and what is
still to come of those that are on their way. That is counted anew from time to time only, for a
topic may bring thousands; what is decided in between is added to it at once, and whether a dir
takes new replicas at all is asked each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.storage.dirs.log_dir import LogDir
from kraftjbod.storage.dirs.log_dir_policy import DirCandidate, choose_dir
from kraftjbod.storage.moves.future_replica import FutureReplica
from kraftjbod.storage.replicas.replica_registry import ReplicaRegistry

#: How long the count of what each dir has promised is good for.
_COUNTED_FOR_MS: Final = 1_000


class DirChooser:
    """``being_made`` says where replicas are on their way that the registry does not have yet."""

    def __init__(
        self,
        *,
        registry: ReplicaRegistry,
        clock: Clock,
        being_made: Mapping[TopicPartition, LogDir],
    ) -> None:
        self._registry = registry
        self._clock = clock
        self._being_made = being_made
        self._counted: dict[LogDir, DirCandidate] = {}
        self._counted_until_ms = 0

    def choose(self, config: TopicConfig) -> LogDir:
        """The dir for a replica with ``config``, which is promised its place there at once.

        :raises LogDirImpairedError: no dir takes a replica now.
        :raises KafkaStorageError: every dir is offline.
        """
        online = self._registry.online_dirs()
        if not online:
            raise KafkaStorageError("every log dir is offline")
        now_ms = self._clock.now_ms()
        if now_ms >= self._counted_until_ms or not self._counted.keys() >= set(online):
            self._counted = {log_dir: self._count(log_dir) for log_dir in online}
            self._counted_until_ms = now_ms + _COUNTED_FOR_MS
        by_id = {log_dir.directory_id: log_dir for log_dir in online}
        chosen = choose_dir([self._as_it_is(log_dir) for log_dir in online])
        if chosen is None:
            states = ", ".join(f"{log_dir.path} is {log_dir.state.value}" for log_dir in online)
            state = online[0].state.value
            raise LogDirImpairedError(
                f"no log dir takes new replicas now: {states}",
                directory_id=None,
                path=None,
                state=state,
            )
        log_dir = by_id[chosen]
        counted = self._counted[log_dir]
        self._counted[log_dir] = replace(
            counted,
            promised_bytes=counted.promised_bytes + config.segment_bytes,
            replicas=counted.replicas + 1,
        )
        return log_dir

    def _as_it_is(self, log_dir: LogDir) -> DirCandidate:
        return replace(
            self._counted[log_dir],
            is_cordoned=log_dir.is_cordoned,
            is_impaired=log_dir.is_impaired,
        )

    def _count(self, log_dir: LogDir) -> DirCandidate:
        here, arriving = self._registry.handles_in(log_dir), self._registry.futures_in(log_dir)
        coming = [tp for tp, where in self._being_made.items() if where is log_dir]
        return DirCandidate(
            directory_id=log_dir.directory_id,
            usable_bytes=log_dir.space.usable_bytes,
            promised_bytes=sum(max(0, h.config.segment_bytes - h.size_bytes) for h in here)
            + sum(self._bytes_to_come(future) for future in arriving)
            + sum(self._registry.config_of(tp.topic).segment_bytes for tp in coming),
            replicas=len(here) + len(arriving) + len(coming),
        )

    def _bytes_to_come(self, future: FutureReplica) -> int:
        """What the rest of the move takes, and space for a segment as any replica's."""
        source = self._registry.handles.get(future.topic_partition)
        rest = 0 if source is None else max(0, source.size_bytes - future.size_bytes)
        return rest + self._registry.config_of(future.topic_partition.topic).segment_bytes
