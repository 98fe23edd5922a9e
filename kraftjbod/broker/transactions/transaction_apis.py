"""LOOP. InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn and EndTxn.

This module handles request versions; transaction.py has the semantics.

* Up to version 3, a producer sends AddPartitionsToTxn for its own transaction. From version 4 on,
  partition leaders send it for many transactions, to add or only to verify (KIP-890).
* The request version shows the client's ability, independent of the cluster's feature level: EndTxn
  5 and AddPartitionsToTxn 4 are for transactions with an epoch increment each.
* An error of one partition prevents the addition of all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.groups.records.group_records import OFFSETS_TOPIC
from kraftjbod.broker.internal.coordinators import partition_of
from kraftjbod.broker.internal.internal_topics import InternalTopics
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.transactions.transaction_coordinator import TransactionCoordinator
from kraftjbod.broker.transactions.transaction_events import (
    BUMPING_VERSION,
    AddRequested,
    EndRequested,
    InitRequested,
    TransactionAnswer,
)
from kraftjbod.broker.transactions.transaction_records import NO_EPOCH, NO_PRODUCER
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.protocol.messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

_FIRST_VERSION: Final = 0
_BY_BROKERS_SINCE: Final = 4
_BUMPING_END_SINCE: Final = 5
#: Earlier versions report a fenced producer as INVALID_PRODUCER_EPOCH.
_FENCED_INIT_SINCE: Final = 4
_FENCED_SINCE: Final = 2
Topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
TopicResult = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
PartitionResult = AddPartitionsToTxnResponse.AddPartitionsToTxnPartitionResult


class TransactionApis:
    def __init__(
        self,
        *,
        coordinator: TransactionCoordinator,
        cache: MetadataCache,
        internal_topics: InternalTopics,
        make_offsets_topic: Callable[[], Awaitable[object]],
        next_producer_id: Callable[[], Awaitable[int]],
        max_timeout_ms: int,
    ) -> None:
        """Create the handlers.

        :param make_offsets_topic: creates ``__consumer_offsets``; may raise
            :class:`OperatingError`.
        :param next_producer_id: returns an unused producer id; may raise :class:`OperatingError`.
        :param max_timeout_ms: ``transaction.max.timeout.ms``.
        """
        self._coordinator = coordinator
        self._cache = cache
        self._internal_topics = internal_topics
        self._make_offsets_topic = make_offsets_topic
        self._next_producer_id = next_producer_id
        self._max_timeout_ms = max_timeout_ms

    # --- InitProducerId --------------------------------------------------------------------------

    async def init_producer_id(
        self, request: InitProducerIdRequest, context: RequestContext
    ) -> InitProducerIdResponse:
        """Answer InitProducerId. Without a transactional id it returns a new producer id with epoch
        0."""
        had = (request.producer_id, request.producer_epoch)
        if (had[0] == NO_PRODUCER) != (had[1] == NO_EPOCH):
            return _no_producer(ErrorCode.INVALID_REQUEST)
        if request.transactional_id is None:
            return await self._idempotent_producer()
        if not request.transactional_id:
            return _no_producer(ErrorCode.INVALID_REQUEST)
        if not 0 < request.transaction_timeout_ms <= self._max_timeout_ms:
            return _no_producer(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        event = InitRequested(
            token=Completion[TransactionAnswer](),
            timeout_ms=request.transaction_timeout_ms,
            version=self._coordinator.version,
            expected=None if had[0] == NO_PRODUCER else had,
        )
        answer = await self._ask(request.transactional_id, event)
        if answer.code is not ErrorCode.NONE:
            return _no_producer(_fenced(answer.code, context, _FENCED_INIT_SINCE))
        return InitProducerIdResponse(
            producer_id=answer.producer_id, producer_epoch=answer.producer_epoch
        )

    async def _idempotent_producer(self) -> InitProducerIdResponse:
        try:
            producer_id = await self._next_producer_id()
        except OperatingError as e:
            return _no_producer(e.code if e.retriable else ErrorCode.REQUEST_TIMED_OUT)
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    # --- AddPartitionsToTxn ----------------------------------------------------------------------

    async def add_partitions_to_txn(
        self, request: AddPartitionsToTxnRequest, context: RequestContext
    ) -> AddPartitionsToTxnResponse:
        kinds = AddPartitionsToTxnResponse
        if context.api_version < _BY_BROKERS_SINCE:
            results = await self._add(
                request.v3_and_below_transactional_id,
                (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch),
                request.v3_and_below_topics,
                context,
            )
            return kinds(results_by_topic_v3_and_below=results)
        if len(request.transactions) > MAX_ITEMS_PER_REQUEST:
            return kinds(error_code=ErrorCode.INVALID_REQUEST)
        answered = await asyncio.gather(
            *(
                self._add(
                    one.transactional_id,
                    (one.producer_id, one.producer_epoch),
                    one.topics,
                    context,
                    verifies=one.verify_only,
                )
                for one in request.transactions
            )
        )
        return kinds(
            results_by_transaction=[
                kinds.AddPartitionsToTxnResult(
                    transactional_id=one.transactional_id, topic_results=results
                )
                for one, results in zip(request.transactions, answered, strict=True)
            ]
        )

    async def _add(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        topics: Sequence[Topic],
        context: RequestContext,
        *,
        verifies: bool = False,
    ) -> list[TopicResult]:
        is_client = context.api_version < _BY_BROKERS_SINCE
        partitions = frozenset(
            TopicPartition(topic.name, index) for topic in topics for index in topic.partitions
        )
        codes = self._refusals(partitions, is_client=is_client)
        if not codes and not transactional_id:
            codes = dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        if not codes:
            codes = await self._ask_to_add(
                transactional_id, producer, partitions, verifies=verifies, is_client=is_client
            )
        return [
            TopicResult(
                name=topic.name,
                results_by_partition=[
                    PartitionResult(
                        partition_index=index,
                        partition_error_code=_fenced(
                            codes[TopicPartition(topic.name, index)], context, _FENCED_SINCE
                        ),
                    )
                    for index in topic.partitions
                ],
            )
            for topic in topics
        ]

    def _refusals(
        self, partitions: frozenset[TopicPartition], *, is_client: bool
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Return an error code for each partition if any of them is refused, else an empty
        mapping."""
        if len(partitions) > MAX_ITEMS_PER_REQUEST:
            return dict.fromkeys(partitions, ErrorCode.INVALID_REQUEST)
        refused = {}
        for one in partitions:
            if is_client and one.topic in self._internal_topics:
                refused[one] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif self._cache.state.partition_named(one) is None:
                refused[one] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if not refused:
            return {}
        return dict.fromkeys(partitions, ErrorCode.OPERATION_NOT_ATTEMPTED) | refused

    async def _ask_to_add(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: frozenset[TopicPartition],
        *,
        verifies: bool,
        is_client: bool,
    ) -> Mapping[TopicPartition, ErrorCode]:
        producer_id, producer_epoch = producer
        if verifies:
            try:
                return await self._coordinator.verify(
                    transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    partitions=partitions,
                )
            except OperatingError as e:
                return dict.fromkeys(partitions, e.code)
        event = AddRequested(
            token=Completion[TransactionAnswer](),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=partitions,
            version=_FIRST_VERSION if is_client else BUMPING_VERSION,
        )
        return dict.fromkeys(partitions, (await self._ask(transactional_id, event)).code)

    # --- AddOffsetsToTxn -------------------------------------------------------------------------

    async def add_offsets_to_txn(
        self, request: AddOffsetsToTxnRequest, context: RequestContext
    ) -> AddOffsetsToTxnResponse:
        """Answer AddOffsetsToTxn: add the group's partition of ``__consumer_offsets``.

        If that topic is missing, it is created, and the producer must retry.
        """
        if not request.transactional_id:
            return AddOffsetsToTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
        index = partition_of(self._cache.state, OFFSETS_TOPIC, request.group_id)
        if index is None:
            # No group has been used yet. A producer asks for the group's coordinator only after
            # this request, so the topic is created here, and the retried request finds it.
            try:
                await self._make_offsets_topic()
            except OperatingError as e:
                code = e.code if e.retriable else ErrorCode.COORDINATOR_NOT_AVAILABLE
                return AddOffsetsToTxnResponse(error_code=code)
            return AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        event = AddRequested(
            token=Completion[TransactionAnswer](),
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            partitions=frozenset({TopicPartition(OFFSETS_TOPIC, index)}),
            version=_FIRST_VERSION,
        )
        code = (await self._ask(request.transactional_id, event)).code
        return AddOffsetsToTxnResponse(error_code=_fenced(code, context, _FENCED_SINCE))

    # --- EndTxn ----------------------------------------------------------------------------------

    async def end_txn(self, request: EndTxnRequest, context: RequestContext) -> EndTxnResponse:
        bumps = context.api_version >= _BUMPING_END_SINCE
        if not request.transactional_id:
            return EndTxnResponse(error_code=ErrorCode.INVALID_REQUEST)
        event = EndRequested(
            token=Completion[TransactionAnswer](),
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            commits=request.committed,
            version=BUMPING_VERSION if bumps else _FIRST_VERSION,
        )
        answer = await self._ask(request.transactional_id, event)
        return EndTxnResponse(
            error_code=_fenced(answer.code, context, _FENCED_SINCE),
            producer_id=answer.producer_id,
            producer_epoch=answer.producer_epoch,
        )

    async def _ask(
        self, transactional_id: str, event: InitRequested | AddRequested | EndRequested
    ) -> TransactionAnswer:
        try:
            return await self._coordinator.ask(transactional_id, event)
        except OperatingError as e:
            return TransactionAnswer(code=e.code)


def _no_producer(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER, producer_epoch=NO_EPOCH)


def _fenced(code: ErrorCode, context: RequestContext, known_since: int) -> ErrorCode:
    """Return ``code``, or INVALID_PRODUCER_EPOCH if the request's version has no PRODUCER_FENCED.

    :param known_since: the first version of the API that has PRODUCER_FENCED.
    """
    if code is ErrorCode.PRODUCER_FENCED and context.api_version < known_since:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    return code
