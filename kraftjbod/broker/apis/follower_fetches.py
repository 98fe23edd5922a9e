"""LOOP. Fetches of followers, answered from fetch sessions, so that an idle replica costs nothing.

A fetch updates its session and reads the changed partitions. It waits if they have too few bytes,
and answers changes: records, an error, a divergence, or only a new high watermark. An error of a
partition is reported once; the follower removes the partition and names it later. While the quota
is overdrawn (KIP-73), records of a throttled partition are left out, but its other changes are
reported.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.following.replication_quotas import ReplicationQuota
from kraftjbod.broker.partitions.fetch_sessions import (
    FetchFrom,
    FetchSession,
    FetchSessions,
    Follower,
    SessionPart,
)
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.broker.replicas.replica_reads import FetchedData, ReplicaReads
from kraftjbod.core import buggify
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import (
    NO_LEADER,
    BrokerEpoch,
    BrokerId,
    TopicId,
    TopicIdPartition,
    TopicPartition,
)
from kraftjbod.core.loop.timing import Clock
from kraftjbod.protocol.messages import FetchRequest, FetchResponse

_Answers = dict[TopicIdPartition, FetchedData]


class FollowerFetches:
    def __init__(
        self,
        *,
        sessions: FetchSessions,
        replicas: HostedReplicas,
        reads: ReplicaReads,
        cache: MetadataCache,
        clock: Clock,
        max_fetch_bytes: int,
        suspect_after_ms: int,
        quota: ReplicationQuota,
    ) -> None:
        self._sessions = sessions
        self._replicas = replicas
        self._reads = reads
        self._cache = cache
        self._clock = clock
        self._max_fetch_bytes = max_fetch_bytes
        self._suspect_after_s = suspect_after_ms / 1000
        self._quota = quota

    async def fetch(self, request: FetchRequest) -> FetchResponse:
        try:
            session = self._session_of(request)
        except OperatingError as e:
            return FetchResponse(error_code=e.code)
        proven = session.speaker.spoke()
        try:
            named = self._update(session, request)
        except OperatingError as e:
            self._unwatch(self._sessions.close(session.session_id))
            return FetchResponse(error_code=e.code)
        for key in proven:
            if key in session.parts and key not in named:
                # The report in an earlier request of this session did not count, and now it does.
                named[key] = None
                session.noted(key)
        answers = await self._fill(session, request, named)
        self._count(session, answers)
        session.speaker.answered_at = self._replicas.moments.next()
        return FetchResponse(session_id=session.session_id, responses=_topics(session, answers))

    # --- the session -----------------------------------------------------------------------------

    def _session_of(self, request: FetchRequest) -> FetchSession:
        if request.session_epoch > 0:
            session = self._sessions.take(request.session_id, request.session_epoch)
            if session.follower != self.follower_of(request):
                self._unwatch(self._sessions.close(session.session_id))
                raise OperatingError("", code=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
            return session
        self._unwatch(self._sessions.close(request.session_id))
        opened, gone = self._sessions.open(self.follower_of(request))
        for session in gone:
            self._unwatch(session)
        return opened

    def follower_of(self, request: FetchRequest) -> Follower | None:
        """Return the broker that sent the request, with its epoch; None if the metadata here has no
        broker with this id and epoch.
        """
        state = request.replica_state
        assert state is not None, "no follower asks"
        follower = Follower(BrokerId(state.replica_id), BrokerEpoch(state.replica_epoch))
        known = self._cache.state.brokers.get(follower.broker_id)
        return follower if known is not None and known.epoch == follower.epoch else None

    def _update(self, session: FetchSession, request: FetchRequest) -> dict[TopicIdPartition, None]:
        """Apply the request to the session. Return the keys of the partitions that it names."""
        state = request.replica_state
        assert state is not None, "no follower asks"
        replica_id, replica_epoch = BrokerId(state.replica_id), BrokerEpoch(state.replica_epoch)
        named: dict[TopicIdPartition, None] = {}
        for topic in request.topics:
            topic_id = TopicId(topic.topic_id)
            known = self._cache.state.topics.get(topic_id)
            for part in topic.partitions:
                key = TopicIdPartition(topic_id, part.partition)
                named[key] = None
                wanted = FetchFrom(
                    TopicPartition("" if known is None else known.name, part.partition),
                    part.fetch_offset,
                    part.partition_max_bytes,
                    part.current_leader_epoch,
                    part.last_fetched_epoch,
                    replica_id,
                    replica_epoch,
                    part.log_start_offset,
                    session.speaker,
                )
                self._follow(session, key, wanted)
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                self._forget(session, TopicIdPartition(TopicId(forgotten.topic_id), index))
        return named

    def _follow(self, session: FetchSession, key: TopicIdPartition, wanted: FetchFrom) -> None:
        session.follow(key, wanted)
        replica = self._replicas.get(wanted.topic_partition)
        if replica is not None and replica.topic_id == key.topic_id:
            replica.watchers[session] = None

    def _forget(self, session: FetchSession, key: TopicIdPartition) -> None:
        part = session.parts.pop(key, None)
        session.news.pop(key, None)
        if part is not None:
            replica = self._replicas.get(part.wanted.topic_partition)
            if replica is not None:
                replica.watchers.pop(session, None)
                if replica.partition is not None:
                    replica.partition.follower_left(part.wanted.replica_id, session.speaker)

    def _unwatch(self, session: FetchSession | None) -> None:
        if session is not None:
            for key in list(session.parts):
                self._forget(session, key)

    # --- the answer ------------------------------------------------------------------------------

    async def _fill(
        self, session: FetchSession, request: FetchRequest, named: Collection[TopicIdPartition]
    ) -> _Answers:
        """Return the changes to report, after a wait if they have fewer than ``min_bytes``."""
        deadline_ms = self._clock.now_ms() + max(0, request.max_wait_ms)
        max_bytes = min(request.max_bytes, self._max_fetch_bytes)
        if buggify.is_on and buggify.fires("broker.small_follower_fetch"):
            max_bytes = min(max_bytes, 1)
        min_bytes = min(request.min_bytes, max_bytes)
        answers: _Answers = {}
        while True:
            # An earlier result stays valid unless its partition has changed.
            news = session.take_news()
            for key in news:
                answers.pop(key, None)
            left_bytes = max_bytes - _size_of(answers)
            has_found = left_bytes < max_bytes
            read = self._read(session, news, left_bytes, named, has_found=has_found)
            answers |= read
            found_bytes = _size_of(answers)
            on_disk = [key for key, data in answers.items() if not data.is_in_memory]
            if on_disk:
                await self._read_from_disk(session, on_disk, answers, max_bytes - found_bytes)
                break
            is_urgent = any(self._is_urgent(session.parts[key], data) for key, data in read.items())
            is_full = any(data.is_left_out and not data.is_held_up for data in read.values())
            remaining_ms = deadline_ms - self._clock.now_ms()
            if found_bytes >= min_bytes or is_full or is_urgent or remaining_ms <= 0:
                break
            if session.speaker.unheard:
                break  # Even an empty response lets the next request confirm its reports.
            if any(data.is_held_up for data in read.values()):
                remaining_ms = min(remaining_ms, max(1, self._quota.wait_ms(self._clock.now_ms())))
            await session.wait(min_bytes - found_bytes, remaining_ms)
            named = ()
        return {key: data for key, data in answers.items() if _settle(session, key, data)}

    def _read(
        self,
        session: FetchSession,
        news: Collection[TopicIdPartition],
        left_bytes: int,
        named: Collection[TopicIdPartition],
        *,
        has_found: bool,
    ) -> _Answers:
        """Return the results of the changed partitions, up to ``left_bytes`` of records.

        If no records were found before, the first partition with records gets at least one batch.
        """
        answers: _Answers = {}
        is_overdrawn = self._quota.wait_ms(self._clock.now_ms()) > 0
        for key in news:
            wanted = session.parts[key].wanted
            replica = self._replicas.get(wanted.topic_partition)
            if replica is None or replica.topic_id != key.topic_id:
                answers[key] = FetchedData(ErrorCode.UNKNOWN_TOPIC_ID)
                continue
            is_held_up = is_overdrawn and self._may_be_held_up(wanted, replica)
            max_bytes = 0 if is_held_up else max(0, min(wanted.max_bytes, left_bytes))
            data = self._reads.read(
                wanted._replace(max_bytes=max_bytes),
                min_one_batch=not (has_found or is_held_up),
                is_first_read=key in named,
            )
            if _is_empty_result(data) and wanted.fetch_offset < _end_of(replica):
                data = data._replace(is_left_out=True, is_held_up=is_held_up)
                if is_held_up:
                    # Read it again as soon as the quota allows.
                    session.noted(key)
            answers[key] = data
            left_bytes -= len(data.records)
            has_found = has_found or len(data.records) > 0
        return answers

    async def _read_from_disk(
        self,
        session: FetchSession,
        on_disk: Collection[TopicIdPartition],
        answers: _Answers,
        left_bytes: int,
    ) -> None:
        """Read each partition of ``on_disk`` in its directory's thread and put the results in
        ``answers``.

        A read is late when its directory becomes suspect. A late partition counts as changed for
        the next fetch. That fetch skips a directory whose operation still runs, so that a hung
        directory delays other directories only once.
        """
        patience_s: dict[TopicIdPartition, float] = {}
        min_one_batch = not _size_of(answers)
        reading: dict[TopicIdPartition, asyncio.Future[FetchedData]] = {}
        for key in on_disk:
            wanted = session.parts[key].wanted
            max_bytes = max(0, min(wanted.max_bytes, left_bytes))
            patience_s[key] = self._patience_s(wanted)
            if patience_s[key] <= 0 or (max_bytes == 0 and not min_one_batch):
                answers[key] = answers[key]._replace(is_left_out=True)
                continue
            # The size is known only after the read, so the maximum is reserved.
            left_bytes -= max_bytes
            reading[key] = asyncio.ensure_future(
                self._reads.read_from_disk(
                    wanted._replace(max_bytes=max_bytes), min_one_batch=min_one_batch
                )
            )
            min_one_batch = False
        if reading:
            await asyncio.wait(reading.values(), timeout=max(patience_s[key] for key in reading))
        for key, read in reading.items():
            if read.done():
                data = read.result()
                answers[key] = data._replace(is_left_out=_is_empty_result(data))
            else:
                read.cancel()
                answers[key] = answers[key]._replace(is_left_out=True)

    def _is_urgent(self, part: SessionPart, data: FetchedData) -> bool:
        """Return whether the fetch is to be answered without a wait for records.

        Deletions wait for followers' log starts (KIP-107), and consumers that read a follower wait
        for the high watermark (KIP-392).
        """
        sends_high_watermark = self._replicas.lets_followers_serve
        return (
            data.code is not ErrorCode.NONE
            or data.diverging is not None
            or part.wanted.log_start_offset
            < data.log_start_offset
            != part.reported_log_start_offset
            or (sends_high_watermark and data.high_watermark != part.reported_high_watermark)
        )

    def _patience_s(self, wanted: FetchFrom) -> float:
        """Return the seconds until the replica's directory becomes suspect; negative if it is."""
        replica = self._replicas.get(wanted.topic_partition)
        if replica is None or replica.handle is None:
            return self._suspect_after_s
        return self._suspect_after_s - replica.handle.log_dir.running_ms / 1000

    # --- the throttle ----------------------------------------------------------------------------

    def _may_be_held_up(self, wanted: FetchFrom, replica: HostedReplica) -> bool:
        """Return whether the quota may delay the replica; False for in-sync followers."""
        return (
            replica.partition is not None
            and wanted.replica_id not in replica.partition.isr
            and self._quota.is_throttled(wanted.topic_partition)
        )

    def _count(self, session: FetchSession, answers: _Answers) -> None:
        """Count the bytes of the response in the replicas' metrics and against the quota."""
        throttled_bytes = 0
        for key, data in answers.items():
            part = session.parts.get(key)
            if part is None or not data.records:
                continue
            topic_partition, size_bytes = part.wanted.topic_partition, len(data.records)
            replica = self._replicas.get(topic_partition)
            if replica is not None:
                replica.count_fetched(size_bytes)
            if self._quota.is_throttled(topic_partition):
                throttled_bytes += size_bytes
        if throttled_bytes:
            self._quota.spend(throttled_bytes, self._clock.now_ms())


