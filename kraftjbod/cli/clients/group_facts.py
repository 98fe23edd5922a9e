"""PURE. Values with which coordinators list and describe groups."""

from __future__ import annotations

from dataclasses import dataclass

from kraftjbod.core.ids import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedGroup:
    group_id: str
    state: str
    group_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    """Assigned partitions, sorted."""
    epoch: int | None = None
    """This and the following fields: only with the consumer protocol (KIP-848)."""
    target: tuple[TopicPartition, ...] | None = None
    """Partitions of the target assignment, sorted."""
    is_upgraded: bool | None = None
    """Whether the member itself uses the consumer protocol; None if not reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """A group; ``state`` is Kafka's name, ``Dead`` for a group that does not exist."""

    group_id: str
    coordinator: int
    state: str
    assignor: str
    members: tuple[GroupMember, ...]
    epoch: int | None = None
    """This and the next field: only with the consumer protocol."""
    target_epoch: int | None = None
