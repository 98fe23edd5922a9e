"""LOOP. The work that a metadata change requires beyond the changes of roles.

The replica manager creates it and the metadata publisher carries it out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.ids import TopicPartition


class MoveToResume(NamedTuple):
    """A move that a restart interrupted. ``is_accepted``: the metadata already names its target."""

    replica: HostedReplica
    is_accepted: bool


@dataclass(slots=True)
class ReplicaChanges:
    """The work that follows from a metadata change, as lists of replicas or partitions per kind of
    work. The caller starts it after the change; work on disks runs in tasks.
    """

    follow: list[HostedReplica] = field(default_factory=list)
    unfollow: list[TopicPartition] = field(default_factory=list)
    unsettled: list[HostedReplica] = field(default_factory=list)
    """Replicas whose role must wait until a pending operation as a follower has ended in their log.
    """
    left: list[TopicPartition] = field(default_factory=list)
    """No longer hosted here. Their moves end."""
    resume: list[MoveToResume] = field(default_factory=list)
    create: list[HostedReplica] = field(default_factory=list)
    """Includes replicas for which a future copy is adopted."""
    delete: list[TopicPartition] = field(default_factory=list)
    """Their topic was deleted, or the replica moved to another broker."""
    set_aside: list[TopicPartition] = field(default_factory=list)
    """Copies that the metadata does not want here and that must not be served."""
    drop_future: list[TopicPartition] = field(default_factory=list)
    """Future copies without a replica here."""
