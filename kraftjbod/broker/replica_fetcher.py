"""``ReplicaFetcher``: follows one leader into one local log directory.

One coroutine per (leader, directory), so that a directory that hangs holds up no other:

1. a replica that begins to follow in a new leader epoch asks the leader where its own last epoch
   ended there, and cuts its log at the last point on which both agree (KIP-101, KIP-279);
2. then it joins the fetch session of this loop (KIP-227), in which only what changed is named;
   what comes is appended as it came;
3. a leader that finds a divergence later says so in the fetch itself (KIP-595).

* Nothing is held against a leader that is only new: the first failures wait shortly, and a change
  of what is followed ends every wait.
* One replica's error pauses that replica only.
* After every ``await`` a replica is looked up again; one that was taken away gets nothing more.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from kraftjbod.broker.hosted_replicas import HostedReplica
from kraftjbod.core.errors import (
    ConnectionLostError,
    ErrorCode,
    OperatingError,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId, TopicId, TopicIdPartition, TopicPartition
from kraftjbod.core.telemetry import get_logger
from kraftjbod.core.timing import Clock, ExponentialBackoff
from kraftjbod.metadata.records import Listener
from kraftjbod.net.kafka_client import KafkaConnection
from kraftjbod.protocol.kafka_codec import Message, message
from kraftjbod.storage.log_handle import LogHandle

FetchRequest = message("FetchRequest")
OffsetForLeaderEpochRequest = message("OffsetForLeaderEpochRequest")

_NONE = -1
_SESSION_LOST = frozenset(
    {ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.INVALID_FETCH_SESSION_EPOCH}
)
#: New replicas interrupt a long poll together, not one by one.
_INTERRUPT_AFTER_S = 0.01


class Followed:
    """One replica that this loop fetches, in one leader epoch."""

    __slots__ = ("failures", "handle", "is_aligned", "leader_epoch", "not_before_ms", "replica")

    def __init__(self, replica: HostedReplica) -> None:
        assert replica.partition is not None and replica.handle is not None, replica
        self.replica = replica
        self.handle: LogHandle = replica.handle
        self.leader_epoch = replica.partition.leader_epoch
        #: The log is known to agree with the leader's up to its end.
        self.is_aligned = False
        self.failures = 0
        self.not_before_ms = 0


class FetchLimits:
    """What one loop may ask for."""

    __slots__ = ("max_bytes", "max_partition_bytes", "max_wait_ms", "min_bytes", "timeout_ms")

    def __init__(
        self,
        *,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        max_partition_bytes: int,
        timeout_ms: int,
    ) -> None:
        self.max_wait_ms = max_wait_ms
        self.min_bytes = min_bytes
        self.max_bytes = max_bytes
        self.max_partition_bytes = max_partition_bytes
        self.timeout_ms = timeout_ms


class ReplicaFetcher:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        leader: BrokerId,
        log_dir_path: str,
        endpoint_of: Callable[[BrokerId], Listener | None],
        broker_epoch: Callable[[], BrokerEpoch],
        clock: Clock,
        backoff: ExponentialBackoff,
        limits: FetchLimits,
    ) -> None:
        self._broker_id = broker_id
        self._leader = leader
        self._endpoint_of = endpoint_of
        self._broker_epoch = broker_epoch
        self._clock = clock
        self._backoff = backoff
        self._limits = limits
        self._followed: dict[TopicPartition, Followed] = {}
        #: Those of them that the leader has to be told of: new, or moved since it was told.
        self._untold: dict[TopicPartition, Followed] = {}
        #: What the leader's session holds.
        self._told: dict[TopicIdPartition, Followed] = {}
        #: What it holds and shall forget.
        self._left: set[TopicIdPartition] = set()
        self._session_id = 0
        self._session_epoch = 0
        self._connection: KafkaConnection | None = None
        #: Set when there is something new to fetch.
        self._changed = asyncio.Event()
        self._is_polling = False
        self._is_interrupted = False
        self._log = get_logger(component="replica_fetcher", leader=leader, log_dir=log_dir_path)

    def __repr__(self) -> str:
        return f"<ReplicaFetcher leader={self._leader} replicas={len(self._followed)}>"

    def __len__(self) -> int:
        return len(self._followed)

    # --- what to follow --------------------------------------------------------------------------

    def add(self, replicas: Iterable[HostedReplica]) -> None:
        for replica in replicas:
            self.remove(replica.topic_partition)
            one = Followed(replica)
            self._followed[replica.topic_partition] = one
            self._tell(one)
        self._changed.set()
        if self._is_polling and not self._is_interrupted:
            self._is_interrupted = True
            asyncio.get_running_loop().call_later(_INTERRUPT_AFTER_S, self._interrupt)

    def remove(self, topic_partition: TopicPartition) -> None:
        one = self._followed.pop(topic_partition, None)
        if one is not None:
            self._untold.pop(topic_partition, None)
            self._leave(one)

    def _interrupt(self) -> None:
        """End a long poll that does not know of what is new; its answer would be fetched again."""
        if self._is_polling:
            self._disconnect()
        else:
            self._is_interrupted = False

    # --- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fetch until cancelled."""
        failures = 0
        try:
            while True:
                try:
                    await self._round()
                    failures = 0
                except OperatingError as e:
                    self._disconnect()
                    if self._is_interrupted:
                        self._is_interrupted = False
                        continue
                    failures += 1
                    self._log.warning("replica_fetch_failed", reason=str(e), failures=failures)
                    await self._pause(self._backoff.wait_ms(failures))
        finally:
            self._disconnect()

    async def _round(self) -> None:
        """One fetch of everything that may be fetched now, or a wait for that."""
        self._changed.clear()
        now_ms = self._clock.now_ms()
        due = [one for one in self._untold.values() if one.not_before_ms <= now_ms]
        later = [one.not_before_ms for one in self._untold.values() if one.not_before_ms > now_ms]
        wait_ms = min([self._limits.max_wait_ms, *(at_ms - now_ms for at_ms in later)])
        if not due and not self._told:
            await self._pause(wait_ms)
            return
        connection = await self._connected()
        unaligned = [one for one in due if not one.is_aligned]
        if unaligned:
            await self._align(connection, unaligned)
        ready = [one for one in due if one.is_aligned and self._is_followed(one)]
        if ready or self._told:
            await self._fetch(connection, ready, wait_ms)

    async def _pause(self, wait_ms: int) -> None:
        try:
            async with asyncio.timeout(max(1, wait_ms) / 1000):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _connected(self) -> KafkaConnection:
        if self._connection is None or not self._connection.is_open:
            endpoint = self._endpoint_of(self._leader)
            if endpoint is None:
                raise ConnectionLostError(f"broker {self._leader} is not in the metadata")
            self._connection = await KafkaConnection.connect(
                endpoint.host,
                endpoint.port,
                client_id=f"broker-{self._broker_id}-fetcher",
                timeout_ms=self._limits.timeout_ms,
            )
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._begin_session_anew()

    def _begin_session_anew(self) -> None:
        """Tell the leader everything in the next fetch; it closes the old session then."""
        self._session_epoch = 0
        for one in self._told.values():
            self._tell(one)
        self._told, self._left = {}, set()

    def _tell(self, one: Followed) -> None:
        """Name the replica in the next fetch."""
        if self._is_followed(one):
            self._untold[one.replica.topic_partition] = one

    def _leave(self, one: Followed) -> None:
        """Let the leader forget the replica, unless it is named again first."""
        if self._told.pop(one.replica.key, None) is not None:
            self._left.add(one.replica.key)

    def _is_followed(self, one: Followed) -> bool:
        return self._followed.get(one.replica.topic_partition) is one

    def _delay(self, one: Followed, code: ErrorCode, reason: str) -> None:
        """This replica failed: ask again later, the others go on."""
        self._tell(one)
        self._leave(one)
        one.failures += 1
        one.not_before_ms = self._clock.now_ms() + self._backoff.wait_ms(one.failures)
        self._log.info(
            "replica_fetch_delayed",
            partition=str(one.replica.topic_partition),
            code=code.name,
            reason=reason,
            failures=one.failures,
        )

    # --- alignment -------------------------------------------------------------------------------

    async def _align(self, connection: KafkaConnection, unaligned: Sequence[Followed]) -> None:
        """Cut what the leader does not have, before the first fetch of an epoch."""
        by_topic: dict[str, list[Followed]] = defaultdict(list)
        for one in unaligned:
            by_topic[one.replica.topic_partition.topic].append(one)
        kind = OffsetForLeaderEpochRequest
        request = kind(
            replica_id=self._broker_id,
            topics=[
                kind.OffsetForLeaderTopic(
                    topic=topic,
                    partitions=[
                        kind.OffsetForLeaderPartition(
                            partition=one.replica.topic_partition.partition,
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
        asked = {one.replica.topic_partition: one for one in unaligned}
        cuts = []
        for topic in response.topics:
            for part in topic.partitions:
                followed = asked.get(TopicPartition(topic.topic, part.partition))
                if followed is not None and self._is_followed(followed):
                    cuts.append(self._align_one(followed, part))
        await asyncio.gather(*cuts)

    async def _align_one(self, one: Followed, end: Message) -> None:
        if end.error_code != ErrorCode.NONE:
            self._delay(one, ErrorCode(end.error_code), "where its last epoch ended is not known")
            return
        if end.end_offset == _NONE:
            # The leader knows no epoch that old: only what is committed is sure to be its own.
            assert one.replica.partition is not None, one.replica
            await self._truncate(one, one.replica.partition.high_watermark)
        else:
            await self._truncate_to_epoch(one, end.leader_epoch, end.end_offset)
        one.is_aligned = True

    async def _truncate_to_epoch(self, one: Followed, epoch: int, leader_end: int) -> None:
        """Cut at the last point up to which both logs can agree."""
        own_epoch, own_end = one.handle.end_offset_for_epoch(epoch)
        keep = leader_end if own_epoch == _NONE else min(leader_end, own_end)
        await self._truncate(one, keep)

    async def _truncate(self, one: Followed, offset: int) -> None:
        """Cut the log at ``offset``.

        An append of our own past as leader that is still on its way to the disk comes to light in
        the next fetch: the leader finds the divergence then.
        """
        try:
            end_before = one.handle.log_end_offset
            await one.handle.truncate_to(offset)
        except OperatingError as e:
            self._delay(one, e.code, str(e))
            return
        end = one.handle.log_end_offset
        if end < end_before:
            self._log.info(
                "replica_truncated",
                partition=str(one.replica.topic_partition),
                end_before=end_before,
                end=end,
            )
        self._note_truncated(one)

    def _note_truncated(self, one: Followed) -> None:
        self._tell(one)
        if self._is_followed(one) and one.replica.partition is not None:
            one.replica.partition.truncated(one.handle.log_end_offset)

    # --- fetching --------------------------------------------------------------------------------

    async def _fetch(
        self, connection: KafkaConnection, ready: Sequence[Followed], wait_ms: int
    ) -> None:
        request = self._fetch_request(ready, wait_ms)
        self._is_polling = True
        try:
            response = await connection.request(request, timeout_ms=self._limits.timeout_ms)
        finally:
            self._is_polling = False
        if response.error_code in _SESSION_LOST:
            self._begin_session_anew()
            return
        if response.error_code != ErrorCode.NONE:
            raise OperatingError(
                f"broker {self._leader} refused the fetch", code=ErrorCode(response.error_code)
            )
        self._session_id = response.session_id
        self._session_epoch += 1
        writing = []
        for topic in response.responses:
            for data in topic.partitions:
                key = TopicIdPartition(TopicId(topic.topic_id), data.partition_index)
                followed = self._told.get(key)
                if followed is not None and self._is_followed(followed):
                    step = self._take(followed, data)
                    if step is not None:
                        writing.append(step)
        if writing:
            await asyncio.gather(*writing)

    def _fetch_request(self, ready: Sequence[Followed], wait_ms: int) -> Message:
        """Everything in a new session; else what is new, what moved and what is not followed."""
        naming: dict[TopicId, list[Followed]] = defaultdict(list)
        forgetting: dict[TopicId, list[int]] = defaultdict(list)
        for one in ready:
            naming[one.replica.topic_id].append(one)
            self._told[one.replica.key] = one
            self._left.discard(one.replica.key)
            self._untold.pop(one.replica.topic_partition, None)
        for key in self._left:
            forgetting[key.topic_id].append(key.partition)
        self._left = set()
        request: Message = FetchRequest(
            replica_state=FetchRequest.ReplicaState(
                replica_id=self._broker_id, replica_epoch=self._broker_epoch()
            ),
            max_wait_ms=max(0, wait_ms),
            min_bytes=self._limits.min_bytes,
            max_bytes=self._limits.max_bytes,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            topics=[
                FetchRequest.FetchTopic(
                    topic_id=topic_id, partitions=[self._fetch_partition(one) for one in followed]
                )
                for topic_id, followed in naming.items()
            ],
            forgotten_topics_data=[
                FetchRequest.ForgottenTopic(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in forgetting.items()
            ],
        )
        return request

    def _fetch_partition(self, one: Followed) -> Message:
        partition: Message = FetchRequest.FetchPartition(
            partition=one.replica.topic_partition.partition,
            current_leader_epoch=one.leader_epoch,
            fetch_offset=one.handle.log_end_offset,
            last_fetched_epoch=one.handle.latest_epoch,
            log_start_offset=one.handle.log_start_offset,
            partition_max_bytes=self._limits.max_partition_bytes,
        )
        return partition

    def _take(self, one: Followed, data: Message) -> asyncio.Future[None] | None:
        """Begin what one partition's answer asks for; None if that is done already."""
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return asyncio.ensure_future(self._start_anew(one, data.log_start_offset))
        if data.error_code != ErrorCode.NONE:
            self._delay(one, ErrorCode(data.error_code), "the leader refused")
            return None
        one.failures = 0
        diverging = data.diverging_epoch
        if diverging is not None and diverging.end_offset != _NONE:
            return asyncio.ensure_future(
                self._truncate_to_epoch(one, diverging.epoch, diverging.end_offset)
            )
        if data.records:
            return asyncio.ensure_future(self._append(one, data))
        self._note_fetched(one, data.high_watermark)
        return None

    async def _append(self, one: Followed, data: Message) -> None:
        try:
            await one.handle.append_as_follower(data.records)
        except OperatingError as e:
            if not one.handle.log_dir.is_online:
                # Whoever handles that takes this replica away.
                self.remove(one.replica.topic_partition)
                return
            one.is_aligned = False
            self._delay(one, e.code, str(e))
            return
        if self._is_followed(one):
            self._tell(one)
            self._note_fetched(one, data.high_watermark)

    def _note_fetched(self, one: Followed, leader_high_watermark: int) -> None:
        partition = one.replica.partition
        if partition is None:
            return
        has_committed = partition.fetched_from_leader(
            leader_high_watermark=leader_high_watermark,
            log_end_offset=one.handle.log_end_offset,
        )
        if has_committed:
            one.handle.high_watermark = partition.high_watermark

    async def _start_anew(self, one: Followed, leader_log_start: int) -> None:
        """The leader has nothing left of where we are: begin where its log begins."""
        self._log.warning(
            "replica_starts_anew",
            partition=str(one.replica.topic_partition),
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
