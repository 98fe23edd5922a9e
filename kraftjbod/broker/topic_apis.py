"""Requests that change topics, forwarded to the controller, and producer ids.

The broker decides nothing here: it translates Kafka's requests to the controller's and back.
An error of the whole call (no controller in time, say) becomes the error of each topic in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from kraftjbod.broker.controller_channel import ControllerChannel, forward_timeout_ms
from kraftjbod.broker.producer_ids import ProducerIdManager
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import ZERO_UUID, BrokerId, TopicId
from kraftjbod.core.telemetry import get_logger
from kraftjbod.protocol.kafka_codec import Message, message
from kraftjbod.protocol.rpc_messages import (
    CreatedTopic,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeletedTopic,
    DeleteTopicsRequest,
    GrownTopic,
    MorePartitions,
    NewTopic,
    TopicRef,
)

CreateTopicsResponse = message("CreateTopicsResponse")
CreatePartitionsResponse = message("CreatePartitionsResponse")
DeleteTopicsResponse = message("DeleteTopicsResponse")
InitProducerIdResponse = message("InitProducerIdResponse")

_DELETE_BY_ID_SINCE: Final = 6


class TopicApis:
    def __init__(
        self,
        *,
        channel: ControllerChannel,
        producer_ids: ProducerIdManager,
        auto_create_timeout_ms: int,
        max_remembered_outcomes: int = 1_000,
    ) -> None:
        self._channel = channel
        self._producer_ids = producer_ids
        self._auto_create_timeout_ms = auto_create_timeout_ms
        self._max_remembered_outcomes = max_remembered_outcomes
        #: Topics that are being created for clients that only asked about them.
        self._creating: dict[str, asyncio.Future[None]] = {}
        #: Why the last automatic creation of a topic was refused.
        self._refused: dict[str, ErrorCode] = {}
        self._log = get_logger(component="topic_apis")

    # --- automatic creation ----------------------------------------------------------------------

    async def auto_create(self, names: Sequence[str]) -> None:
        """Ask the controller for topics with default settings; :meth:`creation_outcome` tells."""
        fresh = [name for name in dict.fromkeys(names) if name not in self._creating]
        if fresh:
            asking = asyncio.ensure_future(self._auto_create(fresh))
            for name in fresh:
                self._creating[name] = asking
        # A client that goes away does not stop the creation that others may wait for.
        await asyncio.gather(
            *(asyncio.shield(self._creating[name]) for name in names if name in self._creating)
        )

    def creation_outcome(self, name: str) -> ErrorCode:
        """What to tell a client about a topic that is not there yet."""
        return self._refused.get(name, ErrorCode.LEADER_NOT_AVAILABLE)

    async def _auto_create(self, names: list[str]) -> None:
        request = CreateTopicsRequest(topics=tuple(NewTopic(name=name) for name in names))
        try:
            outcome = await self._create(request, self._auto_create_timeout_ms)
        finally:
            for name in names:
                del self._creating[name]
        for created in outcome:
            self._refused.pop(created.name, None)
            if created.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                continue
            self._log.info(
                "topic_auto_creation_refused", topic=created.name, why=created.error_code
            )
            if len(self._refused) >= self._max_remembered_outcomes:
                self._refused.clear()
            self._refused[created.name] = created.error_code

    # --- topics ----------------------------------------------------------------------------------

    async def create_topics(self, request: Message, _context: RequestContext) -> Message:
        names = [topic.name for topic in request.topics]
        topics = tuple(
            _new_topic(topic) for topic in request.topics if names.count(topic.name) == 1
        )
        created = await self._create(
            CreateTopicsRequest(topics=topics, validate_only=request.validate_only),
            request.timeout_ms,
        )
        created += [
            CreatedTopic(
                name=name,
                error_code=ErrorCode.INVALID_REQUEST,
                error_message="the request names the topic more than once",
            )
            for name in dict.fromkeys(names)
            if names.count(name) > 1
        ]
        response: Message = CreateTopicsResponse(topics=[_created(topic) for topic in created])
        return response

    async def _create(self, request: CreateTopicsRequest, timeout_ms: int) -> list[CreatedTopic]:
        if not request.topics:
            return []
        try:
            response = await self._channel.call(request, timeout_ms=forward_timeout_ms(timeout_ms))
        except OperatingError as e:
            return [
                CreatedTopic(name=topic.name, error_code=e.code, error_message=e.message)
                for topic in request.topics
            ]
        return list(response.topics)

    async def delete_topics(self, request: Message, context: RequestContext) -> Message:
        if context.api_version >= _DELETE_BY_ID_SINCE:
            refs = tuple(
                TopicRef(name=topic.name, topic_id=TopicId(topic.topic_id))
                for topic in request.topics
            )
        else:
            refs = tuple(TopicRef(name=name) for name in request.topic_names)
        try:
            forwarded = await self._channel.call(
                DeleteTopicsRequest(topics=refs), timeout_ms=forward_timeout_ms(request.timeout_ms)
            )
            deleted = forwarded.topics
        except OperatingError as e:
            deleted = tuple(
                DeletedTopic(
                    name=ref.name, topic_id=ref.topic_id, error_code=e.code, error_message=e.message
                )
                for ref in refs
            )
        response: Message = DeleteTopicsResponse(
            responses=[
                DeleteTopicsResponse.DeletableTopicResult(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    error_code=topic.error_code,
                    error_message=topic.error_message,
                )
                for topic in deleted
            ]
        )
        return response

    async def create_partitions(self, request: Message, _context: RequestContext) -> Message:
        forwarded = CreatePartitionsRequest(
            topics=tuple(
                MorePartitions(
                    name=topic.name,
                    count=topic.count,
                    assignments=None
                    if topic.assignments is None
                    else tuple(tuple(map(BrokerId, a.broker_ids)) for a in topic.assignments),
                )
                for topic in request.topics
            ),
            validate_only=request.validate_only,
        )
        try:
            grown = (
                await self._channel.call(
                    forwarded, timeout_ms=forward_timeout_ms(request.timeout_ms)
                )
            ).topics
        except OperatingError as e:
            grown = tuple(
                GrownTopic(name=topic.name, error_code=e.code, error_message=e.message)
                for topic in forwarded.topics
            )
        response: Message = CreatePartitionsResponse(
            results=[
                CreatePartitionsResponse.CreatePartitionsTopicResult(
                    name=topic.name, error_code=topic.error_code, error_message=topic.error_message
                )
                for topic in grown
            ]
        )
        return response

    # --- producer ids ----------------------------------------------------------------------------

    async def init_producer_id(self, request: Message, _context: RequestContext) -> Message:
        """A fresh id with epoch 0: without transactions, every producer that asks is a new one."""
        response: Message
        if request.transactional_id is not None:
            # No client message exists in this response: the code has to say it.
            response = InitProducerIdResponse(
                error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1
            )
            self._log.warning("transactional_id_refused", transactional_id=request.transactional_id)
            return response
        try:
            producer_id = await self._producer_ids.next_id()
        except OperatingError as e:
            code = e.code if e.retriable else ErrorCode.REQUEST_TIMED_OUT
            response = InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
            return response
        response = InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
        return response


def _new_topic(topic: Message) -> NewTopic:
    return NewTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={
            a.partition_index: tuple(map(BrokerId, a.broker_ids)) for a in topic.assignments
        },
        configs={config.name: config.value for config in topic.configs},
    )


def _created(topic: CreatedTopic) -> Message:
    created: Message = CreateTopicsResponse.CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id or ZERO_UUID,
        error_code=topic.error_code,
        error_message=topic.error_message,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=[],
    )
    return created
