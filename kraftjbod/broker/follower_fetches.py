"""Fetches of followers: answered from sessions, so that an idle replica costs nothing.

A fetch updates its session, looks at the partitions that have news, waits if there is nothing to
read among them, and tells what is new: records, an error, a divergence, or only a high watermark.
A partition with an error is told once; its follower forgets it, and names it again later.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection

from kraftjbod.broker.fetch_sessions import FetchFrom, FetchSession, FetchSessions, SessionPart
from kraftjbod.broker.hosted_replicas import HostedReplicas
from kraftjbod.broker.metadata_cache import MetadataCache
from kraftjbod.broker.replica_reads import FetchedData, ReplicaReads
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, TopicId, TopicIdPartition, TopicPartition
from kraftjbod.core.timing import Clock
from kraftjbod.protocol.kafka_codec import Message, message

FetchResponse = message("FetchResponse")
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
    ) -> None:
        self._sessions = sessions
        self._replicas = replicas
        self._reads = reads
        self._cache = cache
        self._clock = clock
        self._max_fetch_bytes = max_fetch_bytes
        self._suspect_after_s = suspect_after_ms / 1000

    async def fetch(self, request: Message) -> Message:
        response: Message
        try:
            session = self._session_of(request)
        except OperatingError as e:
            response = FetchResponse(error_code=e.code)
            return response
        named = self._update(session, request)
        answers = await self._fill(session, request, named)
        response = FetchResponse(session_id=session.session_id, responses=_topics(session, answers))
        return response

    # --- the session -----------------------------------------------------------------------------

    def _session_of(self, request: Message) -> FetchSession:
        if request.session_epoch > 0:
            return self._sessions.take(request.session_id, request.session_epoch)
        self._unwatch(self._sessions.close(request.session_id))
        opened, gone = self._sessions.open()
        for session in gone:
            self._unwatch(session)
        return opened

    def _update(self, session: FetchSession, request: Message) -> Collection[TopicIdPartition]:
        """Take over what the request says; the partitions that it names."""
        replica_id = BrokerId(request.replica_state.replica_id)
        replica_epoch = BrokerEpoch(request.replica_state.replica_epoch)
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
                )
                self._follow(session, key, wanted)
        for topic in request.forgotten_topics_data:
            for index in topic.partitions:
                self._forget(session, TopicIdPartition(TopicId(topic.topic_id), index))
        return named.keys()

    def _follow(self, session: FetchSession, key: TopicIdPartition, wanted: FetchFrom) -> None:
        part = session.parts.get(key)
        if part is None:
            session.parts[key] = SessionPart(wanted)
        else:
            part.wanted = wanted
        session.news[key] = None
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

    def _unwatch(self, session: FetchSession | None) -> None:
        if session is not None:
            for key in list(session.parts):
                self._forget(session, key)

    # --- the answer ------------------------------------------------------------------------------

    async def _fill(
        self, session: FetchSession, request: Message, named: Collection[TopicIdPartition]
    ) -> _Answers:
        """What is new, after a wait if that is too little."""
        deadline_ms = self._clock.now_ms() + max(0, request.max_wait_ms)
        max_bytes = min(request.max_bytes, self._max_fetch_bytes)
        answers: _Answers = {}
        while True:
            looked = self._look(session, max_bytes, named)
            # Errors of an earlier look stand; the rest is looked at anew.
            answers.update(looked)
            found_bytes = sum(len(data.records) for data in answers.values())
            on_disk = [key for key, data in answers.items() if not data.is_in_memory]
            if on_disk:
                await self._read_from_disk(session, on_disk, answers, found_bytes)
                break
            is_urgent = any(
                data.code is not ErrorCode.NONE or data.diverging is not None
                for data in looked.values()
            )
            remaining_ms = deadline_ms - self._clock.now_ms()
            if found_bytes >= request.min_bytes or is_urgent or remaining_ms <= 0:
                break
            await session.wait(request.min_bytes - found_bytes, remaining_ms)
            named = ()
        return {key: data for key, data in answers.items() if _settle(session, key, data)}

    def _look(
        self, session: FetchSession, max_bytes: int, named: Collection[TopicIdPartition]
    ) -> _Answers:
        answers: _Answers = {}
        found_bytes = 0
        for key in session.take_news():
            wanted = session.parts[key].wanted
            replica = self._replicas.get(wanted.topic_partition)
            if replica is None or replica.topic_id != key.topic_id:
                answers[key] = FetchedData(ErrorCode.UNKNOWN_TOPIC_ID)
                continue
            room = max_bytes - found_bytes
            if wanted.max_bytes > room:
                wanted = wanted._replace(max_bytes=max(0, room))
            answers[key] = self._reads.read(
                wanted, min_one_batch=found_bytes == 0, is_first_look=key in named
            )
            found_bytes += len(answers[key].records)
        return answers

    async def _read_from_disk(
        self,
        session: FetchSession,
        on_disk: Collection[TopicIdPartition],
        answers: _Answers,
        found_bytes: int,
    ) -> None:
        """Each in its directory's thread; what does not come in time is news next time."""
        reading = {
            key: asyncio.ensure_future(
                self._reads.read_from_disk(
                    session.parts[key].wanted, min_one_batch=found_bytes == 0 and i == 0
                )
            )
            for i, key in enumerate(on_disk)
        }
        await asyncio.wait(reading.values(), timeout=self._suspect_after_s)
        for key, read in reading.items():
            if read.done():
                answers[key] = read.result()
            else:
                read.cancel()
                answers[key] = answers[key]._replace(is_left_out=True)


def _settle(session: FetchSession, key: TopicIdPartition, data: FetchedData) -> bool:
    """Note what the follower is about to hear; False if there is nothing to tell."""
    part = session.parts.get(key)
    if part is None:
        return False
    if data.is_left_out:
        session.news[key] = None
    is_new = (
        bool(data.records)
        or data.code is not ErrorCode.NONE
        or data.diverging is not None
        or data.high_watermark != part.told_high_watermark
        or data.log_start_offset != part.told_log_start_offset
    )
    part.told_high_watermark = data.high_watermark
    part.told_log_start_offset = data.log_start_offset
    return is_new


def _topics(session: FetchSession, answers: _Answers) -> list[Message]:
    by_topic: dict[TopicId, list[Message]] = defaultdict(list)
    for key, data in answers.items():
        by_topic[key.topic_id].append(partition_data(key.partition, data))
    return [
        FetchResponse.FetchableTopicResponse(topic_id=topic_id, partitions=partitions)
        for topic_id, partitions in by_topic.items()
    ]


def partition_data(index: int, data: FetchedData) -> Message:
    """One partition of a fetch's response."""
    response: Message = FetchResponse.PartitionData(
        partition_index=index,
        error_code=data.code,
        high_watermark=data.high_watermark,
        # There are no transactions, so everything committed is stable.
        last_stable_offset=data.high_watermark,
        log_start_offset=data.log_start_offset,
        aborted_transactions=None,
        records=data.records,
    )
    if data.diverging is not None:
        epoch, end_offset = data.diverging
        response.diverging_epoch = FetchResponse.EpochEndOffset(epoch=epoch, end_offset=end_offset)
    return response