def _is_empty_result(data: FetchedData) -> bool:
    """Return whether the result has no error and no records, neither in memory nor on the disk."""
    is_sound = data.code is ErrorCode.NONE and data.diverging is None
    return is_sound and data.is_in_memory and not data.records


def _end_of(replica: HostedReplica) -> int:
    return -1 if replica.handle is None else replica.handle.log_end_offset


def _size_of(answers: _Answers) -> int:
    return sum(len(data.records) for data in answers.values())


def _settle(session: FetchSession, key: TopicIdPartition, data: FetchedData) -> bool:
    """Note the result that is about to be sent. Return whether it has news for the follower."""
    part = session.parts.get(key)
    if part is None:
        return False
    if data.is_left_out:
        session.news[key] = None
    is_new = (
        bool(data.records)
        or data.code is not ErrorCode.NONE
        or data.diverging is not None
        or data.high_watermark != part.reported_high_watermark
        or data.log_start_offset != part.reported_log_start_offset
    )
    part.reported_high_watermark = data.high_watermark
    part.reported_log_start_offset = data.log_start_offset
    return is_new


def _topics(session: FetchSession, answers: _Answers) -> list[FetchResponse.FetchableTopicResponse]:
    by_topic: dict[TopicId, list[FetchResponse.PartitionData]] = defaultdict(list)
    for key, data in answers.items():
        by_topic[key.topic_id].append(partition_data(key.partition, data))
    return [
        FetchResponse.FetchableTopicResponse(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in by_topic.items()
    ]


def partition_data(index: int, data: FetchedData) -> FetchResponse.PartitionData:
    """Return the part of a fetch response for one partition."""
    response = FetchResponse.PartitionData(
        partition_index=index,
        error_code=data.code,
        high_watermark=data.high_watermark,
        last_stable_offset=data.last_stable_offset,
        log_start_offset=data.log_start_offset,
        aborted_transactions=None
        if data.aborted is None
        else [
            FetchResponse.AbortedTransaction(
                producer_id=one.producer_id, first_offset=one.first_offset
            )
            for one in data.aborted
        ],
        records=data.records,
    )
    if data.may_have_gaps:
        response.may_have_gaps = True
    if data.preferred != NO_LEADER:
        response.preferred_read_replica = data.preferred
    if data.diverging is not None:
        epoch, end_offset = data.diverging
        response.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return response
