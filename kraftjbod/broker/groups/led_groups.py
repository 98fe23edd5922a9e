"""LOOP. ``LedGroups``: a partition of ``__consumer_offsets`` that is led here, and its settings.

Written by the coordinator only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum

from kraftjbod.broker.groups.classic_group import ClassicGroup, GroupLimits
from kraftjbod.broker.groups.group_partition import GroupPartition
from kraftjbod.core.ids import LeaderEpoch, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    limits: GroupLimits
    commit_timeout_ms: int
    offsets_retention_ms: int
    expiry_interval_ms: int
    max_groups_per_partition: int


class Phase(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"


class LedGroups:
    __slots__ = ("groups", "leader_epoch", "phase", "timers", "topic_partition")

    def __init__(
        self, topic_partition: TopicPartition, leader_epoch: LeaderEpoch, limits: GroupLimits
    ) -> None:
        self.topic_partition = topic_partition
        self.leader_epoch = leader_epoch
        self.phase = Phase.LOADING
        self.groups = GroupPartition(limits)
        #: When each group's timer goes off, and the timer.
        self.timers: dict[ClassicGroup, tuple[int, asyncio.TimerHandle]] = {}
