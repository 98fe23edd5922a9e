"""LOOP. ``GroupCoordinator``: groups, where their part of ``__consumer_offsets`` is led here.

* A partition of that topic is loaded when this broker begins to lead it, and dropped when that
  ends; the groups of a partition that is not here, or not loaded yet, are refused by code.
* Whatever shall outlive this broker is appended first and holds when it is replicated. A write that
  fails changes nothing here, and who asked for it hears the code that Kafka has for that.
* What is appended under one leadership is never part of another one.
* A group has one timer, set for the next moment at which its machine has something to do.

Which state a group is in, and what that means for a request, is classic_group.py's; what is
committed is in group_partition.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, assert_never

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.groups.classic_group import NEVER, ClassicGroup
from kraftjbod.broker.groups.group_events import (
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
    SyncAnswer,
    SyncRequested,
    TimePassed,
    Unloaded,
    WriteGroup,
)
from kraftjbod.broker.groups.group_partition import GroupPartition
from kraftjbod.broker.groups.group_records import (
    OFFSETS_TOPIC,
    CommittedOffset,
    Fact,
    GroupFact,
    OffsetFact,
    fact_of,
    record_of,
)
from kraftjbod.broker.groups.led_groups import CoordinatorSettings, LedGroups, Phase
from kraftjbod.broker.internal.batched_appends import BatchedAppends
from kraftjbod.broker.internal.coordinators import code_of_write, partition_of
from kraftjbod.broker.internal.internal_producer import InternalProducer
from kraftjbod.broker.internal.internal_reader import InternalReader
from kraftjbod.broker.replicas.leaderships import Leadership
from kraftjbod.broker.replicas.pending_append import AppendOutcome, MarkerToWrite, TransactionClaim
from kraftjbod.core.errors import CorruptRecordError, ErrorCode, LocalProtocolError, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock, ExponentialBackoff
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.protocol.control_records import marker_of
from kraftjbod.protocol.record_batch import NO_PRODUCER_ID
from kraftjbod.protocol.records import Record, build_batch

#: What is forgotten in one go: encoding it takes the loop.
_FACTS_AT_ONCE: Final = 500
_NO_PRODUCER: Final = (NO_PRODUCER_ID, -1)


class GroupCoordinator:
    """Subscribes to leaderships; ``run()`` lets offsets expire."""

    def __init__(
        self,
        *,
        cache: MetadataCache,
        producer: InternalProducer,
        reader: InternalReader,
        tasks: BackgroundTasks,
        clock: Clock,
        backoff: ExponentialBackoff,
        metrics: Metrics,
        settings: CoordinatorSettings,
    ) -> None:
        self._cache = cache
        self._producer = producer
        self._appends = BatchedAppends(producer, timeout_ms=settings.commit_timeout_ms)
        self._reader = reader
        self._tasks = tasks
        self._clock = clock
        self._backoff = backoff
        self._settings = settings
        #: By partition.
        self._led: dict[int, LedGroups] = {}
        self._log = get_logger(component="group_coordinator")
        metrics.gauge("NumGroups", lambda: sum(len(led.groups) for led in self._led.values()))
        metrics.gauge("NumOffsets", self._count_offsets)

    # --- leaderships -----------------------------------------------------------------------------

    def elected(self, leadership: Leadership) -> None:
        """Load the partition, if it is one of ours and not loaded already."""
        (topic, index), epoch = leadership.topic_partition, leadership.leader_epoch
        if topic != OFFSETS_TOPIC:
            return
        led = self._led.get(index)
        if led is not None and led.phase is Phase.ACTIVE:
            # The same log goes on, and with it what is in memory of it.
            led.leader_epoch = epoch
            return
        led = self._led[index] = LedGroups(leadership.topic_partition, epoch, self._settings.limits)
        self._tasks.attempt(lambda: self._load(led), f"load-groups-{index}")

    def resigned(self, leadership: Leadership) -> None:
        """Whatever waits for groups of this partition has to go elsewhere."""
        topic, index = leadership.topic_partition
        if topic == OFFSETS_TOPIC and index in self._led:
            self._unload(index)

    def close(self) -> None:
        """Answer whoever waits."""
        for index in list(self._led):
            self._unload(index)

    def _unload(self, index: int) -> None:
        led = self._led.pop(index)
        for _, timer in led.timers.values():
            timer.cancel()
        led.timers.clear()
        for group in led.groups.groups.values():
            self._carry_out(led, group, Unloaded())
        self._log.info("group_partition_unloaded", partition=index, groups=len(led.groups))

    async def _load(self, led: LedGroups) -> None:
        failures = 0
        index = led.topic_partition.partition
        while self._is_current(led):
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
        if not self._is_current(led):
            return
        led.phase = Phase.ACTIVE
        led.groups.loaded(self._clock.now_ms())
        for group in list(led.groups.groups.values()):
            self._set_timer(led, group)
        self._log.info("group_partition_loaded", partition=index, groups=len(led.groups))

    async def _take_all(self, led: LedGroups) -> None:
        led.groups = GroupPartition(self._settings.limits)
        async for batch in self._reader.read(led.topic_partition, led.leader_epoch):
            header = batch.header
            if header.is_control:
                for marker in filter(None, map(marker_of, batch.records)):
                    led.groups.transaction_ended(header.producer_id, commits=marker.is_commit)
                continue
            producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
            async for record in in_slices(batch.records):
                fact = fact_of(record)
                if fact is not None:
                    led.groups.take(fact, record.offset, producer_id)

    def _is_current(self, led: LedGroups) -> bool:
        return self._led.get(led.topic_partition.partition) is led

    # --- groups ----------------------------------------------------------------------------------

    def join(self, group_id: str, request: JoinRequested) -> None:
        """The token is completed with a :class:`JoinAnswer`.

        :raises OperatingError: the group is not coordinated here, or not now.
        """
        led = self._led_of(group_id)
        groups = led.groups
        if group_id not in groups.groups:
            code = ErrorCode.NONE
            if request.member_id:
                code = ErrorCode.UNKNOWN_MEMBER_ID
            elif len(groups) >= self._settings.max_groups_per_partition:
                code = ErrorCode.GROUP_MAX_SIZE_REACHED
            if code is not ErrorCode.NONE:
                answer = JoinAnswer(code=code, member_id=request.member_id)
                _complete(request.token, answer)
                return
        self._carry_out(led, groups.group(group_id), request)

    def sync(self, group_id: str, request: SyncRequested) -> None:
        """As :meth:`join`, with a :class:`SyncAnswer`."""
        led = self._led_of(group_id)
        group = led.groups.groups.get(group_id)
        if group is None:
            _complete(request.token, SyncAnswer(code=ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self._carry_out(led, group, request)

    def heartbeat(self, group_id: str, request: HeartbeatReceived) -> None:
        """As :meth:`join`, with a :class:`HeartbeatAnswer`."""
        led = self._led_of(group_id)
        group = led.groups.groups.get(group_id)
        if group is None:
            _complete(request.token, HeartbeatAnswer(ErrorCode.UNKNOWN_MEMBER_ID))
        else:
            self._carry_out(led, group, request)

    def leave(self, group_id: str, request: LeaveRequested) -> None:
        """As :meth:`join`, with a :class:`LeaveAnswer`."""
        led = self._led_of(group_id)
        group = led.groups.groups.get(group_id)
        if group is None:
            codes = tuple(ErrorCode.UNKNOWN_MEMBER_ID for _ in request.members)
            _complete(request.token, LeaveAnswer(codes))
        else:
            self._carry_out(led, group, request)

    async def delete(self, group_id: str) -> ErrorCode:
        """Forget an empty group and what it has committed.

        :raises OperatingError: as :meth:`join`.
        """
        code = self._led_of(group_id).groups.check_deletion(group_id)
        while code is ErrorCode.NONE:
            led = self._led_of(group_id)
            if led.groups.check_deletion(group_id) is not ErrorCode.NONE:
                break  # Gone, or in use again.
            facts = led.groups.deletion(group_id)[:_FACTS_AT_ONCE]
            if not facts:
                led.groups.groups.pop(group_id, None)
                break
            code = await self._write(led, facts)
        return code

    def find(self, group_id: str) -> GroupPartition:
        """Where the group is, if it is.

        :raises OperatingError: as :meth:`join`.
        """
        return self._led_of(group_id).groups

    def all_partitions(self) -> Iterator[GroupPartition]:
        """What is led here.

        :raises OperatingError: COORDINATOR_LOAD_IN_PROGRESS, if something is not loaded yet.
        """
        for led in self._led.values():
            if led.phase is Phase.LOADING:
                raise OperatingError(
                    f"{led.topic_partition} is being loaded",
                    code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                )
            if led.phase is Phase.ACTIVE:
                yield led.groups

    def _carry_out(self, led: LedGroups, group: ClassicGroup, event: GroupEvent) -> None:
        before = group.state
        for action in group.handle(event, self._clock.now_ms()):
            match action:
                case Answer(token, answer):
                    _complete(token, answer)
                case WriteGroup():
                    self._write_group(led, group, action)
                case _:
                    assert_never(action)
        if group.state is not before:
            led.groups.state_changed(group.group_id, self._clock.wall_ms())
        if group.state is not GroupState.DEAD:
            self._set_timer(led, group)

    def _write_group(self, led: LedGroups, group: ClassicGroup, action: WriteGroup) -> None:
        written = replace(action.group, since_ms=self._clock.wall_ms())
        writing = self._write(led, [GroupFact(group.group_id, written)])
        loop = asyncio.get_running_loop()

        def ended(done: Completion[ErrorCode]) -> None:
            # In a turn of its own: the group may want more written.
            loop.call_soon(go_on, done.result())

        def go_on(code: ErrorCode) -> None:
            if self._is_current(led):
                self._carry_out(led, group, GroupWritten(action.write_id, code))

        writing.add_done_callback(ended)

    def _set_timer(self, led: LedGroups, group: ClassicGroup) -> None:
        at_ms = group.next_deadline_ms
        set_for = led.timers.get(group)
        if set_for is not None and set_for[0] <= at_ms:
            return  # It will find out then when to look again.
        if set_for is not None:
            set_for[1].cancel()
            del led.timers[group]
        if at_ms < NEVER:
            delay_s = max(0, at_ms - self._clock.now_ms()) / 1000
            loop = asyncio.get_running_loop()
            led.timers[group] = (at_ms, loop.call_later(delay_s, self._time_passed, led, group))
        elif led.groups.forget_unused(group):
            led.timers.pop(group, None)

    def _time_passed(self, led: LedGroups, group: ClassicGroup) -> None:
        del led.timers[group]
        self._carry_out(led, group, TimePassed())

    # --- offsets ---------------------------------------------------------------------------------

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        absent_code: ErrorCode,
    ) -> ErrorCode:
        """Commit all of ``offsets``, or none.

        :param absent_code: for a member of a group that there is not.
        :raises OperatingError: as :meth:`join`.
        """
        self._led_of(group_id)
        facts = [OffsetFact(group_id, tp, one) for tp, one in offsets.items()]
        wall_ms = self._clock.wall_ms()
        try:
            records = [record_of(fact, wall_ms) async for fact in in_slices(facts)]
        except LocalProtocolError:
            return ErrorCode.INVALID_REQUEST
        # From here to the append nothing is waited for: what is checked is so when it is written.
        led = self._led_of(group_id)
        group = led.groups.groups.get(group_id)
        code = ErrorCode.NONE
        if group is not None:
            code = group.check_commit(member_id, instance_id, generation, self._clock.now_ms())
        elif generation >= 0:
            code = absent_code
        elif len(led.groups) >= self._settings.max_groups_per_partition:
            code = ErrorCode.GROUP_MAX_SIZE_REACHED
        return await self._append(led, facts, records) if code is ErrorCode.NONE else code

    async def commit_in_transaction(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        member_id: str,
        instance_id: str | None,
        generation: int,
        producer: tuple[int, int],
        claim: TransactionClaim,
    ) -> ErrorCode:
        """As :meth:`commit`, to hold when the transaction of the producer is committed.

        :param producer: its id and epoch.
        """
        facts = [OffsetFact(group_id, tp, one) for tp, one in offsets.items()]
        wall_ms = self._clock.wall_ms()
        try:
            records = [record_of(fact, wall_ms) async for fact in in_slices(facts)]
        except LocalProtocolError:
            return ErrorCode.INVALID_REQUEST
        led = self._led_of(group_id)

        def check() -> ErrorCode:
            group = led.groups.groups.get(group_id)
            if group is None:
                return ErrorCode.NONE if generation < 0 else ErrorCode.ILLEGAL_GENERATION
            now_ms = self._clock.now_ms()
            return group.check_commit(
                member_id, instance_id, generation, now_ms, in_transaction=True
            )

        code = check()
        if code is not ErrorCode.NONE:
            return code
        # Whoever reads what is stable has to wait from here on: it may be written at any time.
        led.groups.pending.arrives(group_id, offsets)
        # The coordinator of the transaction is asked meanwhile, and members may come and go.
        claim = claim._replace(still_holds=check)
        try:
            return await self._append(led, facts, records, producer, claim)
        finally:
            led.groups.pending.arrived(group_id, offsets)

    def transaction_ended(self, topic_partition: TopicPartition, marker: MarkerToWrite) -> None:
        """A marker is replicated in ``topic_partition``: what is pending there holds, or not."""
        led = self._led.get(topic_partition.partition)
        if led is not None and led.phase is Phase.ACTIVE:
            led.groups.transaction_ended(marker.producer_id, commits=marker.marker.is_commit)

    async def delete_offsets(
        self, group_id: str, partitions: Sequence[TopicPartition]
    ) -> ErrorCode:
        """Forget what is committed for ``partitions``.

        :raises OperatingError: as :meth:`join`.
        """
        code = ErrorCode.NONE
        for at in range(0, len(partitions), _FACTS_AT_ONCE):
            led = self._led_of(group_id)
            there = led.groups.offsets(group_id)
            part = [tp for tp in partitions[at : at + _FACTS_AT_ONCE] if tp in there]
            if part and code is ErrorCode.NONE:
                code = await self._write(led, [OffsetFact(group_id, tp, None) for tp in part])
        return code

    async def run(self) -> None:
        """Let go what was kept long enough, from time to time, until cancelled."""
        while True:
            await asyncio.sleep(self._settings.expiry_interval_ms / 1000)
            for led in list(self._led.values()):
                if led.phase is Phase.ACTIVE:
                    await self._expire(led)

    async def _expire(self, led: LedGroups) -> None:
        retention_ms = self._settings.offsets_retention_ms
        async for group_id in in_slices(led.groups.group_ids()):
            # What is found is written at once: in between it may have been committed anew.
            facts = led.groups.expired(group_id, self._clock.wall_ms(), retention_ms)
            while facts:
                code = await self._write(led, facts[:_FACTS_AT_ONCE])
                if code is not ErrorCode.NONE or not self._is_current(led):
                    return  # Next time.
                facts = led.groups.expired(group_id, self._clock.wall_ms(), retention_ms)

    # --- the log ---------------------------------------------------------------------------------

    def _write(self, led: LedGroups, facts: Sequence[Fact]) -> Completion[ErrorCode]:
        """Append ``facts``; they hold when they are replicated, and the code says so."""
        wall_ms = self._clock.wall_ms()
        try:
            records = [record_of(fact, wall_ms) for fact in facts]
        except LocalProtocolError:
            # Requests have longer names than records can hold.
            return Completion.of(ErrorCode.INVALID_REQUEST)
        return self._append(led, facts, records)

    def _append(
        self,
        led: LedGroups,
        facts: Sequence[Fact],
        records: Sequence[Record],
        producer: tuple[int, int] = _NO_PRODUCER,
        claim: TransactionClaim | None = None,
    ) -> Completion[ErrorCode]:
        if claim is None:
            appending = self._appends.append(
                led.topic_partition, records, leader_epoch=led.leader_epoch
            )
        else:
            # A batch of its own: it belongs to its producer, and stands after what came before it.
            self._appends.flush(led.topic_partition)
            appending = self._producer.append(
                led.topic_partition,
                build_batch(
                    records,
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                    base_sequence=0,
                    is_transactional=True,
                ),
                leader_epoch=led.leader_epoch,
                timeout_ms=self._settings.commit_timeout_ms,
                transaction=claim,
            )

        def replicated(outcome: AppendOutcome) -> ErrorCode:
            if outcome.code is not ErrorCode.NONE:
                return code_of_write(outcome.code)
            if not self._is_current(led):
                return ErrorCode.NOT_COORDINATOR
            for offset, fact in enumerate(facts, outcome.base_offset):
                led.groups.take(fact, offset, producer[0])
            return ErrorCode.NONE

        return appending.map(replicated)

    def _led_of(self, group_id: str) -> LedGroups:
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

    def _count_offsets(self) -> int:
        return sum(
            len(led.groups.offsets(group_id))
            for led in self._led.values()
            for group_id in led.groups.group_ids()
        )


def _complete(token: object, answer: object) -> None:
    assert isinstance(token, Completion), token
    token.set_result(answer)
