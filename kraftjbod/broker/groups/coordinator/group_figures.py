"""LOOP. ``GroupFigures``: how many groups there are, in which states, and what becomes of offsets.

Groups are counted when somebody asks. Names are Kafka's where it has one number for it; what Kafka
measures as a rate is counted here, and the rate is the reader's to take.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.coordinator.led_groups import LedGroups
from kraftjbod.core.telemetry import Metrics


class GroupFigures:
    def __init__(self, metrics: Metrics, led: Callable[[], Iterable[LedGroups]]) -> None:
        """:param led: the partitions of ``__consumer_offsets`` that are led here now."""
        self._metrics = metrics
        self._led = led
        metrics.gauges(lambda: dict(self._all()))
        self.committed(0)
        self.expired(0)
        self.deleted(0)
        metrics.count("CompletedRebalancesPerSec", 0)
        metrics.count("OffsetCommitsPerSec", 0)
        metrics.count("OffsetExpirationsPerSec", 0)
        metrics.count("OffsetDeletionsPerSec", 0)
        metrics.count("ConsumerGroupRebalancesPerSec", 0)

    def committed(self, offsets: int) -> None:
        self._metrics.count("OffsetCommitsPerSec", offsets)

    def expired(self, offsets: int) -> None:
        self._metrics.count("OffsetExpirationsPerSec", offsets)

    def deleted(self, offsets: int) -> None:
        """Whoever asked for it: somebody, or the end of a topic."""
        self._metrics.count("OffsetDeletionsPerSec", offsets)

    def rebalanced(self) -> None:
        """A classic group has come to an assignment."""
        self._metrics.count("CompletedRebalancesPerSec")

    def assigned_anew(self) -> None:
        """A group of the newer protocol has another epoch, and so another assignment."""
        self._metrics.count("ConsumerGroupRebalancesPerSec")

    def _all(self) -> Iterator[tuple[str, float]]:
        led = list(self._led())
        groups = [one.groups for one in led]
        yield "NumGroups", sum(len(one) for one in groups)
        yield "NumConsumerGroups", sum(len(one.consumer_groups) for one in groups)
        yield "NumGroupMembers", sum(map(_members, led))
        offsets = (len(one.offsets(name)) for one in groups for name in one.group_ids())
        yield "NumOffsets", sum(offsets)
        classic = Counter(
            one.state_of(name)
            for one in groups
            for name in one.group_ids()
            if name not in one.consumer_groups
        )
        yield "NumGroupsEmpty", classic[GroupState.EMPTY]
        yield "NumGroupsPreparingRebalance", classic[GroupState.PREPARING_REBALANCE]
        yield "NumGroupsCompletingRebalance", classic[GroupState.COMPLETING_REBALANCE]
        yield "NumGroupsStable", classic[GroupState.STABLE]
        newer = Counter(
            group.state.phase for one in groups for group in one.consumer_groups.values()
        )
        yield "NumConsumerGroupsEmpty", newer[GroupState.EMPTY]
        yield "NumConsumerGroupsAssigning", newer[GroupState.ASSIGNING]
        yield "NumConsumerGroupsReconciling", newer[GroupState.RECONCILING]
        yield "NumConsumerGroupsStable", newer[GroupState.STABLE]


def _members(led: LedGroups) -> int:
    groups = led.groups
    return sum(len(group.members) for group in groups.groups.values()) + sum(
        len(group.state.members) for group in groups.consumer_groups.values()
    )
