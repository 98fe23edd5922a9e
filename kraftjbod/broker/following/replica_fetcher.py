"""LOOP. ``ReplicaFetcher``: replicates from one leader into one local log directory.

Each (leader, directory) has one coroutine, so that a hung directory blocks no other:

1. A replica that begins to follow in a new leader epoch truncates its log before any damage. It
asks the leader for the end offset of its own last epoch, and truncates to the last point at which
both logs agree (KIP-101, KIP-279). 2. Then it joins the incremental fetch session of this loop
(KIP-227) and appends the batches that it receives unchanged. 3. A leader that finds a divergence
later reports it in the fetch response (KIP-595).

* A leader that has just been elected may not be ready: the first retries wait only shortly, and a
  change of the followed replicas ends every wait.
* An error or a throttle (KIP-73) pauses one replica only. The pause grows until a response was used
  completely: a response that cannot be appended counts as a failure.
* After every ``await`` a replica is looked up again. A removed replica gets no more appends.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kraftjbod.broker.cluster.broker_connector import BrokerConnector
from kraftjbod.broker.following.follower_session import FetchLimits, Followed, FollowerSession
from kraftjbod.broker.following.replication_quotas import FetchTurns, ReplicationQuota
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core import buggify
from kraftjbod.core.errors import (
    ErrorCode,
    OperatingError,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId, TopicId, TopicIdPartition, TopicPartition
from kraftjbod.core.loop.outage import Outage
from kraftjbod.core.loop.timing import Clock, ExponentialBackoff
from kraftjbod.core.telemetry import get_logger
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.messages import (
    FetchResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)

_NONE = -1
_SESSION_LOST = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)
#: New replicas interrupt a long poll together, not one at a time.
_INTERRUPT_AFTER_S = 0.01


class ReplicaFetcher:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        leader: BrokerId,
        log_dir_path: str,
        connector: BrokerConnector,
        broker_epoch: Callable[[], BrokerEpoch],
        clock: Clock,
        backoff: ExponentialBackoff,
        limits: FetchLimits,
        quota: ReplicationQuota,
        damage_met: Callable[[HostedReplica], object],
        committed: Callable[[HostedReplica], None],
    ) -> None:
        """Create a fetch loop.

        :param damage_met: called with a replica whose log is damaged while the ISR still counts on
            it.
        :param committed: called with each replica whose high watermark has moved.
        """
        self._broker_id = broker_id
        self._leader = leader
        self._connector = connector
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._backoff = backoff
        self._limits = limits
        self._quota = quota
        self._damage_met = damage_met
        self._committed = committed
        self._session = FollowerSession(broker_id=broker_id, limits=limits)
        self._turns = FetchTurns(
            quota, max_turns=max(1, limits.max_bytes // limits.max_partition_bytes)
        )
        self._connection: KafkaConnection | None = None
        #: Failures of the leader.
        self._outage = Outage()
        #: Set when there is something new to fetch.
        self._changed = asyncio.Event()
        self._is_polling = False
        self._is_interrupted = False
        self._log = get_logger(component="replica_fetcher", leader=leader, log_dir=log_dir_path)

    def __repr__(self) -> str:
        return f"<ReplicaFetcher leader={self._leader} replicas={len(self._session)}>"

    def __len__(self) -> int:
        return len(self._session)

    # --- followed replicas -----------------------------------------------------------------------

    def add(self, replicas: Iterable[HostedReplica]) -> None:
        for replica in replicas:
            self._turns.end_turn(replica.topic_partition)
            self._session.follow(replica)
        self._changed.set()
        if self._is_polling and not self._is_interrupted:
            self._is_interrupted = True
            asyncio.get_running_loop().call_later(_INTERRUPT_AFTER_S, self._interrupt)

    def remove(self, topic_partition: TopicPartition) -> None:
        self._turns.end_turn(topic_partition)
        self._session.drop(topic_partition)

    def _interrupt(self) -> None:
        """End a long poll that does not name the new replicas. Later fetches get its records."""
        if self._is_polling:
            self._disconnect()
        else:
            self._is_interrupted = False

    # --- the loop --------------------------------------------------------------------------------

    async def run_fetcher(self) -> None:
        """Fetch the added replicas from the leader until cancelled. Failures are retried with
        pauses."""
        try:
            while True:
                try:
                    if await self._round():
                        self._note_answer()
                except OperatingError as e:
                    self._disconnect()
                    if self._is_interrupted:
                        self._is_interrupted = False
                        continue
                    self._note_failure(e)
                    await self._pause(self._backoff.wait_ms(self._outage.failures))
        finally:
            self._disconnect()

    def _note_failure(self, error: OperatingError) -> None:
        if self._outage.failed(self._clock.now_ms()):
            failures = self._outage.failures
            self._log.warning("replica_fetch_failed", reason=str(error), failures=failures)

    def _note_answer(self) -> None:
        lasted_ms = self._outage.ended(self._clock.now_ms())
        if lasted_ms is not None:
            self._log.info("replica_fetch_resumed", lasted_ms=lasted_ms)

    async def _round(self) -> bool:
        """Fetch all replicas that may be fetched now, or wait until some may be.

        :return: whether a request was sent.
        :raises OperatingError: the leader could not be reached or refused.
        """
        self._changed.clear()
        now_ms = self._clock.now_ms()
        unreported = self._session.unreported
        later = [one.not_before_ms for one in unreported if one.not_before_ms > now_ms]
        wait_ms = min([self._limits.max_wait_ms, *(at_ms - now_ms for at_ms in later)])
        asking = [one for one in unreported if one.not_before_ms <= now_ms]
        due = self._admit(asking, now_ms)
        if len(due) < len(asking):
            wait_ms = min(wait_ms, self._quota.wait_ms(now_ms) or wait_ms)
        if not due and not self._session.has_reported:
            await self._pause(wait_ms)
            return False
        connection = await self._connected()
        unaligned = [one for one in due if not one.is_aligned]
        await asyncio.gather(*map(self._truncate_damage, unaligned))
        unaligned = [one for one in unaligned if one.handle.damaged_from is None]
        if unaligned:
            await self._align(connection, unaligned)
        ready = [one for one in due if one.is_aligned and self._session.is_followed(one)]
        if ready or self._session.has_reported:
            await self._fetch(connection, ready, wait_ms)
        return True

    def _admit(self, asking: Sequence[Followed], now_ms: int) -> list[Followed]:
        """Return the replicas of ``asking`` that no throttle delays.

        The others leave the session until the throttle admits them.
        """
        if self._quota.wait_ms(now_ms) > 0:
            for topic_partition in self._turns.end_all():
                one = self._session.get(topic_partition)
                if one is not None and self._may_be_held_up(one):
                    self._session.leave(one)
                    self._session.name(one)
        admitted = []
        for one in asking:
            if not self._may_be_held_up(one) or self._turns.begin_turn(one.topic_partition, now_ms):
                admitted.append(one)
            else:
                self._session.leave(one)
        return admitted

    def _may_be_held_up(self, one: Followed) -> bool:
        """Return whether a throttle may delay the replica; False for in-sync replicas
        (replication_quotas.py)."""
        return (
            not one.has_caught_up
            and self._quota.is_throttled(one.topic_partition)
            and one.replica.partition is not None
            and self._broker_id not in one.replica.partition.isr
        )

    async def _pause(self, wait_ms: int) -> None:
        try:
            async with asyncio.timeout(max(1, wait_ms) / 1000):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _connected(self) -> KafkaConnection:
        if self._connection is None or not self._connection.is_open:
            self._connection = await self._connector.connect(
                self._leader, purpose="fetcher", timeout_ms=self._limits.timeout_ms
            )
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._session.restart_session()

    def _delay(self, one: Followed, code: ErrorCode, reason: str) -> None:
        """Pause this replica after a failure, without pausing others. The pause grows with the
        failures."""
        self._turns.end_turn(one.topic_partition)
        self._session.name(one)
        self._session.leave(one)
        one.failures += 1
        one.not_before_ms = self._clock.now_ms() + self._backoff.wait_ms(one.failures)
        self._log.info(
            "replica_fetch_delayed",
            partition=str(one.topic_partition),
            code=code.name,
            reason=reason,
            failures=one.failures,
        )

    # --- alignment -------------------------------------------------------------------------------

    async def _align(self, connection: KafkaConnection, unaligned: Sequence[Followed]) -> None:
        """Truncate records that the leader does not have, before the first fetch in its epoch."""
        by_topic: dict[str, list[Followed]] = defaultdict(list)
        for one in unaligned:
            by_topic[one.topic_partition.topic].append(one)
        kind = OffsetForLeaderEpochRequest
        request = kind(
            replica_id=self._broker_id,
            topics=[
                kind.OffsetForLeaderTopic(
                    topic=topic,
                    partitions=[
                        kind.OffsetForLeaderPartition(
                            partition=one.topic_partition.partition,
                            current_leader_epoch=one.leader_epoch,
                            leader_epoch=one.handle.latest_epoch,
                        )
                        for one in followed
                    ],
                )
                for topic, followed in by_topic.items()
            ],
        )
        response = await connection.request(request, timeout_ms=self._limits.timeout_ms)
        asked = {one.topic_partition: one for one in unaligned}
        truncations = []
        for topic in response.topics:
            for part in topic.partitions:
                followed = asked.get(TopicPartition(topic.topic, part.partition))
                if followed is not None and self._session.is_followed(followed):
                    truncations.append(self._align_one(followed, part))
        await asyncio.gather(*truncations)

    async def _truncate_damage(self, one: Followed) -> None:
        """Truncate a damaged log before the damage, unless the replica still counts as in sync.

        In that case ``damage_met`` is called, and the replica is tried again later.
        """
        offset = one.handle.damaged_from
        if offset is None:
            return
        partition = one.replica.partition
        if partition is not None and partition.is_counted:
            self._damage_met(one.replica)
            self._delay(one, ErrorCode.CORRUPT_MESSAGE, "it is damaged, and in sync still")
        else:
            await self._truncate(one, offset)

    async def _align_one(
        self, one: Followed, end: OffsetForLeaderEpochResponse.EpochEndOffset
    ) -> None:
        if end.error_code != ErrorCode.NONE:
            self._delay(one, ErrorCode(end.error_code), "where its last epoch ended is not known")
            return
        if end.end_offset == _NONE:
            # The leader has no epoch that old: only committed records are certain to match.
            assert one.replica.partition is not None, one.replica
            truncated = self._truncate(one, one.replica.partition.high_watermark)
        else:
            truncated = self._truncate_to_epoch(one, end.leader_epoch, end.end_offset)
        one.is_aligned = await truncated

    async def _truncate_to_epoch(self, one: Followed, epoch: int, leader_end: int) -> bool:
        """Truncate the log to the last offset up to which it can agree with the leader's log.

        :param epoch: the latest epoch that both logs may have, according to the leader.
        :param leader_end: end offset of that epoch in the leader's log.
        :return: as :meth:`_truncate`.
        """
        own_epoch, own_end = one.handle.end_offset_for_epoch(epoch)
        keep = leader_end if own_epoch == _NONE else min(leader_end, own_end)
        return await self._truncate(one, keep)

    async def _truncate(self, one: Followed, offset: int) -> bool:
        """Truncate the log at ``offset``; return whether that worked.

        False also if the replica was no longer followed, and may lead now. An append that this
        broker made as leader may still be queued for the disk. The leader finds that divergence in
        the next fetch.
        """
        if not self._session.is_followed(one):
            return False  # It may have become leader since.
        try:
            end_before = one.handle.log_end_offset
            await one.handle.truncate_to(offset)
        except OperatingError as e:
            self._delay(one, e.code, str(e))
            return False
        end = one.handle.log_end_offset
        if end < end_before:
            self._log.info(
                "replica_truncated",
                partition=str(one.topic_partition),
                end_before=end_before,
                end=end,
            )
        self._note_truncated(one)
        return True

    def _note_truncated(self, one: Followed) -> None:
        self._session.name(one)
        if self._session.is_followed(one) and one.replica.partition is not None:
            one.replica.partition.truncated(one.handle.log_end_offset)

    # --- fetching --------------------------------------------------------------------------------

    async def _fetch(
        self, connection: KafkaConnection, ready: Sequence[Followed], wait_ms: int
    ) -> None:
        request = self._session.request(ready, broker_epoch=self._broker_epoch(), wait_ms=wait_ms)
        self._is_polling = True
        try:
            response = await connection.request(request, timeout_ms=self._limits.timeout_ms)
        finally:
            self._is_polling = False
        if response.error_code in _SESSION_LOST or (
            buggify.is_on and buggify.fires("broker.fetch_session_lost")
        ):
            self._session.restart_session()
            return
        if response.error_code != ErrorCode.NONE:
            code = ErrorCode(response.error_code)
            raise OperatingError(f"broker {self._leader} refused the fetch: {code.name}", code=code)
        self._session.was_answered(response.session_id)
        writing = []
        for topic in response.responses:
            for data in topic.partitions:
                key = TopicIdPartition(TopicId(topic.topic_id), data.partition_index)
                followed = self._session.named(key)
                if followed is not None:
                    step = self._take(followed, data)
                    if step is not None:
                        writing.append(step)
        if writing:
            await asyncio.gather(*writing)

    def _take(self, one: Followed, data: FetchResponse.PartitionData) -> asyncio.Future[Any] | None:
        """Start the disk operation that one partition's response requires and return it; None if
        none."""
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return asyncio.ensure_future(self._restart_log(one, data.log_start_offset))
        if data.error_code != ErrorCode.NONE:
            self._delay(one, ErrorCode(data.error_code), "the leader refused")
            return None
        diverging = data.diverging_epoch
        if diverging is not None and diverging.end_offset != _NONE:
            return asyncio.ensure_future(
                self._truncate_to_epoch(one, diverging.epoch, diverging.end_offset)
            )
        if data.records:
            return asyncio.ensure_future(self._append(one, data, data.records))
        self._note_fetched(one, data.high_watermark)
        if data.log_start_offset > one.handle.durable_log_start:
            return asyncio.ensure_future(self._follow_start(one, data.log_start_offset))
        one.failures = 0
        return None

    async def _append(
        self, one: Followed, data: FetchResponse.PartitionData, records: Buffer
    ) -> None:
        if not self._session.is_followed(one):
            return
        try:
            await one.handle.append_as_follower(records, may_have_gaps=data.may_have_gaps)
        except OperatingError as e:
            if not one.handle.log_dir.is_online:
                # The handler of the failed directory removes this replica.
                self.remove(one.topic_partition)
                return
            one.is_aligned = False
            self._delay(one, e.code, str(e))
            return
        one.replica.count_appended(len(records))
        if self._quota.is_throttled(one.topic_partition):
            self._quota.spend(len(records), self._clock.now_ms())
        self._turns.end_turn(one.topic_partition)
        if self._session.is_followed(one):
            self._session.name_last(one)
            self._note_fetched(one, data.high_watermark)
            if data.log_start_offset > one.handle.durable_log_start:
                await self._follow_start(one, data.log_start_offset)
            else:
                one.failures = 0

    async def _follow_start(self, one: Followed, leader_log_start: int) -> None:
        """Advance the log start to the leader's (KIP-107), at most to the local high watermark."""
        try:
            await one.handle.start_at(min(leader_log_start, one.handle.high_watermark))
            await one.handle.keep_log_start()
        except OperatingError as e:
            self._delay(one, e.code, str(e))
            return
        one.failures = 0
        self._session.name(one)

    def _note_fetched(self, one: Followed, leader_high_watermark: int) -> None:
        if one.replica.partition is None:
            return
        one.has_caught_up = one.handle.log_end_offset >= leader_high_watermark
        if one.has_caught_up:
            self._turns.end_turn(one.topic_partition)
        self._note_committed(one, leader_high_watermark)

    def _note_committed(self, one: Followed, leader_high_watermark: int) -> None:
        partition = one.replica.partition
        if partition is not None and partition.fetched_from_leader(
            leader_high_watermark=leader_high_watermark,
            log_end_offset=one.handle.log_end_offset,
        ):
            one.handle.high_watermark = partition.high_watermark
            self._committed(one.replica)

    async def _restart_log(self, one: Followed, leader_log_start: int) -> None:
        """Empty the log and start it at the leader's log start, because the leader lacks the next
        offset."""
        if not self._session.is_followed(one):
            return
        self._log.warning(
            "replica_log_restarted",
            partition=str(one.topic_partition),
            end=one.handle.log_end_offset,
            leader_log_start=leader_log_start,
        )
        if leader_log_start == _NONE:
            self._delay(one, ErrorCode.OFFSET_OUT_OF_RANGE, "the leader's log start is not known")
            return
        try:
            await one.handle.truncate_fully_and_start_at(leader_log_start)
        except OperatingError as e:
            self._delay(one, e.code, str(e))
            return
        self._note_truncated(one)
        if self._session.is_followed(one):
            # Records below the leader's log start were committed. Without this, the next alignment
            # would go below it.
            self._note_committed(one, leader_log_start)
