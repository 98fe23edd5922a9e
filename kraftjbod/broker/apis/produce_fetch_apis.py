"""LOOP. Produce and Fetch: the hot path between protocol messages and replicas.

* An error of one partition is reported for that partition; the rest of the request proceeds.
* A fetch waits for ``min_bytes`` or its deadline; an error is returned at once.
* follower_fetches.py serves followers. Consumers with sessions also use consumer_sessions.py.
* A fetch of very many partitions reads a part of them from a random start, so none is starved.
* A client that compares replicas is served by any replica, up to its high watermark.
* A response to a client with a wrong leader names the right one (KIP-951).
* No object is created per record, and records are passed on in their original buffers.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar

from kraftjbod.broker.access import Access
from kraftjbod.broker.apis.follower_fetches import FollowerFetches, partition_data
from kraftjbod.broker.apis.leader_hints import LeaderHints
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.partitions.consumer_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    ConsumerSessions,
)
from kraftjbod.broker.partitions.fetch_sessions import CONSUMER, REPLICA_READER, FetchFrom
from kraftjbod.broker.replicas.hosted_replicas import HostedReplicas
from kraftjbod.broker.replicas.pending_append import AppendOutcome, PendingAppend, TransactionClaim
from kraftjbod.broker.replicas.replica_appends import ReplicaAppends
from kraftjbod.broker.replicas.replica_reads import READ_COMMITTED, FetchedData, ReplicaReads
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core import buggify
from kraftjbod.core.acl import AclOperation, AclResourceType
from kraftjbod.core.errors import ErrorCode, OperatingError, OverloadedError, UnansweredError
from kraftjbod.core.ids import BrokerId, TopicId, TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.timing import Clock
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.core.telemetry import Metrics, get_logger, shortened
from kraftjbod.net.cluster_actions import fetching_replica
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.net.memory_budget import Ledger
from kraftjbod.protocol.messages import (
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)

TopicProduceResponse = ProduceResponse.TopicProduceResponse
PartitionProduceResponse = ProduceResponse.PartitionProduceResponse
BatchIndexAndErrorMessage = ProduceResponse.BatchIndexAndErrorMessage
FetchableTopicResponse = FetchResponse.FetchableTopicResponse
_ProduceHints = LeaderHints[ProduceResponse.LeaderIdAndEpoch, ProduceResponse.NodeEndpoint]
_FetchHints = LeaderHints[FetchResponse.LeaderIdAndEpoch, FetchResponse.NodeEndpoint]
L = TypeVar("L")
E = TypeVar("E")

_PRODUCE_BY_ID_SINCE: Final = 13
#: First versions in which clients know KAFKA_STORAGE_ERROR (KIP-112).
_PRODUCE_STORAGE_ERROR_SINCE: Final = 4
_FETCH_STORAGE_ERROR_SINCE: Final = 6
#: First versions in which producers know TRANSACTION_ABORTABLE, and the epoch increment per
#: transaction.
_ABORTABLE_SINCE: Final = 11
_EPOCH_BUMP_SINCE: Final = 12
_FETCH_BY_ID_SINCE: Final = 13
#: First versions whose responses have the current leader, and its endpoint (KIP-951).
_PRODUCE_HINTS_SINCE: Final = (10, 10)
_FETCH_HINTS_SINCE: Final = (12, 16)
_REPLICA_STATE_SINCE: Final = 15
_VALID_ACKS: Final = frozenset({-1, 0, 1})
_MAX_WAIT_MS: Final = 600_000


_FORBIDDEN: Final = AppendOutcome(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_FORBIDDEN_TRANSACTION: Final = AppendOutcome(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
#: Place of the lower byte of the attributes in a record batch, and its transactional bit.
_ATTRIBUTES_AT: Final = 22
_TRANSACTIONAL: Final = 0x10
_UNKNOWN_ID: Final = AppendOutcome(ErrorCode.UNKNOWN_TOPIC_ID)
_CLOSED: Final = AppendOutcome(
    ErrorCode.INVALID_TOPIC_EXCEPTION, "brokers alone write this topic; commit through a group"
)
_MEMBERS_ONLY: Final = AppendOutcome(
    ErrorCode.INVALID_TOPIC_EXCEPTION, "brokers of this cluster alone write this topic"
)
_TOO_MANY: Final = AppendOutcome(
    ErrorCode.INVALID_REQUEST,
    f"one request may be about {MAX_ITEMS_PER_REQUEST} partitions; send this one again",
)


class _Fetching:
    """One partition of a fetch request, with its result once it was read."""

    __slots__ = ("data", "is_given", "wanted")

    def __init__(self, wanted: FetchFrom, data: FetchedData | None = None) -> None:
        self.wanted = wanted
        #: Set at the start for an unknown partition, or for one to be read from another replica.
        self.data = data
        self.is_given = data is not None


class _Found(NamedTuple):
    """What one pass over the partitions of a request has read from memory."""

    found_bytes: int
    #: Bytes that the response may still take.
    left_bytes: int
    #: Enough bytes, or a result that must be returned at once.
    is_enough: bool
    on_disk: list[_Fetching]


class ProduceFetchApis:
    def __init__(
        self,
        *,
        broker_id: BrokerId,
        cache: MetadataCache,
        replicas: HostedReplicas,
        appends: ReplicaAppends,
        reads: ReplicaReads,
        followers: FollowerFetches,
        sessions: ConsumerSessions,
        clock: Clock,
        metrics: Metrics,
        max_fetch_bytes: int,
        suspect_after_ms: int,
        answers: Ledger,
        random_bytes: Callable[[int], bytes],
        closed_topics: frozenset[str] = frozenset(),
        member_topics: frozenset[str] = frozenset(),
        is_member: Callable[[ConnectionContext], bool] = lambda _connection: False,
        selects_nearest: bool = False,
    ) -> None:
        """Create the handlers.

        :param suspect_after_ms: ``log.dir.io.suspect.ms``: how long a response waits for a
            directory.
        :param answers: the byte budget for responses to all clients.
        :param closed_topics: topics without Produce: their leaders write them internally.
        :param member_topics: topics that only members of the cluster may write.
        :param is_member: returns whether a connection is a member's.
        :param selects_nearest: whether consumers with a rack are sent to the nearest replica
            (KIP-392).
        """
        self._broker_id = broker_id
        self._cache = cache
        self._replicas = replicas
        self._appends = appends
        self._reads = reads
        self._followers = followers
        self._sessions = sessions
        self._clock = clock
        self._metrics = metrics
        metrics.count("BytesOutPerSec", 0)
        self._max_fetch_bytes = max_fetch_bytes
        self._suspect_after_ms = suspect_after_ms
        self._answers = answers
        self._random_bytes = random_bytes
        self._closed_topics = closed_topics
        self._member_topics = member_topics
        self._is_member = is_member
        self._selects_nearest = selects_nearest
        self._log = get_logger(component="produce_fetch_apis")

    # --- Produce ---------------------------------------------------------------------------------

    def produce(
        self, request: ProduceRequest, context: RequestContext
    ) -> Completion[ProduceResponse | None]:
        """Answer Produce without a task. The result is None for ``acks=0``, which has no response.

        The appends are started before this returns, so pipelined requests keep their order.

        :raises UnansweredError: when awaited: a partition of a request with ``acks=0`` failed.
        """
        pending = self._append_all(request, context)
        answer = partial(self._produce_response, request, context, pending)
        return self._appends.outcomes(pending, answer, suspect_after_ms=self._suspect_after_ms)

    def _append_all(self, request: ProduceRequest, context: RequestContext) -> list[PendingAppend]:
        """Start or refuse the append of each partition. Return them in the order of the request."""
        acks, timeout_ms = request.acks, max(0, min(request.timeout_ms, _MAX_WAIT_MS))
        is_by_id = context.api_version >= _PRODUCE_BY_ID_SINCE
        refusal, claim = _refuse_produce(request), _claim_of(request, context.api_version)
        if context.access is not None and not _may_write_transaction(request, context.access):
            refusal = _FORBIDDEN_TRANSACTION
        pending: list[PendingAppend] = []
        for topic in request.topic_data:
            name = self._name_of(topic.topic_id) if is_by_id else topic.name
            closed = self._refuse_topic(name, context)
            for part in topic.partition_data:
                partition = TopicPartition(name or "", part.index)
                if len(pending) == MAX_ITEMS_PER_REQUEST:
                    refusal = _TOO_MANY
                why = refusal or closed
                if why is not None:
                    pending.append(PendingAppend.refused(partition, why))
                else:
                    pending.append(
                        self._appends.append_records(
                            partition,
                            part.records,
                            acks=acks,
                            timeout_ms=timeout_ms,
                            transaction=claim,
                        )
                    )
        return pending

    def _refuse_topic(self, name: str | None, context: RequestContext) -> AppendOutcome | None:
        if name is None:
            return _UNKNOWN_ID
        access = context.access
        if access is not None and not self._may_write(access, name, context):
            return _FORBIDDEN
        if name in self._closed_topics:
            return _CLOSED
        if name in self._member_topics and not self._is_member(context.connection):
            return _MEMBERS_ONLY
        return None

    def _may_write(self, access: Access, name: str, context: RequestContext) -> bool:
        """Return whether the client may write the topic, or is a broker that writes its own."""
        is_broker = access.is_broker and name in self._member_topics
        return is_broker or access.may(AclOperation.WRITE, AclResourceType.TOPIC, name)

    def _hints(
        self,
        leader: Callable[..., L],
        endpoint: Callable[..., E],
        context: RequestContext,
        since: tuple[int, int],
    ) -> LeaderHints[L, E]:
        return LeaderHints(
            leader,
            endpoint,
            cache=self._cache,
            broker_id=self._broker_id,
            listener_name=context.listener_name,
            has_leaders=context.api_version >= since[0],
            has_endpoints=context.api_version >= since[1],
        )

    def _name_of(self, topic_id: bytes) -> str | None:
        try:
            return self._replicas.topic_name(TopicId(topic_id))
        except OperatingError:
            return None

    def _produce_response(
        self,
        request: ProduceRequest,
        context: RequestContext,
        pending: Sequence[PendingAppend],
        outcomes: Sequence[AppendOutcome],
    ) -> ProduceResponse | None:
        if request.acks == 0:
            self._require_appended(pending, outcomes, context)
            return None
        ended = zip(pending, outcomes, strict=True)
        hints: _ProduceHints | None = None
        topics = []
        for topic in request.topic_data:
            parts = []
            for _ in topic.partition_data:
                one, outcome = next(ended)
                part = _partition_outcome(one.topic_partition, outcome)
                if context.api_version < _PRODUCE_STORAGE_ERROR_SINCE:
                    part.error_code = _without_storage_error(outcome.code)
                if outcome.code:
                    hints = hints or self._produce_hints(context)
                    part.current_leader = hints.leader_of(one.topic_partition, outcome.code)
                parts.append(part)
            topics.append(
                TopicProduceResponse(
                    name=topic.name, topic_id=topic.topic_id, partition_responses=parts
                )
            )
        endpoints = [] if hints is None else hints.endpoints()
        return ProduceResponse(responses=topics, node_endpoints=endpoints)

    def _require_appended(
        self,
        pending: Sequence[PendingAppend],
        outcomes: Sequence[AppendOutcome],
        context: RequestContext,
    ) -> None:
        """Require that all appends of a request with ``acks=0`` succeeded.

        :raises UnansweredError: a partition failed. The connection is then closed, as in Kafka.
            Otherwise the client would write to a former leader until its metadata expires.
        """
        for one, outcome in zip(pending, outcomes, strict=True):
            if outcome.code:
                self._log.info(
                    "acks_0_produce_failed",
                    peer=context.connection.peer,
                    client_id=shortened(context.client_id or ""),
                    partition=str(one.topic_partition),
                    code=outcome.code.name,
                )
                raise UnansweredError(
                    f"a Produce with acks=0 failed for {one.topic_partition}: {outcome.code.name}"
                )

    def _produce_hints(self, context: RequestContext) -> _ProduceHints:
        kinds = ProduceResponse.LeaderIdAndEpoch, ProduceResponse.NodeEndpoint
        return self._hints(*kinds, context, _PRODUCE_HINTS_SINCE)

    # --- Fetch -----------------------------------------------------------------------------------

    def fetch(self, request: FetchRequest, context: RequestContext) -> Awaitable[FetchResponse]:
        """Answer Fetch. A task is needed only to wait for records or to read from a disk."""
        version = context.api_version
        asker = _asker(request, version)
        access = context.access
        if asker >= 0 and access and not access.may_on_cluster(AclOperation.CLUSTER_ACTION):
            return Completion.of(_refuse_follower(request))
        if asker >= 0 and version >= _REPLICA_STATE_SINCE:
            return self._followers.fetch(request)
        if asker >= 0 and request.session_epoch > INITIAL_EPOCH:
            # Old followers have no sessions, so this session is not the sender's.
            code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            return Completion.of(FetchResponse(error_code=code))
        is_incremental = request.session_epoch not in (INITIAL_EPOCH, FINAL_EPOCH)
        if context.is_over_quota and not is_incremental:
            if request.session_id:
                self._sessions.close(request.session_id)
            return _no_records()
        if asker < 0 and request.session_epoch != FINAL_EPOCH:
            return self._sessions.fetch(
                request,
                _no_records
                if context.is_over_quota
                else partial(self._fetch, request, context, asker),
                is_by_id=version >= _FETCH_BY_ID_SINCE,
            )
        if request.session_id:
            self._sessions.close(request.session_id)
        return self._fetch(request, context, asker)

    def _fetch(
        self, request: FetchRequest, context: RequestContext, asker: BrokerId
    ) -> Awaitable[FetchResponse]:
        """Answer a fetch without a session, or a fetch whose session has filled in the
        partitions."""
        fetching = self._parse_fetch(request, context, asker)
        reading = self._read_now(fetching)
        if self._selects_nearest and request.rack_id and asker == CONSUMER:
            for one in reading:
                if not one.is_given:
                    one.data = self._reads.nearest(
                        one.wanted, request.rack_id, context.listener_name
                    )
                    one.is_given = one.data is not None
        found = self._read(reading, request)
        if found.is_enough and not found.on_disk:
            return Completion.of(self._fetch_response(request, fetching, context))
        return self._fetch_later(request, fetching, reading, context)

    def _read_now(self, fetching: Sequence[_Fetching]) -> Sequence[_Fetching]:
        """Return the partitions to read: all, or ``MAX_ITEMS_PER_REQUEST`` from a random start.

        The rest is answered without records, and the client requests it again.
        """
        count = len(fetching)
        if count <= MAX_ITEMS_PER_REQUEST:
            return fetching
        start = int.from_bytes(self._random_bytes(4)) % count
        rotated = itertools.chain(fetching[start:], fetching[:start])
        return list(itertools.islice(rotated, MAX_ITEMS_PER_REQUEST))

    async def _fetch_later(
        self,
        request: FetchRequest,
        fetching: Sequence[_Fetching],
        reading: Sequence[_Fetching],
        context: RequestContext,
    ) -> FetchResponse:
        held_bytes = await self._fill(reading, request)
        # From here on the connection's budget includes the response.
        self._answers.give(held_bytes)
        return self._fetch_response(request, fetching, context)

    def is_of_follower(self, fetch: FetchRequest, version: int) -> bool:
        """Return whether the fetch was sent by a follower that is a registered broker."""
        if version < _REPLICA_STATE_SINCE or _asker(fetch, version) < 0:
            return False
        return self._followers.follower_of(fetch) is not None

    def _parse_fetch(
        self, request: FetchRequest, context: RequestContext, asker: BrokerId
    ) -> list[_Fetching]:
        version, access = context.api_version, context.access
        if asker >= 0:
            access = None  # A follower, whose CLUSTER_ACTION was checked.
        fetching: list[_Fetching] = []
        replica_id = REPLICA_READER if asker == REPLICA_READER else CONSUMER
        for topic in request.topics:
            name: str | None = topic.topic
            unnamed: FetchedData | None = None
            if version >= _FETCH_BY_ID_SINCE:
                try:
                    name = self._replicas.topic_name(TopicId(topic.topic_id))
                except OperatingError as e:
                    unnamed = FetchedData(e.code)
            if access is not None and unnamed is None and not _may_read(access, name):
                unnamed = FetchedData(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            for part in topic.partitions:
                wanted = FetchFrom(
                    TopicPartition(name or "", part.partition),
                    part.fetch_offset,
                    part.partition_max_bytes,
                    part.current_leader_epoch,
                    part.last_fetched_epoch,
                    replica_id,
                    is_committed_only=request.isolation_level == READ_COMMITTED,
                )
                fetching.append(_Fetching(wanted, unnamed))
        return fetching

    async def _fill(self, fetching: Sequence[_Fetching], request: FetchRequest) -> int:
        """Read all partitions until there are enough bytes, a result to return at once, or no time
        left.

        Return the bytes taken from the response budget, which the caller must give back.
        """
        deadline_ms = self._clock.now_ms() + max(0, min(request.max_wait_ms, _MAX_WAIT_MS))
        while True:
            found = self._read(fetching, request)
            if found.on_disk:
                return await self._read_from_disk(found)
            remaining_ms = deadline_ms - self._clock.now_ms()
            if found.is_enough or remaining_ms <= 0:
                return 0
            partitions = [one.wanted.topic_partition for one in fetching]
            missing_bytes = request.min_bytes - found.found_bytes
            fetches = self._replicas.consumer_fetches
            if request.isolation_level == READ_COMMITTED:
                # A small marker can make any number of bytes readable.
                fetches, missing_bytes = self._replicas.stable_fetches, 1
            try:
                waiting = fetches.wait(partitions, missing_bytes, remaining_ms)
            except OverloadedError:
                return 0
            await waiting

    def _read(self, fetching: Sequence[_Fetching], request: FetchRequest) -> _Found:
        """Read the records that are in memory, and find the partitions that must be read from a
        disk."""
        max_bytes = min(request.max_bytes, self._max_fetch_bytes, self._answers.left_bytes)
        if buggify.is_on and buggify.fires("broker.small_consumer_fetch"):
            max_bytes = min(max_bytes, 1)
        found_bytes, is_urgent = 0, request.max_wait_ms <= 0
        on_disk: list[_Fetching] = []
        for one in fetching:
            if one.is_given:
                is_urgent = True
                continue
            left_bytes = max_bytes - found_bytes
            wanted = one.wanted
            if wanted.max_bytes > left_bytes:
                wanted = wanted._replace(max_bytes=max(0, left_bytes))
            # The first batch is returned even if it exceeds every limit (KIP-74).
            data = self._reads.read(wanted, min_one_batch=found_bytes == 0, is_first_read=False)
            one.data = data
            found_bytes += len(data.records)
            if data.code != ErrorCode.NONE or data.diverging is not None:
                is_urgent = True
            elif not data.is_in_memory:
                on_disk.append(one)
        is_enough = is_urgent or found_bytes >= request.min_bytes
        return _Found(found_bytes, max_bytes - found_bytes, is_enough, on_disk)

    async def _read_from_disk(self, found: _Found) -> int:
        """Read each partition of ``found.on_disk`` in its directory's thread, and set its ``data``.
        A read that is late sets none. Return the bytes taken from the memory budget: the maximum of
        each read, because the size of a result is known only afterwards."""
        reading: list[tuple[_Fetching, asyncio.Future[FetchedData]]] = []
        taken_bytes = 0
        for one in found.on_disk:
            is_first = found.found_bytes == 0 and not reading
            share_bytes = max(0, min(one.wanted.max_bytes, found.left_bytes - taken_bytes))
            if share_bytes > 0 or is_first:
                taken_bytes += share_bytes
                wanted = one.wanted._replace(max_bytes=share_bytes)
                read = self._reads.read_from_disk(wanted, min_one_batch=is_first)
                reading.append((one, asyncio.ensure_future(read)))
        if not reading:
            return 0
        self._answers.take(taken_bytes)
        try:
            await asyncio.wait(
                [future for _, future in reading], timeout=self._suspect_after_ms / 1000
            )
        except BaseException:
            self._answers.give(taken_bytes)
            raise
        for one, future in reading:
            if future.done():
                one.data = future.result()
            else:
                future.cancel()
        return taken_bytes

    def _fetch_response(
        self, request: FetchRequest, fetching: Sequence[_Fetching], context: RequestContext
    ) -> FetchResponse:
        found = iter(fetching)
        hints: _FetchHints | None = None
        topics, sent_bytes = [], 0
        for topic in request.topics:
            parts = []
            for part in topic.partitions:
                one = next(found)
                data = one.data or FetchedData()
                described = partition_data(part.partition, data)
                if context.api_version < _FETCH_STORAGE_ERROR_SINCE:
                    described.error_code = _without_storage_error(data.code)
                if data.code:
                    hints = hints or self._fetch_hints(context)
                    partition = one.wanted.topic_partition
                    described.current_leader = hints.leader_of(partition, data.code)
                parts.append(described)
                if data.records:
                    sent_bytes += len(data.records)
                    self._count_fetched(one.wanted.topic_partition, len(data.records))
            topics.append(
                FetchableTopicResponse(topic=topic.topic, topic_id=topic.topic_id, partitions=parts)
            )
        self._metrics.count("BytesOutPerSec", sent_bytes)
        endpoints = [] if hints is None else hints.endpoints()
        return FetchResponse(responses=topics, node_endpoints=endpoints)

    def _fetch_hints(self, context: RequestContext) -> _FetchHints:
        kinds = FetchResponse.LeaderIdAndEpoch, FetchResponse.NodeEndpoint
        return self._hints(*kinds, context, _FETCH_HINTS_SINCE)

    def _count_fetched(self, topic_partition: TopicPartition, size_bytes: int) -> None:
        replica = self._replicas.get(topic_partition)
        if replica is not None:
            replica.count_fetched(size_bytes)


def _may_read(access: Access, name: str | None) -> bool:
    return access.may(AclOperation.READ, AclResourceType.TOPIC, name or "")


def _no_records() -> Completion[FetchResponse]:
    return Completion.of(FetchResponse(responses=[]))


def _refuse_follower(request: FetchRequest) -> FetchResponse:
    """Return TOPIC_AUTHORIZATION_FAILED for each partition, as Kafka does."""
    return FetchResponse(
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[
                    FetchResponse.PartitionData(
                        partition_index=part.partition,
                        error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                        high_watermark=-1,
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _may_write_transaction(request: ProduceRequest, access: Access) -> bool:
    """Return whether the client may write the transaction of the request's batches, if any is
    transactional: the batches decide, not the request (CVE-2018-17196)."""
    is_transactional = any(
        part.records is not None
        and len(part.records) > _ATTRIBUTES_AT
        and part.records[_ATTRIBUTES_AT] & _TRANSACTIONAL
        for topic in request.topic_data
        for part in topic.partition_data
    )
    if not is_transactional:
        return True
    name = request.transactional_id
    kind = AclResourceType.TRANSACTIONAL_ID
    return name is not None and access.may(AclOperation.WRITE, kind, name)


def _asker(request: FetchRequest, version: int) -> BrokerId:
    """Return the id of the broker that fetches, or the negative value for a client."""
    return BrokerId(fetching_replica(request, version))


def _without_storage_error(code: ErrorCode) -> ErrorCode:
    """Return the code for a client that does not know KAFKA_STORAGE_ERROR.

    NOT_LEADER_OR_FOLLOWER, which replaces it, makes the client look for the leader.
    """
    if code is ErrorCode.KAFKA_STORAGE_ERROR:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    return code


def _refuse_produce(request: ProduceRequest) -> AppendOutcome | None:
    if request.acks not in _VALID_ACKS:
        return AppendOutcome(ErrorCode.INVALID_REQUIRED_ACKS, f"acks {request.acks} means nothing")
    return None


def _claim_of(request: ProduceRequest, version: int) -> TransactionClaim | None:
    """Return the transaction that the request names, if any."""
    if request.transactional_id is None:
        return None
    return TransactionClaim(
        request.transactional_id,
        supports_epoch_bump=version >= _EPOCH_BUMP_SINCE,
        refusal_of=lambda code: _transaction_refusal(code, version),
    )


def _transaction_refusal(code: ErrorCode, version: int) -> ErrorCode:
    """Return the producer's error code for a code of the transaction coordinator, as in Kafka."""
    is_old = version < _EPOCH_BUMP_SINCE
    match code:
        case ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        case ErrorCode.TRANSACTION_ABORTABLE if version < _ABORTABLE_SINCE:
            return ErrorCode.INVALID_TXN_STATE
        case ErrorCode.CONCURRENT_TRANSACTIONS if is_old:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case (
            ErrorCode.NETWORK_EXCEPTION
            # Unlike Kafka: the coordinator may not know this broker's address yet.
            | ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            | ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            | ErrorCode.COORDINATOR_NOT_AVAILABLE
            | ErrorCode.NOT_COORDINATOR
        ):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        case _:
            return code


def _partition_outcome(
    topic_partition: TopicPartition, outcome: AppendOutcome
) -> PartitionProduceResponse:
    part = PartitionProduceResponse(
        index=topic_partition.partition,
        error_code=outcome.code,
        base_offset=outcome.base_offset,
        log_append_time_ms=outcome.log_append_time_ms,
        log_start_offset=outcome.log_start_offset,
        error_message=outcome.message,
    )
    if outcome.record_errors:
        part.record_errors = [
            BatchIndexAndErrorMessage(batch_index=at, batch_index_error_message=why)
            for at, why in outcome.record_errors
        ]
    return part
