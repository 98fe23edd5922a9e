"""LOOP. ``IsrManager``: keeps the in-sync sets of the partitions that this broker leads.

* ``leaderships.py`` notifies the manager of partitions that this broker leads. The manager checks
  them at intervals, and removes members that lag. A check looks for lag in a part of them, so that
  thousands of partitions without load cost little.
* A follower that has caught up is added when its fetch shows that. If it could not be added then
  (its broker was still fenced, or another change was pending), a later check adds it, because a
  caught-up follower does not fetch while there are no new records.
* One AlterPartition request contains changes of many partitions; one request is in flight at a
  time. A change that could not be delivered is sent again as long as it is still pending.

partition.py decides which changes are requested; the controller decides whether they are made.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import Final, NamedTuple

from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.lifecycle.lifecycle_manager import BrokerLifecycleManager
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.partitions.isr_change import IsrChange, IsrVerdict
from kraftjbod.broker.partitions.partition import Partition
from kraftjbod.broker.partitions.replica_states import ReplicaState
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.broker.replicas.leaderships import Leadership
from kraftjbod.core import buggify
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId, TopicIdPartition, TopicPartition
from kraftjbod.core.loop.timing import Clock, ExponentialBackoff
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.protocol.rpc_messages import (
    MAX_PARTITIONS_PER_REQUEST,
    AlteredPartition,
    AlterPartitionRequest,
)

_CHECK_INTERVAL_MS: Final = 500
#: Each partition is checked for lag this many times in ``replica.lag.time.max.ms``.
_LAG_CHECKS_PER_LIMIT: Final = 4


class _PendingChange(NamedTuple):
    replica: HostedReplica
    change: IsrChange
    #: Whether the change adds a member. Metadata may show the change before it is answered.
    is_growth: bool


class IsrManager:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        replicas: HostedReplicas,
        cache: MetadataCache,
        channel: ControllerChannel,
        lifecycle: BrokerLifecycleManager,
        clock: Clock,
        backoff: ExponentialBackoff,
        metrics: Metrics,
        replica_lag_time_max_ms: int,
        request_timeout_ms: int,
    ) -> None:
        self._broker_id = broker_id
        self._replicas = replicas
        self._cache = cache
        self._channel = channel
        self._lifecycle = lifecycle
        self._clock = clock
        self._backoff = backoff
        self._metrics = metrics
        metrics.count("IsrExpandsPerSec", 0)
        metrics.count("IsrShrinksPerSec", 0)
        self._check_interval_ms = max(1, min(_CHECK_INTERVAL_MS, replica_lag_time_max_ms // 2))
        most_ms = replica_lag_time_max_ms // _LAG_CHECKS_PER_LIMIT
        #: Number of checks in which each partition is checked for lag once.
        self._lag_parts = max(1, most_ms // self._check_interval_ms)
        self._request_timeout_ms = request_timeout_ms
        #: The partitions led here; an ordered set.
        self._led: dict[TopicPartition, None] = {}
        #: The newest unsent change of each partition. Bounded by the partitions hosted here.
        self._unsent: dict[TopicIdPartition, _PendingChange] = {}
        self._wakeup = asyncio.Event()
        self._log = get_logger(component="isr_manager")

    def elected(self, leadership: Leadership) -> None:
        """Note that this broker leads the partition, so that :meth:`watch` checks its ISR."""
        self._led[leadership.topic_partition] = None

    def resigned(self, leadership: Leadership) -> None:
        """Forget a partition that this broker does not lead any more, and its pending change."""
        del self._led[leadership.topic_partition]
        self._unsent.pop(
            TopicIdPartition(leadership.topic_id, leadership.topic_partition.partition), None
        )

    def follower_caught_up(self, replica: HostedReplica, follower: BrokerId) -> None:
        """Queue a request that the follower joins the ISR, if it is outside and has caught up. Does
        nothing otherwise, so each fetch may call it.
        """
        partition, handle = replica.partition, replica.handle
        if partition is None or handle is None:
            return
        start, brokers = handle.log_start_offset, self._cache.state.brokers
        if partition.isr_expand_wanted(follower, brokers, log_start_offset=start):
            self._want(replica, (*partition.isr, follower))

    async def watch(self) -> None:
        """At intervals, until cancelled, request that lagging followers leave the ISRs of led
        partitions, and that followers which have caught up join.
        """
        for number in itertools.count():
            await asyncio.sleep(self._check_interval_ms / 1000)
            self._check_all(number % self._lag_parts)

    def _check_all(self, part: int) -> None:
        """Check the under-replicated partitions, and of the others those of part number ``part``:
        each check looks at one part for lag."""
        now_ms = self._clock.now_ms()
        for at, topic_partition in enumerate(self._led):
            replica = self._replicas.get(topic_partition)
            if replica is None or replica.partition is None:
                continue
            partition = replica.partition
            if at % self._lag_parts == part or len(partition.isr) < len(partition.replicas):
                self._check(replica, partition, now_ms)

    def _check(self, replica: HostedReplica, partition: Partition, now_ms: int) -> None:
        # A leader that cannot read its own log must not remove the followers that wait for it.
        is_stalled = replica.state is ReplicaState.STALLED
        lagging = () if is_stalled else partition.isr_shrink_candidates(now_ms)
        if lagging:
            self._log.info(
                "isr_members_lag", partition=str(replica.topic_partition), brokers=lagging
            )
            self._want(replica, tuple(m for m in partition.isr if m not in lagging))
        elif partition.is_under_replicated:
            for follower in partition.replicas:
                if follower not in partition.isr:
                    self.follower_caught_up(replica, follower)

    async def run_isr_manager(self) -> None:
        """Send the requested ISR changes, until cancelled."""
        failures = 0
        while True:
            await self._wakeup.wait()
            self._wakeup.clear()
            most = MAX_PARTITIONS_PER_REQUEST
            if buggify.is_on and buggify.fires("broker.one_isr_change"):
                most = 1
            changes = dict(list(self._unsent.items())[:most])
            for key in changes:
                del self._unsent[key]
            changes = {key: item for key, item in changes.items() if self._is_pending(item)}
            if changes:
                again = await self._deliver(changes)
                for key, item in again.items():
                    self._unsent.setdefault(key, item)
                failures = failures + 1 if again else 0
                if again:
                    await asyncio.sleep(self._backoff.wait_ms(failures) / 1000)
            if self._unsent:
                self._wakeup.set()

    def _want(self, replica: HostedReplica, isr: tuple[BrokerId, ...]) -> None:
        assert replica.partition is not None, replica
        is_growth = len(isr) > len(replica.partition.isr)
        change = replica.partition.begin_isr_change(
            isr,
            own_broker_epoch=self._lifecycle.broker_epoch,
            metadata_offset=self._cache.state.offset,
        )
        self._unsent[replica.key] = _PendingChange(replica, change, is_growth)
        self._wakeup.set()

    def _is_pending(self, item: _PendingChange) -> bool:
        replica, change = item.replica, item.change
        return (
            self._replicas.is_current(replica)
            and replica.partition is not None
            and replica.partition.pending_isr_change is change
        )

    async def _deliver(
        self, changes: dict[TopicIdPartition, _PendingChange]
    ) -> dict[TopicIdPartition, _PendingChange]:
        """Send one request; return the changes that must be sent again."""
        request = AlterPartitionRequest(
            broker_id=self._broker_id,
            broker_epoch=self._lifecycle.broker_epoch,
            partitions=tuple(item.change.partition_request(key) for key, item in changes.items()),
        )
        try:
            response = await self._channel.call(request, timeout_ms=self._request_timeout_ms)
        except OperatingError as e:
            self._log.warning("alter_partition_failed", reason=str(e), partitions=len(changes))
            return changes
        again = dict(changes)
        for altered in response.partitions:
            key = TopicIdPartition(altered.topic_id, altered.partition)
            if key in changes and not self._settle(changes[key], altered):
                del again[key]
        return {key: item for key, item in again.items() if self._is_pending(item)}

    def _settle(self, item: _PendingChange, altered: AlteredPartition) -> bool:
        """Apply the answer for one partition; return whether the change must be sent again."""
        replica, change = item.replica, item.change
        partition = replica.partition
        if partition is None:
            return False
        high_watermark = partition.high_watermark
        if altered.error_code is ErrorCode.NONE:
            partition.isr_change_committed(
                change,
                leader_epoch=altered.leader_epoch,
                partition_epoch=altered.partition_epoch,
                isr=altered.isr,
            )
            self._metrics.count("IsrExpandsPerSec" if item.is_growth else "IsrShrinksPerSec")
            self._replicas.in_sync_set_changed(replica, high_watermark)
            return False
        verdict = partition.isr_change_refused(change, altered.error_code)
        self._log.info(
            "isr_change_refused",
            partition=str(replica.topic_partition),
            code=altered.error_code.name,
            verdict=verdict.value,
        )
        self._replicas.in_sync_set_changed(replica, high_watermark)
        return verdict is IsrVerdict.RETRY
