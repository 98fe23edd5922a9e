"""LOOP. ``LedGroups``: a partition of ``__consumer_offsets`` that is led here, and its settings.

Written by the coordinator only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from kraftjbod.broker.groups.classic.classic_group import NEVER, ClassicGroup, GroupLimits
from kraftjbod.broker.groups.consumer.consumer_group import ConsumerGroup
from kraftjbod.broker.groups.consumer.consumer_group_events import ConsumerGroupSettings
from kraftjbod.broker.groups.coordinator.group_partition import GroupPartition
from kraftjbod.core.ids import LeaderEpoch, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorSettings:
    limits: GroupLimits
    consumer: ConsumerGroupSettings
    offsets_retention_ms: int
    expiry_interval_ms: int
    max_groups_per_partition: int


class Phase(Enum):
    LOADING = "loading"
    ACTIVE = "active"
    FAILED = "failed"
    ENDED = "ended"
    """Led no more, or loaded anew; what is still under way for it comes to nothing."""


class LedGroups:
    __slots__ = ("groups", "leader_epoch", "phase", "timers", "topic_partition")

    def __init__(
        self,
        topic_partition: TopicPartition,
        leader_epoch: LeaderEpoch,
        settings: CoordinatorSettings,
    ) -> None:
        self.topic_partition = topic_partition
        self.leader_epoch = leader_epoch
        self.phase = Phase.LOADING
        self.groups = GroupPartition(settings.limits, settings.consumer)
        #: When each group's timer goes off, and the timer.
        self.timers: dict[ClassicGroup | ConsumerGroup, tuple[int, asyncio.TimerHandle]] = {}

    def set_timer(
        self, group: ClassicGroup | ConsumerGroup, now_ms: int, passed: Callable[[], None]
    ) -> None:
        """Have ``passed`` called when the group has something to do; not before, if it is set.

        Nothing is set for a group that has nothing to do.
        """
        at_ms, set_for = group.next_deadline_ms, self.timers.get(group)
        if set_for is not None:
            if set_for[0] <= at_ms:
                return  # It will find out then when to look again.
            set_for[1].cancel()
            del self.timers[group]
        if at_ms < NEVER:
            delay_s = max(0, at_ms - now_ms) / 1000
            loop = asyncio.get_running_loop()
            self.timers[group] = (at_ms, loop.call_later(delay_s, self._passed, group, passed))

    def drop_timer(self, group: ClassicGroup | ConsumerGroup) -> None:
        set_for = self.timers.pop(group, None)
        if set_for is not None:
            set_for[1].cancel()

    def _passed(self, group: ClassicGroup | ConsumerGroup, passed: Callable[[], None]) -> None:
        del self.timers[group]
        passed()
