"""LOOP. ``GroupFigures``: metrics of groups by state, and of committed and expired offsets.

A read costs the same for any number of groups (group_tally.py). Names are Kafka's where Kafka has
one. Kafka's rates are counters here, from which a reader computes the rate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.coordinator.group_tally import GroupTally
from kraftjbod.broker.groups.coordinator.led_groups import LedGroups
from kraftjbod.core.telemetry import Metrics


class GroupFigures:
    def __init__(self, metrics: Metrics, led: Callable[[], Iterable[LedGroups]]) -> None:
        """Register the metrics.

        :param led: returns the led partitions of ``__consumer_offsets``.
        """
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
        """Count offsets that were deleted on request or with their topic."""
        self._metrics.count("OffsetDeletionsPerSec", offsets)

    def rebalanced(self) -> None:
        """Count a completed rebalance of a classic group."""
        self._metrics.count("CompletedRebalancesPerSec")

    def count_new_assignment(self) -> None:
        """Count a new group epoch of a consumer group, which triggers a new assignment."""
        self._metrics.count("ConsumerGroupRebalancesPerSec")

    def _all(self) -> Iterator[tuple[str, float]]:
        groups = [one.groups for one in self._led()]
        tallies = [one.tally for one in groups]
        yield "NumGroups", sum(map(len, tallies))
        yield "NumConsumerGroups", sum(len(one.consumer_groups) for one in groups)
        yield "NumGroupMembers", sum(one.members for one in tallies)
        yield "NumOffsets", sum(one.offset_count for one in groups)
        classic = _sums(tallies, is_consumer=False)
        yield "NumGroupsEmpty", classic[GroupState.EMPTY]
        yield "NumGroupsPreparingRebalance", classic[GroupState.PREPARING_REBALANCE]
        yield "NumGroupsCompletingRebalance", classic[GroupState.COMPLETING_REBALANCE]
        yield "NumGroupsStable", classic[GroupState.STABLE]
        newer = _sums(tallies, is_consumer=True)
        yield "NumConsumerGroupsEmpty", newer[GroupState.EMPTY]
        yield "NumConsumerGroupsAssigning", newer[GroupState.ASSIGNING]
        yield "NumConsumerGroupsReconciling", newer[GroupState.RECONCILING]
        yield "NumConsumerGroupsStable", newer[GroupState.STABLE]


def _sums(tallies: Sequence[GroupTally], *, is_consumer: bool) -> dict[GroupState, int]:
    return {
        state: sum(one.count(is_consumer=is_consumer, state=state) for one in tallies)
        for state in GroupState
    }
