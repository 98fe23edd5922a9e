"""LOOP. ``LedGroups``: a led partition of ``__consumer_offsets``, and its settings.

Only the coordinator writes it.
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
    """No longer led, or loaded again; pending results for it are ignored."""


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
        #: Time and handle of each group's timer.
        self.timers: dict[ClassicGroup | ConsumerGroup, tuple[int, asyncio.TimerHandle]] = {}

    def set_timer(
        self, group: ClassicGroup | ConsumerGroup, now_ms: int, passed: Callable[[], None]
    ) -> None:
        """Call ``passed`` at the group's next deadline, if it has one. ``now_ms`` is monotonic.

        A timer that is set for an earlier time stays: when it fires, the caller sets the next one.
        """
        at_ms, set_for = group.next_deadline_ms, self.timers.get(group)
        if set_for is not None:
            if set_for[0] <= at_ms:
                return  # The earlier timer will set the next one.
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
