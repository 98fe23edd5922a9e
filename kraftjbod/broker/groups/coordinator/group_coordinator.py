"""LOOP. ``GroupCoordinator``: the groups in the led partitions of ``__consumer_offsets``.

* A partition of that topic is loaded when this broker becomes its leader, and dropped at the end of
  the leadership. Requests for other or unloaded partitions are refused with an error code.
* Persistent changes are appended first and take effect when they are replicated. A failed write
  changes nothing, and its request gets Kafka's code for the failure (ADR 81).
* A record appended in one leadership is never part of another one.
* If another broker may be coordinator by now, a record is appended before committed offsets are
  returned: a replaced coordinator cannot append.
* A group has one timer, set for the next action of its state machine.

classic_group.py has the states and the handling of requests, group_partition.py the committed
offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, assert_never

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.group_configs import GroupConfigs
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.broker.groups.classic.classic_group import NEVER, ClassicGroup
from kraftjbod.broker.groups.classic.group_events import (
    Answer,
    GroupEvent,
    GroupState,
    GroupWritten,
    HeartbeatAnswer,
    HeartbeatReceived,
    JoinAnswer,
    JoinRequested,
    LeaveAnswer,
    LeaveRequested,
    RebalanceRequired,
    SyncAnswer,
    SyncRequested,
    TimePassed,
    Unloaded,
    WriteGroup,
)
from kraftjbod.broker.groups.consumer.consumer_group_events import (
    ConsumerHeartbeat,
    DeletionAnswer,
    DeletionRequested,
    MemberRequest,
)
from kraftjbod.broker.groups.coordinator.consumer_group_driver import ConsumerGroupDriver, complete
from kraftjbod.broker.groups.coordinator.group_figures import GroupFigures
from kraftjbod.broker.groups.coordinator.group_log import GroupLog
from kraftjbod.broker.groups.coordinator.group_partition import GroupPartition
from kraftjbod.broker.groups.coordinator.led_groups import CoordinatorSettings, LedGroups, Phase
from kraftjbod.broker.groups.records.group_records import (
    OFFSETS_TOPIC,
    Fact,
    GroupFact,
    OffsetFact,
    fact_of,
)
from kraftjbod.broker.internal.coordinators import partition_of
from kraftjbod.broker.internal.internal_reader import InternalReader
from kraftjbod.broker.replicas.leaderships import Leadership
from kraftjbod.broker.replicas.pending_append import MarkerToWrite
from kraftjbod.core.errors import CorruptRecordError, ErrorCode, OperatingError
from kraftjbod.core.ids import ZERO_UUID, LeaderEpoch, TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock, ExponentialBackoff
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.protocol.control_records import marker_of
from kraftjbod.protocol.record_batch import NO_PRODUCER_ID

#: Number of facts deleted in one batch, because encoding blocks the event loop.
MAX_FACTS_PER_WRITE: Final = 500
#: An empty fact: no group has this name.
_NOTHING: Final = GroupFact("", None)


class GroupCoordinator:
    """Coordinates the groups in the partitions of ``__consumer_offsets`` that this broker leads.

    The coordinator must be subscribed to leaderships and to deletions of topics.
    ``run_expirations()`` expires offsets.
    """

    def __init__(
        self,
        *,
        cache: MetadataCache,
        topic_configs: TopicConfigs,
        records: GroupLog,
        reader: InternalReader,
        tasks: BackgroundTasks,
        clock: Clock,
        backoff: ExponentialBackoff,
        metrics: Metrics,
        settings: CoordinatorSettings,
        configs: GroupConfigs,
        may_be_deposed: Callable[[], bool],
    ) -> None:
        """Create the coordinator.

        :param may_be_deposed: returns whether another broker may lead partitions that the metadata
            shows as led here.
        """
        self._cache = cache
        self._records = records
        self._reader = reader
        self._tasks = tasks
        self._clock = clock
        self._backoff = backoff
        self._settings = settings
        self._may_be_deposed = may_be_deposed
        #: By partition index.
        self._led: dict[int, LedGroups] = {}
        #: Offsets of deleted topics may exist.
        self._has_orphans = asyncio.Event()
        self.figures = GroupFigures(metrics, lambda: self._led.values())
        self._consumer = ConsumerGroupDriver(
            cache=cache,
            topic_configs=topic_configs,
            figures=self.figures,
            clock=clock,
            log=records,
            settings=settings,
            configs=configs,
            classic=self,
        )
        self._log = get_logger(component="group_coordinator")

    # --- leaderships -----------------------------------------------------------------------------

    def elected(self, leadership: Leadership) -> None:
        """Start to load the partition in the background, if it is one of ``__consumer_offsets`` and
        not loaded already. The load is retried while this broker leads, except after a damaged
        record.
        """
        (topic, index), epoch = leadership.topic_partition, leadership.leader_epoch
        if topic != OFFSETS_TOPIC:
            return
        led = self._led.get(index)
        if led is not None and led.phase is Phase.ACTIVE:
            # The log is the same, so the loaded state stays valid.
            led.leader_epoch = epoch
            return
        if led is not None:
            led.phase = Phase.ENDED
        self._begin(leadership.topic_partition, epoch)

    def _begin(self, topic_partition: TopicPartition, epoch: LeaderEpoch) -> None:
        index = topic_partition.partition
        led = self._led[index] = LedGroups(topic_partition, epoch, self._settings)
        self._tasks.attempt(lambda: self._load(led), f"load-groups-{index}")

    def resigned(self, leadership: Leadership) -> None:
        """Drop the partition, if it is one of ``__consumer_offsets``. Waiting requests fail."""
        topic, index = leadership.topic_partition
        if topic == OFFSETS_TOPIC and index in self._led:
            self._unload(index)

    def close(self) -> None:
        """Drop all partitions. Waiting requests fail."""
        for index in list(self._led):
            self._unload(index)

    def _unload(self, index: int) -> None:
        led = self._led.pop(index)
        led.phase = Phase.ENDED
        for _, timer in led.timers.values():
            timer.cancel()
        led.timers.clear()
        for group in led.groups.groups.values():
            self._carry_out(led, group, Unloaded())
        for consumer_group in led.groups.consumer_groups.values():
            self._consumer.handle(led, consumer_group, Unloaded())
        self._log.info("group_partition_unloaded", partition=index, groups=len(led.groups))

    async def _load(self, led: LedGroups) -> None:
        failures = 0
        index = led.topic_partition.partition
        while led.phase is not Phase.ENDED:
            try:
                await self._take_all(led)
                break
            except CorruptRecordError as e:
                led.phase = Phase.FAILED
                self._log.error("group_partition_unreadable", partition=index, reason=str(e))
                return
            except OperatingError as e:
                failures += 1
                self._log.info("group_partition_not_loaded", partition=index, reason=str(e))
                await asyncio.sleep(self._backoff.wait_ms(failures) / 1000)
        if led.phase is Phase.ENDED:
            return
        led.phase = Phase.ACTIVE
        self._has_orphans.set()
        led.groups.loaded(self._clock.now_ms())
        for group in list(led.groups.groups.values()):
            self._set_timer(led, group)
        for consumer_group in list(led.groups.consumer_groups.values()):
            self._consumer.handle(led, consumer_group, TimePassed())
        self._log.info("group_partition_loaded", partition=index, groups=len(led.groups))

    async def _take_all(self, led: LedGroups) -> None:
        led.groups = GroupPartition(self._settings.limits, self._settings.consumer)
        async for batch in self._reader.read(led.topic_partition, led.leader_epoch):
            header = batch.header
            if header.is_control:
                for marker in filter(None, map(marker_of, batch.records)):
                    led.groups.transaction_ended(
                        header.producer_id, header.base_offset, commits=marker.is_commit
                    )
                continue
            producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
            async for record in in_slices(batch.records):
                fact = fact_of(record)
                if fact is not None:
                    led.groups.take(fact, record.offset, producer_id)

    # --- groups ----------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequested) -> None:
        """Handle JoinGroup; the token completes with a :class:`JoinAnswer`.

        :raises OperatingError: this broker does not coordinate the group, or is still loading it.
        """
        led = self.led_of(group_id)
        groups = led.groups
        if group_id in groups.consumer_groups:
            self._consumer.handle(led, groups.consumer_groups[group_id], request)
            return
        if group_id not in groups.groups:
            code = ErrorCode.NONE
            if request.member_id:
                code = ErrorCode.UNKNOWN_MEMBER_ID
            elif not groups.admits(
                group_id, self._settings.max_groups_per_partition, self._clock.now_ms()
            ):
                code = ErrorCode.GROUP_MAX_SIZE_REACHED
            if code is not ErrorCode.NONE:
                answer = JoinAnswer(code=code, member_id=request.member_id)
                complete(request.token, answer)
                return
        self._carry_out(led, groups.group(group_id), request)

    def sync(self, group_id: str, request: SyncRequested) -> None:
        """Handle SyncGroup as :meth:`join`, with a :class:`SyncAnswer`."""
        unknown = SyncAnswer(code=ErrorCode.UNKNOWN_MEMBER_ID)
        self._pass_to_existing_group(group_id, request, unknown)

    def heartbeat(self, group_id: str, request: HeartbeatReceived) -> None:
        """Handle Heartbeat as :meth:`join`, with a :class:`HeartbeatAnswer`."""
        unknown = HeartbeatAnswer(ErrorCode.UNKNOWN_MEMBER_ID)
        self._pass_to_existing_group(group_id, request, unknown)

    def leave(self, group_id: str, request: LeaveRequested) -> None:
        """Handle LeaveGroup as :meth:`join`, with a :class:`LeaveAnswer`."""
        codes = tuple(ErrorCode.UNKNOWN_MEMBER_ID for _ in request.members)
        self._pass_to_existing_group(group_id, request, LeaveAnswer(codes))

    def _pass_to_existing_group(
        self,
        group_id: str,
        request: SyncRequested | HeartbeatReceived | LeaveRequested,
        unknown: SyncAnswer | HeartbeatAnswer | LeaveAnswer,
    ) -> None:
        """Pass a classic member's request to its group, of either protocol.

        :param unknown: answer if the group does not exist.
        :raises KafkaError: as :meth:`join`.
        """
        led = self.led_of(group_id)
        group = led.groups.groups.get(group_id)
        if group_id in led.groups.consumer_groups:
            self._consumer.handle(led, led.groups.consumer_groups[group_id], request)
        elif group is None:
            complete(request.token, unknown)
        else:
            self._carry_out(led, group, request)

    def consumer_heartbeat(self, group_id: str, request: ConsumerHeartbeat) -> None:
        """Handle ConsumerGroupHeartbeat as :meth:`join`, with a :class:`ConsumerAnswer`."""
        self._consumer.heartbeat(self.led_of(group_id), group_id, request)

    async def delete(self, group_id: str) -> ErrorCode:
        """Delete a group without members, and its committed offsets. Return NONE once that is
        replicated, else the error code; a part of the offsets may be deleted then. The code is
        NON_EMPTY_GROUP also if a member joins meanwhile.

        :raises OperatingError: as :meth:`join`.
        """
        code = self.led_of(group_id).groups.check_deletion(group_id)
        while code is ErrorCode.NONE:
            led = self.led_of(group_id)
            present = led.groups.check_deletion(group_id)
            if present is ErrorCode.NON_EMPTY_GROUP:
                return present  # A member has joined since the first write.
            if present is not ErrorCode.NONE:
                break  # The group was deleted.
            facts = led.groups.deletion(group_id)[:MAX_FACTS_PER_WRITE]
            if not facts:
                consumer_group = led.groups.consumer_groups.get(group_id)
                if consumer_group is not None:
                    return await self._consumer.delete(led, consumer_group)
                led.groups.drop_classic(group_id)
                break
            code = await self._records.write(led, facts)
            if code is ErrorCode.NONE:
                self.figures.deleted(_offsets_in(facts))
        return code

    def find(self, group_id: str) -> GroupPartition:
        """Return the loaded partition of ``__consumer_offsets`` that coordinates ``group_id``.

        The group need not exist.

        :raises OperatingError: as :meth:`join`.
        """
        return self.led_of(group_id).groups

    async def find_current(self, group_id: str) -> GroupPartition:
        """As :meth:`find`, but first confirm that no other broker has become coordinator.

        The confirmation is an append, which is only needed while another broker may lead.

        :raises OperatingError: as :meth:`join`, also if the append fails.
        """
        led = self.led_of(group_id)
        if self._may_be_deposed():
            code = await self._records.write(led, [_NOTHING])
            if code is not ErrorCode.NONE:
                raise OperatingError(
                    f"it is not known if group {group_id} is coordinated by this broker still",
                    code=code,
                )
        return led.groups

    def all_partitions(self) -> Iterator[GroupPartition]:
        """Yield all loaded partitions.

        :raises OperatingError: COORDINATOR_LOAD_IN_PROGRESS: a partition is not loaded yet.
        """
        for led in self._led.values():
            if led.phase is Phase.LOADING:
                raise OperatingError(
                    f"{led.topic_partition} is being loaded",
                    code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                )
            if led.phase is Phase.ACTIVE:
                yield led.groups

    def loaded_partitions(self) -> list[GroupPartition]:
        """Return the loaded partitions, without those that are still loading or cannot be
        loaded.
        """
        return [led.groups for led in self._led.values() if led.phase is Phase.ACTIVE]

    # --- from one kind to the other --------------------------------------------------------------

    def end_classic(self, led: LedGroups, group: ClassicGroup) -> None:
        led.groups.drop_classic(group.group_id)
        led.drop_timer(group)
        self._carry_out(led, group, Unloaded(ErrorCode.REBALANCE_IN_PROGRESS))

    def begin_classic(self, led: LedGroups, group: ClassicGroup) -> None:
        self._carry_out(led, group, RebalanceRequired())

    def again(self, led: LedGroups, group_id: str, request: MemberRequest) -> None:
        match request:
            case JoinRequested():
                self.join(group_id, request)
            case SyncRequested():
                self.sync(group_id, request)
            case HeartbeatReceived():
                self.heartbeat(group_id, request)
            case LeaveRequested():
                self.leave(group_id, request)
            case ConsumerHeartbeat():
                self._consumer.heartbeat(led, group_id, request)
            case DeletionRequested():
                complete(request.token, DeletionAnswer(ErrorCode.NON_EMPTY_GROUP))
            case _:
                assert_never(request)

    def reload(self, led: LedGroups) -> None:
        if led.phase is Phase.ACTIVE:
            self._unload(led.topic_partition.partition)
            self._begin(led.topic_partition, led.leader_epoch)

    def _carry_out(self, led: LedGroups, group: ClassicGroup, event: GroupEvent) -> None:
        before = group.state
        actions = group.handle(event, self._clock.now_ms())
        led.groups.recount(group.group_id)
        for action in actions:
            match action:
                case Answer(token, answer):
                    complete(token, answer)
                case WriteGroup():
                    self._write_group(led, group, action)
                case _:
                    assert_never(action)
        if group.state is not before:
            led.groups.state_changed(group.group_id, self._clock.wall_ms())
            if group.state is GroupState.STABLE:
                self.figures.rebalanced()
        if group.state is not GroupState.DEAD:
            self._set_timer(led, group)

    def _write_group(self, led: LedGroups, group: ClassicGroup, action: WriteGroup) -> None:
        written = replace(action.group, since_ms=self._clock.wall_ms())
        writing = self._records.write(led, [GroupFact(group.group_id, written)])
        loop = asyncio.get_running_loop()

        def ended(done: Completion[ErrorCode]) -> None:
            # In a separate event loop iteration: the group may request another write.
            loop.call_soon(continue_with, done.result())

        def continue_with(code: ErrorCode) -> None:
            if led.phase is not Phase.ENDED:
                self._carry_out(led, group, GroupWritten(action.write_id, code))

        writing.add_done_callback(ended)

    def _set_timer(self, led: LedGroups, group: ClassicGroup) -> None:
        passed = partial(self._carry_out, led, group, TimePassed())
        led.set_timer(group, self._clock.now_ms(), passed)
        if group.next_deadline_ms == NEVER and led.groups.forget_unused(group):
            led.drop_timer(group)

    # --- offsets ---------------------------------------------------------------------------------

    def transaction_ended(
        self, topic_partition: TopicPartition, marker: MarkerToWrite, offset: int
    ) -> None:
        """Apply a marker that is replicated at ``offset`` of ``topic_partition``.

        While the partition is loading, the reader reads the marker from the log.
        """
        led = self._led.get(topic_partition.partition)
        if led is not None and led.phase is Phase.ACTIVE:
            commits = marker.marker.is_commit
            led.groups.transaction_ended(marker.producer_id, offset, commits=commits)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> ErrorCode:
        """Delete the committed offsets of ``partitions``, in several writes if they are many.
        Return NONE once they are replicated, else the error code of the first write that failed.
        Earlier writes remain in effect.

        :raises OperatingError: as :meth:`join`.
        """
        code = ErrorCode.NONE
        for at in range(0, len(partitions), MAX_FACTS_PER_WRITE):
            led = self.led_of(group_id)
            there = led.groups.offsets(group_id)
            part = [tp for tp in partitions[at : at + MAX_FACTS_PER_WRITE] if tp in there]
            if part and code is ErrorCode.NONE:
                code = await self._records.write(
                    led, [OffsetFact(group_id, tp, None) for tp in part]
                )
                self.figures.deleted(len(part) if code is ErrorCode.NONE else 0)
        return code

    def topics_deleted(self) -> None:
        """Note that topics were deleted: :meth:`run_expirations` deletes their offsets."""
        self._has_orphans.set()

    async def run_expirations(self) -> None:
        """Expire offsets at intervals, until cancelled. Offsets of deleted topics are deleted at
        once."""
        while True:
            expires = False
            try:
                async with asyncio.timeout(self._settings.expiry_interval_ms / 1000):
                    await self._has_orphans.wait()
            except TimeoutError:
                expires = True
            self._has_orphans.clear()
            for led in list(self._led.values()):
                if led.phase is Phase.ACTIVE:
                    await self._forget_orphans(led)
                if led.phase is Phase.ACTIVE and expires:
                    await self._expire(led)

    async def _forget_orphans(self, led: LedGroups) -> None:
        """Delete the offsets of deleted topics. After a failure the next expiry tries again.

        The leader that wrote an offset knew its topic, and the present leader's metadata is at
        least as new. So a topic that is missing in the metadata was deleted.
        """
        async for group_id in in_slices(led.groups.group_ids()):
            while facts := led.groups.orphaned(group_id, self._is_gone):
                # Written at once: a new topic may get the name in between.
                part = facts[:MAX_FACTS_PER_WRITE]
                code = await self._records.write(led, part)
                if code is not ErrorCode.NONE or led.phase is Phase.ENDED:
                    return
                self.figures.deleted(len(part))

    def _is_gone(self, name: str, topic_id: bytes) -> bool:
        state = self._cache.state
        return state.topic(name) is None if topic_id == ZERO_UUID else topic_id not in state.topics

    async def _expire(self, led: LedGroups) -> None:
        retention_ms = self._settings.offsets_retention_ms
        async for group_id in in_slices(led.groups.group_ids()):
            # Written at once: the offset may be committed again in between.
            facts = led.groups.expired(group_id, self._clock.wall_ms(), retention_ms)
            while facts:
                part = facts[:MAX_FACTS_PER_WRITE]
                code = await self._records.write(led, part)
                if code is not ErrorCode.NONE or led.phase is Phase.ENDED:
                    return  # The next expiry tries again.
                self.figures.expired(_offsets_in(part))
                facts = led.groups.expired(group_id, self._clock.wall_ms(), retention_ms)
            if led.groups.is_over(group_id):
                await self._consumer.delete(led, led.groups.consumer_groups[group_id])

    def led_of(self, group_id: str) -> LedGroups:
        """Return the loaded partition that coordinates the group. The group need not exist.

        :raises OperatingError: NOT_COORDINATOR or COORDINATOR_LOAD_IN_PROGRESS.
        """
        index = partition_of(self._cache.state, OFFSETS_TOPIC, group_id)
        led = None if index is None else self._led.get(index)
        if led is None or led.phase is Phase.FAILED:
            raise OperatingError(
                f"group {group_id} is not coordinated by this broker",
                code=ErrorCode.NOT_COORDINATOR,
            )
        if led.phase is Phase.LOADING:
            raise OperatingError(
                f"{led.topic_partition} is being loaded",
                code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            )
        return led


def _offsets_in(facts: Sequence[Fact]) -> int:
    return sum(isinstance(fact, OffsetFact) for fact in facts)
