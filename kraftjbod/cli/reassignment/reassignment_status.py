"""WIRE. The progress of a reassignment, as values and as the sentences of Kafka's tool.

The controller reports the brokers of each partition, and each broker reports current and future
directories of its replicas. This file sends no requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from kraftjbod.cli.clients.cluster_client import ClusterMetadata
from kraftjbod.cli.clients.replica_admin import LogDirDescription, OngoingReassignment
from kraftjbod.cli.reassignment.reassignment_plan import (
    ReassignmentError,
    ReassignmentPlan,
    Replica,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import DirectoryId, TopicPartition
from kraftjbod.core.log_dir_state import LogDirState

_IMPAIRED: Final = frozenset(state.value for state in LogDirState if state.is_impaired)

LogDirs = Mapping[int, Sequence[LogDirDescription]]
"""All log directories of some brokers."""
Ongoing = Mapping[TopicPartition, OngoingReassignment]
"""The reassignments that the controller reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """Current and future directory of a replica on its broker; None if it has none. Sizes are in
    bytes, 0 without the directory.
    """

    current_dir: str | None = None
    future_dir: str | None = None
    size_bytes: int = 0
    future_size_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """The progress of the reassignment of one partition: its current and its requested replicas, as
    broker ids.

    ``is_active``: a reassignment of the partition is in progress.
    """

    partition: TopicPartition
    current: tuple[int, ...]
    target: tuple[int, ...]
    is_active: bool

    def document(self) -> dict[str, Any]:
        return named(self.partition) | {
            "replicas": self.current,
            "target": self.target,
            "isActive": self.is_active,
            "isDone": not self.is_active and self.current == self.target,
        }

    def __str__(self) -> str:
        if self.is_active:
            return f"Reassignment of partition {self.partition} is still in progress."
        if self.current == self.target:
            return f"Reassignment of partition {self.partition} is completed."
        return (
            f"There is no active reassignment of partition {self.partition}, but replica set is"
            f" {joined(self.current)} rather than {joined(self.target)}."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveState:
    """The progress of moving one replica to ``target_dir``, a directory of its broker.

    ``located`` says where the broker has the replica now. ``has_offline_dir``: a directory of the
    broker is offline.
    """

    replica: Replica
    target_dir: str
    located: Located
    has_offline_dir: bool

    @property
    def is_active(self) -> bool:
        return self.located.future_dir is not None

    @property
    def is_done(self) -> bool:
        """Whether the broker has the replica and no move of it is in progress.

        The move has succeeded, failed, or not begun.
        """
        return self.located.current_dir is not None and not self.is_active

    def document(self) -> dict[str, Any]:
        current, future = self.located.current_dir, self.located.future_dir
        return named_replica(self.replica) | {
            "logDir": current,
            "movingTo": future,
            "target": self.target_dir,
            "isActive": self.is_active,
            "isDone": self.is_done and current == self.target_dir,
        }

    def __str__(self) -> str:
        place = f"Partition {self.replica.topic_partition}"
        current, future = self.located.current_dir, self.located.future_dir
        broker = self.replica.broker_id
        if current is None and self.has_offline_dir:
            return (
                f"{place} is not found in any live log dir on broker {broker}."
                " There is likely an offline log directory on the broker."
            )
        if current is None:
            return f"{place} cannot be found in any live log directory on broker {broker}."
        if future == self.target_dir:
            return f"Reassignment of replica {self.replica} is still in progress."
        if future is not None:
            return (
                f"{place} on broker {broker} is being moved to log dir {future}"
                f" instead of {self.target_dir}."
            )
        if current == self.target_dir:
            return f"Reassignment of replica {self.replica} completed successfully."
        return (
            f"{place} on broker {broker} is not being moved from log dir {current}"
            f" to {self.target_dir}."
        )


def partition_states(
    plan: ReassignmentPlan, ongoing: Ongoing, metadata: ClusterMetadata
) -> list[PartitionState]:
    """Return the states of the partitions of ``plan``, sorted by partition.

    A partition that does not exist has no current replicas.
    """
    states = []
    for partition, target in sorted(plan.replicas.items()):
        active = ongoing.get(partition)
        current = active.replicas if active else replicas_of(metadata, partition)
        states.append(
            PartitionState(
                partition=partition,
                current=current,
                target=target,
                is_active=active is not None,
            )
        )
    return states


def replicas_of(metadata: ClusterMetadata, partition: TopicPartition) -> tuple[int, ...]:
    """Return the replicas of a partition in the metadata; empty if it does not exist."""
    topic = metadata.topics.get(partition.topic)
    found = topic.partitions.get(partition.partition) if topic else None
    return found.replicas if found else ()


def move_states(plan: ReassignmentPlan, found: LogDirs) -> list[MoveState]:
    """Return the states of the moves of ``plan``, sorted by broker and then by partition.

    The target directories of ``plan`` must be paths.
    """
    located = locate(found)
    return [
        MoveState(
            replica=replica,
            target_dir=target,
            located=located.get(replica, Located()),
            has_offline_dir=any(map(is_offline, found[replica.broker_id])),
        )
        for replica, target in sorted(plan.log_dirs.items())
    ]


def locate(found: LogDirs) -> dict[Replica, Located]:
    """Return the directories of every replica in ``found``, the live directories of brokers."""
    located: dict[Replica, Located] = {}
    for broker, log_dirs in found.items():
        for log_dir in log_dirs:
            for held in log_dir.replicas:
                replica = Replica(broker, held.topic, held.partition)
                known = located.get(replica, Located())
                located[replica] = (
                    replace(known, future_dir=log_dir.path, future_size_bytes=held.size_bytes)
                    if held.is_future
                    else replace(known, current_dir=log_dir.path, size_bytes=held.size_bytes)
                )
    return located


def is_offline(log_dir: LogDirDescription) -> bool:
    return log_dir.error_code != ErrorCode.NONE


def resolve(plan: ReassignmentPlan, found: LogDirs) -> ReassignmentPlan:
    """Return ``plan`` with the path of each directory that it names by id.

    :raises ReassignmentError: unknown directory; the message names the existing ones.
    """
    return replace(
        plan,
        log_dirs={
            replica: _path(target, replica, found[replica.broker_id])
            for replica, target in plan.log_dirs.items()
        },
    )


def _path(target: str, replica: Replica, log_dirs: Sequence[LogDirDescription]) -> str:
    wanted = DirectoryId.from_reference(target)
    if wanted is None:
        return target
    ids = {log_dir.directory_id for log_dir in log_dirs} - {None}
    if not ids:
        raise ReassignmentError(
            f"{replica}: broker {replica.broker_id} does not report the ids of its log directories;"
            f" name the path instead of {target}: {_choice(log_dirs)}"
        )
    for log_dir in log_dirs:
        if log_dir.directory_id == wanted:
            return log_dir.path
    raise ReassignmentError(
        f"{replica}: broker {replica.broker_id} has no log directory {target};"
        f" it has {_choice(log_dirs)}"
    )


def require_targets(plan: ReassignmentPlan, found: LogDirs) -> None:
    """Check that each target path is a live directory of its broker that accepts new replicas.

    A replica's current directory is accepted in any state.

    :raises ReassignmentError: the first path that is not.
    """
    located = locate(found)
    for replica, target in sorted(plan.log_dirs.items()):
        log_dirs = found[replica.broker_id]
        by_path = {log_dir.path: log_dir for log_dir in log_dirs}
        if target not in by_path:
            raise ReassignmentError(
                f"{replica}: broker {replica.broker_id} has no log directory {target};"
                f" it has {_choice(log_dirs)}"
            )
        if is_offline(by_path[target]):
            raise ReassignmentError(
                f"{replica}: log directory {target} of broker {replica.broker_id} is offline"
            )
        why = why_closed(by_path[target])
        if why is not None and located.get(replica, Located()).current_dir != target:
            raise ReassignmentError(
                f"{replica}: log directory {target} of broker {replica.broker_id} is {why} and"
                " takes no new replicas"
            )


def why_closed(log_dir: LogDirDescription) -> str | None:
    """Return an adjective for a directory that accepts no new replicas; None if it accepts them."""
    if is_offline(log_dir):
        return "offline"
    if log_dir.is_cordoned:
        return "cordoned"
    return log_dir.state if log_dir.state in _IMPAIRED else None


def _choice(log_dirs: Iterable[LogDirDescription]) -> str:
    return ", ".join(
        log_dir.path + (f" ({log_dir.directory_id.reference})" if log_dir.directory_id else "")
        for log_dir in log_dirs
    )


def ids_by_path(log_dirs: Iterable[LogDirDescription]) -> dict[str, DirectoryId]:
    """Return directory ids by path; empty for a broker that does not report ids."""
    return {
        log_dir.path: log_dir.directory_id
        for log_dir in log_dirs
        if log_dir.directory_id is not None
    }


def ongoing_line(partition: TopicPartition, ongoing: OngoingReassignment) -> str:
    """Return the line of ``--list`` for one partition."""
    adding = f" adding: {joined(ongoing.adding)}." if ongoing.adding else ""
    removing = f" removing: {joined(ongoing.removing)}." if ongoing.removing else ""
    return f"{partition}: replicas: {joined(ongoing.replicas)}.{adding}{removing}"


def named(partition: TopicPartition) -> dict[str, Any]:
    """Return a partition for a JSON document."""
    return {"topic": partition.topic, "partition": partition.partition}


def named_replica(replica: Replica) -> dict[str, Any]:
    """Return a replica for a JSON document."""
    return {"broker": replica.broker_id} | named(replica.topic_partition)


def joined(values: Iterable[object]) -> str:
    """Return the values with commas between: ``1,2,3``."""
    return ",".join(map(str, values))
