"""LOOP. What a change of the metadata leaves to do, beyond the roles that have changed already.

Made by the replica manager, carried out by the metadata publisher.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.ids import TopicPartition


class MoveToResume(NamedTuple):
    """A move that a restart interrupted; ``is_accepted``: metadata names its target already."""

    replica: HostedReplica
    is_accepted: bool


@dataclass(slots=True)
class ReplicaChanges:
    """What a delta leaves to do: for fetchers and moves at once, for disks in their own time."""

    follow: list[HostedReplica] = field(default_factory=list)
    unfollow: list[TopicPartition] = field(default_factory=list)
    unsettled: list[HostedReplica] = field(default_factory=list)
    """Their role waits until what they began as followers is in their logs, or gone from them."""
    left: list[TopicPartition] = field(default_factory=list)
    """Not hosted any more; whatever is moved of them is not wanted."""
    resume: list[MoveToResume] = field(default_factory=list)
    create: list[HostedReplica] = field(default_factory=list)
    """Also those for which a future copy is to be adopted."""
    delete: list[TopicPartition] = field(default_factory=list)
    """Their topic is gone, or the replica moved to another broker."""
    set_aside: list[TopicPartition] = field(default_factory=list)
    """Copies that nobody wants and nobody may serve."""
    drop_future: list[TopicPartition] = field(default_factory=list)
    """Copies that a move was building of something that nobody wants."""
