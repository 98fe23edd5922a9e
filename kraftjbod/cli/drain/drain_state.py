"""WIRE. Converts a cluster's state to input for the drain planner, and its plan to a reassignment.

This file sends no requests and has no placement rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kraftjbod.cli.clients.cluster_admin import partitions_on
from kraftjbod.cli.clients.cluster_client import ClusterMetadata
from kraftjbod.cli.clients.replica_admin import LogDirDescription, OngoingReassignment
from kraftjbod.cli.drain.drain_plan import DrainPlan, Leaving, OpenPlace, Place, Scope
from kraftjbod.cli.reassignment.reassignment_plan import (
    ReassignmentError,
    ReassignmentPlan,
    Replica,
)
from kraftjbod.cli.reassignment.reassignment_status import (
    Located,
    LogDirs,
    Ongoing,
    is_offline,
    locate,
    replicas_of,
    why_closed,
)
from kraftjbod.core.ids import TopicPartition

_NO_LEADER: Final = (
    " and no leader to copy it from (have one elected: kraftjbod-leader-election --election-type "
    "unclean; where no replica is left, the records are lost: delete the topic)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The drained directory, or the whole broker if ``path`` is None."""

    broker_id: int
    path: str | None = None

    def __str__(self) -> str:
        if self.path is None:
            return f"broker {self.broker_id}"
        return f"directory {self.path} of broker {self.broker_id}"

    def holds(self, place: Place) -> bool:
        return place.broker_id == self.broker_id and self.path in (None, place.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """The state of the cluster that a drain needs, read at one moment.

    ``ongoing`` has the running reassignments. ``log_dirs`` has the directories by broker, without
    brokers that do not respond. ``kept_free`` are the bytes that each directory of a broker keeps
    free.
    """

    metadata: ClusterMetadata
    ongoing: Ongoing
    log_dirs: LogDirs
    kept_free: Mapping[int, int] = field(default_factory=dict)

    @property
    def racks(self) -> dict[int, str | None]:
        return {broker: node.rack for broker, node in self.metadata.brokers.items()}


def find_source(broker_id: int, text: str, log_dirs: LogDirs) -> Source:
    """Return the directory that a path or an id names.

    :raises ReassignmentError: it does not exist or cannot be drained; the message has the reason.
    """
    found = log_dirs[broker_id]
    for log_dir in found:
        known = log_dir.directory_id
        is_named = known is not None and text in (str(known), known.reference)
        if is_named or log_dir.path in (text, text.rstrip("/")):
            if is_offline(log_dir):
                raise ReassignmentError(
                    f"log directory {log_dir.path} of broker {broker_id} is offline: nothing can "
                    "be moved out of it; its replicas are copied from their leaders when it is "
                    "forgotten (kraftjbod-log-dirs --forget)"
                )
            return Source(broker_id=broker_id, path=log_dir.path)
    there = ", ".join(
        log_dir.path + (f" ({log_dir.directory_id})" if log_dir.directory_id else "")
        for log_dir in found
    )
    raise ReassignmentError(f"broker {broker_id} has no log directory {text}; it has {there}")


def dirs_of(source: Source, snapshot: Snapshot) -> list[LogDirDescription]:
    """Return the drained directories; empty if the broker is not alive."""
    return [
        log_dir
        for log_dir in snapshot.log_dirs.get(source.broker_id, ())
        if source.path in (None, log_dir.path)
    ]


def open_places_for(source: Source, snapshot: Snapshot) -> list[OpenPlace]:
    """Return the directories outside of the source that accept new replicas, with their free bytes.

    Bytes that a broker keeps free do not count, so the number may be negative.
    """
    return [
        OpenPlace(
            place=Place(broker, log_dir.path),
            free_bytes=log_dir.usable_bytes - snapshot.kept_free.get(broker, 0),
        )
        for broker, log_dirs in snapshot.log_dirs.items()
        for log_dir in log_dirs
        if why_closed(log_dir) is None and not source.holds(Place(broker, log_dir.path))
    ]


def scope_of(source: Source, *, across_brokers: bool) -> Scope:
    if source.path is None:
        return Scope.OTHER_BROKERS
    return Scope.BROKER_FIRST if across_brokers else Scope.WITHIN_BROKER


def leaving(source: Source, snapshot: Snapshot) -> list[Leaving]:
    """Return the replicas that have to be moved.

    Left out are replicas that a running reassignment will remove, unless it waits for a broker that
    is not alive. If a whole broker is drained, partitions without a leader are left out too.
    """
    located = locate(snapshot.log_dirs)
    if source.path is None:
        return list(_of_broker(source.broker_id, snapshot, located))
    return list(_of_directory(source, source.path, snapshot, located))


def _of_directory(
    source: Source, path: str, snapshot: Snapshot, located: Mapping[Replica, Located]
) -> Iterator[Leaving]:
    open_places = {one.place for one in open_places_for(source, snapshot)}
    for replica, where in located.items():
        if replica.broker_id != source.broker_id or where.current_dir != path:
            continue
        partition = replica.topic_partition
        if _completes_automatically(partition, source.broker_id, snapshot):
            continue
        target = Place(source.broker_id, where.future_dir) if where.future_dir else None
        is_moving = target in open_places
        yield Leaving(
            replica=replica,
            source=path,
            size_bytes=where.size_bytes,
            holders=frozenset(_holders(partition, snapshot)),
            under_way=target if is_moving else None,
            copied_bytes=where.future_size_bytes if is_moving else 0,
        )


def _of_broker(
    broker: int, snapshot: Snapshot, located: Mapping[Replica, Located]
) -> Iterator[Leaving]:
    without_leader = set(leaderless(Source(broker_id=broker), snapshot))
    for partition in _partitions(snapshot.metadata):
        holders = _holders(partition, snapshot)
        if broker not in holders or _completes_automatically(partition, broker, snapshot):
            continue
        if partition in without_leader:
            continue
        copies = [located.get(Replica(holder, *partition), Located()) for holder in holders]
        here = located.get(Replica(broker, *partition), Located())
        yield Leaving(
            replica=Replica(broker, *partition),
            source=here.current_dir or "",
            # A lagging replica will have the full size.
            size_bytes=max(copy.size_bytes for copy in copies),
            holders=frozenset(holders),
        )


def leaderless(source: Source, snapshot: Snapshot) -> list[TopicPartition]:
    """Return the partitions of a drained broker that cannot be copied, because they have no leader.

    The result is empty if a directory is drained.
    """
    if source.path is not None:
        return []
    metadata = snapshot.metadata
    return [
        partition
        for partition in partitions_on(source.broker_id, metadata)
        if metadata.topics[partition.topic].partitions[partition.partition].leader < 0
    ]


def _partitions(metadata: ClusterMetadata) -> Iterator[TopicPartition]:
    for name, topic in sorted(metadata.topics.items()):
        for index in topic.partitions:
            yield TopicPartition(name, index)


def _holders(partition: TopicPartition, snapshot: Snapshot) -> tuple[int, ...]:
    ongoing = snapshot.ongoing.get(partition)
    return ongoing.replicas if ongoing else replicas_of(snapshot.metadata, partition)


def _completes_automatically(partition: TopicPartition, broker: int, snapshot: Snapshot) -> bool:
    """Return whether a running reassignment removes the replica and can complete."""
    ongoing = snapshot.ongoing.get(partition)
    if ongoing is None or broker not in ongoing.removing:
        return False
    return not _lost(ongoing, snapshot)


def _lost(ongoing: OngoingReassignment, snapshot: Snapshot) -> set[int]:
    """Return the brokers that should get a replica but are not alive."""
    return set(ongoing.adding) - snapshot.metadata.brokers.keys()


def has_lost_targets(source: Source, snapshot: Snapshot) -> bool:
    """Return whether a move out of the source waits for a broker that is not alive."""
    return any(
        source.broker_id in ongoing.removing and _lost(ongoing, snapshot)
        for ongoing in snapshot.ongoing.values()
    )


def as_reassignment(plan: DrainPlan, source: Source, snapshot: Snapshot) -> ReassignmentPlan:
    """Return ``plan`` as a reassignment, which also cancels moves into the source."""
    replicas: dict[TopicPartition, tuple[int, ...]] = {}
    log_dirs: dict[Replica, str] = {}
    for move in plan.moves:
        partition = move.replica.topic_partition
        replicas[partition] = _target_replicas(
            partition, move.replica.broker_id, move.target.broker_id, snapshot
        )
        log_dirs[Replica(move.target.broker_id, *partition)] = move.target.path
    for replica, where in locate(snapshot.log_dirs).items():
        if replica.broker_id != source.broker_id or source.path is None:
            continue
        if where.future_dir == source.path and where.current_dir is not None:
            replicas[replica.topic_partition] = _settled(replica.topic_partition, snapshot)
            log_dirs[replica] = where.current_dir
    return ReassignmentPlan(replicas=replicas, log_dirs=log_dirs)


def _settled(partition: TopicPartition, snapshot: Snapshot) -> tuple[int, ...]:
    """Return the replicas of a partition after its running reassignment."""
    ongoing = snapshot.ongoing.get(partition)
    removing = ongoing.removing if ongoing else ()
    return tuple(b for b in _holders(partition, snapshot) if b not in removing)


def _target_replicas(
    partition: TopicPartition, source: int, target: int, snapshot: Snapshot
) -> tuple[int, ...]:
    """Return the replicas with ``target`` in place of ``source``.

    If a running reassignment removes ``source``, ``target`` replaces a new replica whose broker is
    not alive.
    """
    settled = _settled(partition, snapshot)
    if target in settled:
        return settled
    leaves = source
    if source not in settled:
        ongoing = snapshot.ongoing[partition]
        leaves = next(b for b in settled if b in _lost(ongoing, snapshot))
    return tuple(target if broker == leaves else broker for broker in settled)


def obstacles(source: Source, snapshot: Snapshot) -> list[str]:
    """Return sentences about the remaining uses of the source; empty if it may be removed."""
    lines = [
        f"{replica.topic}-{replica.partition}"
        + (" is being moved into " if replica.is_future else " is in ")
        + log_dir.path
        for log_dir in dirs_of(source, snapshot)
        for replica in log_dir.replicas
    ]
    lines += [
        f"{log_dir.queued_assignments} replicas of {log_dir.path} are not known to the controller"
        for log_dir in dirs_of(source, snapshot)
        if log_dir.queued_assignments
    ]
    if source.path is None:
        without_leader = set(leaderless(source, snapshot))
        lines += [
            f"{partition} has a replica on broker {source.broker_id}"
            + (_NO_LEADER if partition in without_leader else "")
            for partition in _partitions(snapshot.metadata)
            if source.broker_id in _holders(partition, snapshot)
        ]
    return lines
