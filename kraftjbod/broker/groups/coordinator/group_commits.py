"""LOOP. ``GroupCommits``: appends the offset commits of groups at their coordinator.

An offset takes effect when it is replicated, or when its transaction is committed. The sender's
membership is checked in the event loop iteration of the append.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.groups.classic.group_events import GroupState
from kraftjbod.broker.groups.consumer.consumer_group_events import Commit
from kraftjbod.broker.groups.consumer.group_topics import ClusterTopics
from kraftjbod.broker.groups.coordinator.group_coordinator import GroupCoordinator
from kraftjbod.broker.groups.coordinator.group_log import GroupLog
from kraftjbod.broker.groups.coordinator.led_groups import CoordinatorSettings, LedGroups
from kraftjbod.broker.groups.records.group_records import (
    CommittedOffset,
    OffsetFact,
    record_of,
)
from kraftjbod.broker.replicas.pending_append import TransactionClaim
from kraftjbod.core.errors import ErrorCode, LocalProtocolError
from kraftjbod.core.ids import TopicIdPartition, TopicPartition
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.loop.work_slices import in_slices


class Committer(NamedTuple):
    """The identity that the sender of an offset commit claims.

    ``generation`` is the generation of a classic group, or the member epoch of a consumer group.
    """

    member_id: str
    instance_id: str | None
    generation: int
    knows_epochs: bool = True


class GroupCommits:
    def __init__(
        self,
        *,
        coordinator: GroupCoordinator,
        cache: MetadataCache,
        log: GroupLog,
        clock: Clock,
        settings: CoordinatorSettings,
    ) -> None:
        self._coordinator = coordinator
        self._cache = cache
        self._log = log
        self._clock = clock
        self._settings = settings

    async def commit(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        committer: Committer,
        *,
        absent_code: ErrorCode,
    ) -> ErrorCode:
        """Commit all of ``offsets`` or none. Return NONE once they are replicated, else the error
        code. After an error of the write they may still be committed.

        :param absent_code: the code if the sender claims a generation of a group that does not
            exist.
        :raises OperatingError: this broker does not coordinate the group, or is still loading it.
        """
        self._coordinator.led_of(group_id)
        facts = [OffsetFact(group_id, tp, one) for tp, one in offsets.items()]
        wall_ms = self._clock.wall_ms()
        try:
            records = [record_of(fact, wall_ms) async for fact in in_slices(facts)]
        except LocalProtocolError:
            return ErrorCode.INVALID_REQUEST
        # No ``await`` from here to the append, so the check still holds at the write.
        led = self._coordinator.led_of(group_id)
        code = self._check(led, group_id, offsets, committer)
        if code is None:
            code = ErrorCode.NONE
            if committer.generation >= 0:
                code = absent_code
            elif not led.groups.admits(
                group_id, self._settings.max_groups_per_partition, self._clock.now_ms()
            ):
                code = ErrorCode.GROUP_MAX_SIZE_REACHED
        if code is not ErrorCode.NONE:
            return code
        with led.groups.committing(group_id):
            return self._counted(len(facts), await self._log.write_encoded(led, facts, records))

    async def commit_in_transaction(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        committer: Committer,
        *,
        producer: tuple[int, int],
        claim: TransactionClaim,
    ) -> ErrorCode:
        """Append ``offsets`` as a part of the producer's transaction. Return NONE once they are
        replicated, else the error code.

        The offsets take effect when that transaction is committed.

        :param producer: producer id and epoch.
        :param claim: the transaction.
        :raises OperatingError: as :meth:`commit`.
        """
        facts = [OffsetFact(group_id, tp, one) for tp, one in offsets.items()]
        wall_ms = self._clock.wall_ms()
        try:
            records = [record_of(fact, wall_ms) async for fact in in_slices(facts)]
        except LocalProtocolError:
            return ErrorCode.INVALID_REQUEST
        led = self._coordinator.led_of(group_id)

        def check() -> ErrorCode:
            code = self._check(led, group_id, offsets, committer, in_transaction=True)
            is_member = committer.generation >= 0
            absent = ErrorCode.ILLEGAL_GENERATION if is_member else ErrorCode.NONE
            return absent if code is None else code

        code = check()
        if code is not ErrorCode.NONE:
            return code
        if not led.groups.admits(
            group_id, self._settings.max_groups_per_partition, self._clock.now_ms()
        ):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        # Fetches of stable offsets must wait from now on: the write can happen at any time.
        led.groups.pending.arrives(group_id, offsets)
        # The transaction coordinator is asked meanwhile, and membership may change.
        claim = claim._replace(still_holds=check)
        try:
            code = await self._log.write_encoded(led, facts, records, producer, claim)
            return self._counted(len(facts), code)
        finally:
            led.groups.pending.arrived(group_id, offsets)

    def _counted(self, offsets: int, code: ErrorCode) -> ErrorCode:
        self._coordinator.figures.committed(offsets if code is ErrorCode.NONE else 0)
        return code

    def _check(
        self,
        led: LedGroups,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        committer: Committer,
        *,
        in_transaction: bool = False,
    ) -> ErrorCode | None:
        """Return the group's verdict on the sender; None if the group does not exist."""
        member_id, instance_id, generation, knows_epochs = committer
        classic = led.groups.groups.get(group_id)
        if classic is not None:
            return classic.check_commit(
                member_id,
                instance_id,
                generation,
                self._clock.now_ms(),
                in_transaction=in_transaction,
            )
        consumer = led.groups.consumer_groups.get(group_id)
        if consumer is None:
            # A group with offsets only has no members, and accepts commits without a generation.
            is_known = led.groups.state_of(group_id) is GroupState.EMPTY
            return ErrorCode.UNKNOWN_MEMBER_ID if is_known and generation >= 0 else None
        topics = ClusterTopics(self._cache.state)
        found = ((topics.topic(topic), index) for topic, index in offsets)
        return consumer.check_commit(
            Commit(
                member_id=member_id,
                epoch=generation,
                partitions=frozenset(
                    TopicIdPartition(topic.topic_id, index)
                    for topic, index in found
                    if topic is not None
                ),
                knows_epochs=knows_epochs,
                in_transaction=in_transaction,
            )
        )
