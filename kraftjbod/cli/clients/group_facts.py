"""PURE. What coordinators say of groups: in lists, and described."""

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
    """Sorted."""
    epoch: int | None = None
    """This and what follows: in a group of the newer protocol only (KIP-848)."""
    target: tuple[TopicPartition, ...] | None = None
    """What it is to have, sorted."""
    is_upgraded: bool | None = None
    """It speaks the newer protocol itself; None where that is not said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupDescription:
    """``state`` is Kafka's word, ``Dead`` for a group that there is not."""

    group_id: str
    coordinator: int
    state: str
    assignor: str
    members: tuple[GroupMember, ...]
    epoch: int | None = None
    """This and the next one: of a group of the newer protocol only."""
    target_epoch: int | None = None
