"""LOOP. ``ConsumerGroupDriver``: drives the state machines of consumer groups: events, writes,
timers.

A decision is in the machine's memory before it is in the log (ADR 91). So after a write that may be
in the log without being replicated, the partition is loaded again. The state in the log then
applies, once it is committed, and is not sent to clients before.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, assert_never

from kraftjbod.broker.cluster.group_configs import GroupConfigs
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.broker.groups.classic.classic_group import ClassicGroup
from kraftjbod.broker.groups.classic.group_events import Answer, TimePassed
from kraftjbod.broker.groups.consumer.consumer_group import ConsumerGroup
from kraftjbod.broker.groups.consumer.consumer_group_events import (
    JOINING,
    BecameClassic,
    ConsumerAnswer,
    ConsumerGroupEvent,
    ConsumerGroupSettings,
    ConsumerHeartbeat,
    DeletionAnswer,
    DeletionRequested,
    FactsWritten,
    Moment,
    WriteFacts,
)
from kraftjbod.broker.groups.consumer.group_conversion import check_upgrade, consumer_facts_of
from kraftjbod.broker.groups.consumer.group_topics import ClusterTopics
from kraftjbod.broker.groups.coordinator.group_figures import GroupFigures
from kraftjbod.broker.groups.coordinator.group_log import GroupLog, Written
from kraftjbod.broker.groups.coordinator.led_groups import CoordinatorSettings, LedGroups, Phase
from kraftjbod.broker.groups.records.consumer_group_records import EpochFact
from kraftjbod.broker.groups.records.group_records import OFFSETS_TOPIC, Fact, GroupFact
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock


class ClassicSide(Protocol):
    """The owner of the classic groups in the same partitions: :class:`GroupCoordinator`."""

    def end_classic(self, led: LedGroups, group: ClassicGroup) -> None:
        """End a classic group that becomes a consumer group. Waiting requests get an error that
        clients retry."""

    def begin_classic(self, led: LedGroups, group: ClassicGroup) -> None:
        """Start a classic group that was a consumer group, and make its members rejoin."""

    def again(self, led: LedGroups, group_id: str, request: Any) -> None:
        """Handle a request that waited for a consumer group, which has become a classic group."""

    def reload(self, led: LedGroups) -> None:
        """Load the partition again, because the groups in memory may differ from the log."""


class ConsumerGroupDriver:
    def __init__(
        self,
        *,
        cache: MetadataCache,
        topic_configs: TopicConfigs,
        clock: Clock,
        log: GroupLog,
        settings: CoordinatorSettings,
        configs: GroupConfigs,
        classic: ClassicSide,
        figures: GroupFigures,
    ) -> None:
        self._cache = cache
        self._topic_configs = topic_configs
        self._clock = clock
        self._log = log
        self._settings = settings
        self._configs = configs
        self._classic = classic
        self._figures = figures

    def heartbeat(self, led: LedGroups, group_id: str, request: ConsumerHeartbeat) -> None:
        """Handle a heartbeat, whose token completes with a :class:`ConsumerAnswer`."""
        group = led.groups.consumer_groups.get(group_id)
        if group is None:
            try:
                group = self._begun(led, group_id, request)
            except OperatingError as e:
                complete(request.token, ConsumerAnswer(code=e.code, message=e.message))
                return
        self.handle(led, group, request)

    def _begun(self, led: LedGroups, group_id: str, request: ConsumerHeartbeat) -> ConsumerGroup:
        """Return a new consumer group, which replaces a classic group of that name.

        :raises OperatingError: the sender does not join, a limit is reached, or the classic group
            cannot be converted.
        """
        groups, facts = led.groups, list[Fact]()
        if request.epoch != JOINING:
            raise OperatingError(
                f"there is no consumer group {group_id}", code=ErrorCode.GROUP_ID_NOT_FOUND
            )
        classic = groups.groups.get(group_id)
        if not groups.admits(
            group_id, self._settings.max_groups_per_partition, self._clock.now_ms()
        ):
            raise OperatingError(
                "there are as many groups as there may be", code=ErrorCode.GROUP_MAX_SIZE_REACHED
            )
        if classic is not None and classic.members:
            members = classic.members.values()
            check_upgrade(classic.protocol_type, len(members), self._settings.consumer)
            topics = ClusterTopics(self._cache.state)
            facts = consumer_facts_of(group_id, classic.generation, members, topics)
        elif classic is not None:
            facts = [GroupFact(group_id, None)]
        if classic is not None:
            self._classic.end_classic(led, classic)
        group = groups.consumer_group(group_id)
        group.follow(facts, self._clock.now_ms())
        groups.recount(group_id)
        return group

    async def delete(self, led: LedGroups, group: ConsumerGroup) -> ErrorCode:
        """Delete a consumer group. Return NONE once that is replicated, NON_EMPTY_GROUP if it has
        members, or the error code of the write.
        """
        token: Completion[DeletionAnswer] = Completion()
        self.handle(led, group, DeletionRequested(token))
        return (await token).code

    def handle(self, led: LedGroups, group: ConsumerGroup, event: ConsumerGroupEvent) -> None:
        group.configure(self._settings_of(group.group_id))
        now_ms = self._clock.now_ms()
        moment = Moment(
            now_ms,
            self._clock.wall_ms(),
            ClusterTopics(self._cache.state),
            self._topic_configs.get(OFFSETS_TOPIC).max_message_bytes,
        )
        actions = group.handle(event, moment)
        led.groups.recount(group.group_id)
        for action in actions:
            match action:
                case Answer(token, answer):
                    complete(token, answer)
                case WriteFacts():
                    self._write(led, group, action)
                case BecameClassic():
                    self._hand_over(led, group, action)
                case _:
                    assert_never(action)
        if led.phase is Phase.ENDED:
            return
        led.set_timer(group, now_ms, partial(self.handle, led, group, TimePassed()))
        if led.groups.forget_unused_consumer(group):
            led.drop_timer(group)
            restored = led.groups.restore(group.group_id, now_ms)
            if restored is not None:
                self._classic.begin_classic(led, restored)

    def _settings_of(self, group_id: str) -> ConsumerGroupSettings:
        """Return the present settings of the group: its own values, else those for all groups."""
        if not self._configs.own(group_id):
            return self._settings.consumer
        said = self._configs.in_force(group_id)
        return replace(
            self._settings.consumer,
            session_timeout_ms=said.consumer_session_timeout_ms,
            heartbeat_interval_ms=said.consumer_heartbeat_interval_ms,
            assignment_interval_ms=said.consumer_assignment_interval_ms,
        )

    def _write(self, led: LedGroups, group: ConsumerGroup, action: WriteFacts) -> None:
        loop = asyncio.get_running_loop()

        def continue_with(written: Written) -> None:
            if led.phase is Phase.ENDED:
                return
            is_replicated = written.code is ErrorCode.NONE
            if not is_replicated and written.may_be_in_log:
                self._classic.reload(led)
                return
            for fact in action.facts if is_replicated else ():
                if isinstance(fact, GroupFact):
                    led.groups.take(fact)
                elif isinstance(fact, EpochFact) and fact.value is not None:
                    self._figures.count_new_assignment()
            self.handle(led, group, FactsWritten(written.code, written.is_too_large))

        def ended(done: Completion[Written]) -> None:
            # In a separate event loop iteration: the group may request another write.
            loop.call_soon(continue_with, done.result())

        self._log.write_records(led, action.records).add_done_callback(ended)

    def _hand_over(self, led: LedGroups, group: ConsumerGroup, action: BecameClassic) -> None:
        group_id = group.group_id
        led.drop_timer(group)
        led.groups.became_classic(group_id, action.group, self._clock.now_ms())
        classic = led.groups.groups.get(group_id)
        if classic is not None:
            self._classic.begin_classic(led, classic)
        for request in action.waiting:
            self._classic.again(led, group_id, request)


def complete(token: object, answer: object) -> None:
    assert isinstance(token, Completion), token
    token.set_result(answer)
