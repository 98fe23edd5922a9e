"""LOOP. Requests that change topics, forwarded to the controller, and producer ids.

The broker makes no decisions here: it translates between Kafka's requests and the controller's.
Topics to grow or delete are first resolved to ids. So a retry after a failover has no second
effect, and does not affect a newer topic with the same name. An error of the whole call, such as a
timeout, becomes the error of each of its topics.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar

from kraftjbod.broker.apis.admin.forwarding import TimeLeft, find_topics, forward
from kraftjbod.broker.apis.client_throttle import MAX_THROTTLE_MS, client_of
from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.client_quota import CLIENT_ID, USER
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import ZERO_UUID, BrokerId, TopicId
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.core.request_limits import MAX_LOGGED_PER_REQUEST, MAX_PARTITIONS_MADE_PER_REQUEST
from kraftjbod.core.telemetry import get_logger, shortened
from kraftjbod.protocol import rpc_messages
from kraftjbod.protocol.kafka_codec import encode_part, parts_of
from kraftjbod.protocol.messages import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicsRequest,
    CreateTopicsResponse,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from kraftjbod.protocol.rpc_messages import (
    CreatedTopic,
    DeletedTopic,
    FoundTopic,
    GrownTopic,
    MorePartitions,
    MutatingClient,
    NewTopic,
    RpcBody,
    TopicRef,
)

Result = CreateTopicsResponse.CreatableTopicResult
TopicConfigs = CreateTopicsResponse.CreatableTopicConfigs
Outcome = TypeVar("Outcome", bound=RpcBody)
Outcome_co = TypeVar("Outcome_co", bound=RpcBody, covariant=True)
DescribeConfigs = Callable[[Mapping[str, str], int], Iterable[TopicConfigs]]
"""Returns the configuration of a topic by its own values and its replication factor."""

#: First version of CreateTopics whose response has configurations (KIP-525).
_CONFIGS_SINCE: Final = 5
_DELETE_BY_ID_SINCE: Final = 6
_DELETION_DISABLED_SINCE: Final = 3
#: First versions whose topics beyond the client's quota of mutations are refused (KIP-599).
_CREATE_STRICT_SINCE: Final = 6
_DELETE_STRICT_SINCE: Final = 5
_GROW_STRICT_SINCE: Final = 3
_UNSET: Final = -1
_NAMED_TWICE: Final = OperatingError(
    "the request names the topic more than once", code=ErrorCode.INVALID_REQUEST
)
_DELETION_DISABLED: Final = OperatingError(
    "Topic deletion is disabled: delete.topic.enable is false for this broker.",
    code=ErrorCode.TOPIC_DELETION_DISABLED,
)


class _Answer(Protocol[Outcome_co]):
    """Type of the controller's responses to requests about topics: one outcome per topic, and the
    throttle time in ms.
    """

    @property
    def topics(self) -> Sequence[Outcome_co]: ...

    @property
    def throttle_time_ms(self) -> int: ...


class _Mutations:
    """The quota of controller mutations that one request uses, and the wait that results."""

    def __init__(self, context: RequestContext, *, is_strict: bool) -> None:
        self._context = context
        names = dict(client_of(context))
        self.client = MutatingClient(
            user=names[USER] or "", client_id=names[CLIENT_ID] or "", is_strict=is_strict
        )
        self._wait_ms = 0

    def outcomes_of(self, response: _Answer[Outcome]) -> Sequence[Outcome]:
        """Return the outcomes of a controller's response, and note its throttle time."""
        self._wait_ms = max(self._wait_ms, response.throttle_time_ms)
        return response.topics

    def mute(self) -> int:
        """Delay the connection as long as its client has to wait, and return that in ms."""
        wait_ms = min(self._wait_ms, MAX_THROTTLE_MS)
        if wait_ms:
            self._context.connection.mute(wait_ms)
        return wait_ms


class TopicApis:
    def __init__(
        self,
        *,
        channel: ControllerChannel,
        auto_create_timeout_ms: int,
        random_bytes: Callable[[int], bytes],
        describe_configs: DescribeConfigs,
        default_partitions: int | None = None,
        default_replication_factor: int | None = None,
        may_delete_topics: bool = True,
        max_remembered_outcomes: int = 1_000,
    ) -> None:
        """Create the handlers.

        :param describe_configs: returns the configuration of a new topic.
        :param default_partitions: the default in this broker's file; if None, the controller's
            applies.
        :param default_replication_factor: likewise.
        :param may_delete_topics: the value in this broker's file; the controller's applies as well.
        :param max_remembered_outcomes: limit of the failed automatic creations that are remembered.
        """
        self._channel = channel
        self._random_bytes = random_bytes
        self._describe_configs = describe_configs
        self._auto_create_timeout_ms = auto_create_timeout_ms
        self._default_partitions = default_partitions or _UNSET
        self._default_replication_factor = default_replication_factor or _UNSET
        self._may_delete_topics = may_delete_topics
        self._max_remembered_outcomes = max_remembered_outcomes
        #: Topics that are being created because a client requested their metadata.
        self._creating: dict[str, asyncio.Future[None]] = {}
        #: Error of the last automatic creation of each topic.
        self._refused: dict[str, ErrorCode] = {}
        self._log = get_logger(component="topic_apis")

    # --- automatic creation ----------------------------------------------------------------------

    async def auto_create(self, names: Iterable[str], context: RequestContext) -> int:
        """Create topics with default settings, and wait for the end of their creation.

        Concurrent requests for a topic share one creation, which uses the quota of the first
        client. A refusal is not raised: :meth:`creation_outcome` returns it.

        :return: the ms that the client has to wait now for its quota. Its connection is delayed.
        """
        names = list(dict.fromkeys(names))
        mutations = _Mutations(context, is_strict=False)
        fresh = [name for name in names if name not in self._creating]
        if fresh:
            asking = asyncio.ensure_future(self._auto_create(fresh, mutations))
            for name in fresh:
                self._creating[name] = asking
        # A client that disconnects does not cancel a creation that others may wait for.
        under_way = {self._creating[name] for name in names if name in self._creating}
        await asyncio.gather(*map(asyncio.shield, under_way))
        return mutations.mute()

    def creation_outcome(self, name: str) -> ErrorCode:
        """Return the error code for a missing topic: that of its failed creation, if there was one.

        Otherwise the code is LEADER_NOT_AVAILABLE.
        """
        return self._refused.get(name, ErrorCode.LEADER_NOT_AVAILABLE)

    async def _auto_create(self, names: list[str], mutations: _Mutations) -> None:
        topics = (self._with_defaults(NewTopic(name=name)) for name in names)
        try:
            outcome = await self._create(topics, self._auto_create_timeout_ms, mutations=mutations)
        finally:
            for name in names:
                del self._creating[name]
        logged = 0
        for created in outcome:
            self._refused.pop(created.name, None)
            if created.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                continue
            logged += 1
            if logged <= MAX_LOGGED_PER_REQUEST:
                self._log.info(
                    "topic_auto_creation_refused",
                    topic=shortened(created.name),
                    why=created.error_code,
                )
            if len(self._refused) >= self._max_remembered_outcomes:
                self._refused.clear()
            self._refused[created.name] = created.error_code

    # --- topics ----------------------------------------------------------------------------------

    async def create_topics(
        self, request: CreateTopicsRequest, context: RequestContext
    ) -> CreateTopicsResponse:
        named = Counter(topic.name for topic in request.topics)
        once = [topic for topic in request.topics if named[topic.name] == 1]
        mutations = _Mutations(context, is_strict=context.api_version >= _CREATE_STRICT_SINCE)
        created = await self._create(
            (self._with_defaults(_new_topic(topic)) for topic in once),
            request.timeout_ms,
            validate_only=request.validate_only,
            refusal=_too_many_partitions(map(self._partition_count, once)),
            mutations=mutations,
        )
        created += [_not_created(name, _NAMED_TWICE) for name, n in named.items() if n > 1]
        results = [_created(topic) for topic in created]
        if context.api_version >= _CONFIGS_SINCE:
            own = {topic.name: _own_configs(topic) for topic in once}
            await self._add_configs(results, own, context.api_version)
        return CreateTopicsResponse(topics=results, throttle_time_ms=mutations.mute())

    async def _add_configs(
        self, results: Iterable[Result], own: Mapping[str, Mapping[str, str]], version: int
    ) -> None:
        """Add the configuration of each new topic to its result (KIP-525). Equal topics share
        it."""
        described: dict[tuple[Any, ...], Sequence[TopicConfigs]] = {}
        async for result in in_slices(results):
            if result.error_code:
                continue
            values = own[result.name]
            key = (result.replication_factor, *sorted(values.items()))
            if key not in described:
                configs = self._describe_configs(values, result.replication_factor)
                parts = [encode_part(version, config) for config in configs]
                described[key] = parts_of(TopicConfigs, parts)
            result.configs = described[key]

    def _with_defaults(self, topic: NewTopic) -> NewTopic:
        if topic.assignments:
            return topic
        count, factor = topic.num_partitions, topic.replication_factor
        return topic.model_copy(
            update={
                "num_partitions": self._default_partitions if count == _UNSET else count,
                "replication_factor": self._default_replication_factor
                if factor == _UNSET
                else factor,
            }
        )

    def _partition_count(self, topic: CreateTopicsRequest.CreatableTopic) -> int:
        if topic.num_partitions == _UNSET:
            return len(topic.assignments) or max(1, self._default_partitions)
        return max(len(topic.assignments), topic.num_partitions)

    async def _create(
        self,
        topics: Iterable[NewTopic],
        timeout_ms: int,
        *,
        mutations: _Mutations,
        validate_only: bool = False,
        refusal: OperatingError | None = None,
    ) -> list[CreatedTopic]:
        if refusal is not None:
            return [_not_created(topic.name, refusal) async for topic in in_slices(topics)]
        return await forward(
            self._channel,
            topics,
            ask=lambda part: rpc_messages.CreateTopicsRequestRpc(
                topics=part,
                validate_only=validate_only,
                topic_ids=tuple(TopicId.random(self._random_bytes) for _ in part),
                charged=mutations.client,
            ),
            outcomes=mutations.outcomes_of,
            refuse=lambda topic, error: _not_created(topic.name, error),
            timeout_ms=timeout_ms,
        )

    async def delete_topics(
        self, request: DeleteTopicsRequest, context: RequestContext
    ) -> DeleteTopicsResponse:
        refs: Iterable[TopicRef]
        if context.api_version >= _DELETE_BY_ID_SINCE:
            refs = (
                TopicRef(name=topic.name, topic_id=TopicId(topic.topic_id))
                for topic in request.topics
            )
        else:
            refs = (TopicRef(name=name) for name in request.topic_names)
        mutations = _Mutations(context, is_strict=context.api_version >= _DELETE_STRICT_SINCE)
        deleted = (
            await self._delete(refs, request.timeout_ms, mutations)
            if self._may_delete_topics
            else [_not_deleted(ref, _DELETION_DISABLED) for ref in refs]
        )
        knows_deletion_disabled = context.api_version >= _DELETION_DISABLED_SINCE
        return DeleteTopicsResponse(
            throttle_time_ms=mutations.mute(),
            responses=[
                DeleteTopicsResponse.DeletableTopicResult(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    error_code=_code_for_version(topic.error_code, knows_deletion_disabled),
                    error_message=topic.error_message,
                )
                for topic in deleted
            ],
        )

    async def _delete(
        self, refs: Iterable[TopicRef], timeout_ms: int, mutations: _Mutations
    ) -> list[DeletedTopic]:
        left = TimeLeft(timeout_ms)
        found = await find_topics(self._channel, refs, timeout_ms=left.ms())
        names = {one.topic_id: one.asked.name for one in found if one.asked.name}
        deleted = await forward(
            self._channel,
            (_found_ref(one) for one in found if not one.error_code),
            ask=lambda part: rpc_messages.DeleteTopicsRequestRpc(
                topics=part, charged=mutations.client
            ),
            outcomes=mutations.outcomes_of,
            refuse=_not_deleted,
            timeout_ms=left.ms(),
        )
        deleted = [_with_requested_name(topic, names.get(topic.topic_id)) for topic in deleted]
        return deleted + [_not_found(one) for one in found if one.error_code]

    async def create_partitions(
        self, request: CreatePartitionsRequest, context: RequestContext
    ) -> CreatePartitionsResponse:
        named = Counter(topic.name for topic in request.topics)
        once = [topic for topic in request.topics if named[topic.name] == 1]
        refusal = _too_many_partitions(topic.count for topic in once)
        mutations = _Mutations(context, is_strict=context.api_version >= _GROW_STRICT_SINCE)
        if refusal is None:
            left = TimeLeft(request.timeout_ms)
            refs = (TopicRef(name=topic.name) for topic in once)
            found = await find_topics(self._channel, refs, timeout_ms=left.ms())
            ids = {one.asked.name: one.topic_id for one in found if not one.error_code}
            grown = await forward(
                self._channel,
                (_more_partitions(topic, ids[topic.name]) for topic in once if topic.name in ids),
                ask=lambda part: rpc_messages.CreatePartitionsRequestRpc(
                    topics=part,
                    validate_only=request.validate_only,
                    charged=mutations.client,
                ),
                outcomes=mutations.outcomes_of,
                refuse=lambda topic, error: _not_grown(topic.name, error),
                timeout_ms=left.ms(),
            )
            grown += [
                GrownTopic(
                    name=one.asked.name or "",
                    error_code=one.error_code,
                    error_message=one.error_message,
                )
                for one in found
                if one.error_code
            ]
        else:
            grown = [_not_grown(topic.name, refusal) for topic in once]
        grown += [_not_grown(name, _NAMED_TWICE) for name, n in named.items() if n > 1]
        return CreatePartitionsResponse(
            throttle_time_ms=mutations.mute(),
            results=[
                CreatePartitionsResponse.CreatePartitionsTopicResult(
                    name=topic.name, error_code=topic.error_code, error_message=topic.error_message
                )
                for topic in grown
            ],
        )


def _too_many_partitions(counts: Iterable[int]) -> OperatingError | None:
    """Return an error if one request may not create so many partitions, else None."""
    if sum(max(count, 0) for count in counts) <= MAX_PARTITIONS_MADE_PER_REQUEST:
        return None
    return OperatingError(
        f"one request may ask for {MAX_PARTITIONS_MADE_PER_REQUEST} partitions; ask for fewer at "
        "a time",
        code=ErrorCode.POLICY_VIOLATION,
    )


def _more_partitions(
    topic: CreatePartitionsRequest.CreatePartitionsTopic, topic_id: TopicId
) -> MorePartitions:
    assignments = topic.assignments
    return MorePartitions(
        name=topic.name,
        topic_id=topic_id,
        count=topic.count,
        assignments=None
        if assignments is None
        else tuple(tuple(map(BrokerId, a.broker_ids)) for a in assignments),
    )


def _not_created(name: str, error: OperatingError) -> CreatedTopic:
    return CreatedTopic(name=name, error_code=error.code, error_message=error.message)


def _found_ref(found: FoundTopic) -> TopicRef:
    """Return a reference by the found id, or the original one if an old controller found no id."""
    return TopicRef(topic_id=found.topic_id) if any(found.topic_id) else found.asked


def _with_requested_name(topic: DeletedTopic, name: str | None) -> DeletedTopic:
    """Return the result with ``name``, the topic's name in the request; None if that had no
    name."""
    if name is None or topic.name is not None:
        return topic
    if topic.error_code is ErrorCode.UNKNOWN_TOPIC_ID:
        gone = OperatingError(
            f"There is no topic '{name}'.", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        return _not_deleted(TopicRef(name=name), gone)
    return topic.model_copy(update={"name": name})


def _not_found(found: FoundTopic) -> DeletedTopic:
    return DeletedTopic(
        name=found.asked.name,
        topic_id=found.asked.topic_id,
        error_code=found.error_code,
        error_message=found.error_message,
    )


def _code_for_version(code: ErrorCode, knows_deletion_disabled: bool) -> ErrorCode:
    """Return the code for a client, with INVALID_REQUEST if it does not know
    TOPIC_DELETION_DISABLED."""
    if code is ErrorCode.TOPIC_DELETION_DISABLED and not knows_deletion_disabled:
        return ErrorCode.INVALID_REQUEST
    return code


def _not_deleted(ref: TopicRef, error: OperatingError) -> DeletedTopic:
    return DeletedTopic(
        name=ref.name, topic_id=ref.topic_id, error_code=error.code, error_message=error.message
    )


def _not_grown(name: str, error: OperatingError) -> GrownTopic:
    return GrownTopic(name=name, error_code=error.code, error_message=error.message)


def _new_topic(topic: CreateTopicsRequest.CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments={
            a.partition_index: tuple(map(BrokerId, a.broker_ids)) for a in topic.assignments
        },
        configs={config.name: config.value for config in topic.configs},
    )


def _own_configs(topic: CreateTopicsRequest.CreatableTopic) -> dict[str, str]:
    """Return the topic's own values. A value of None in the request means the default."""
    return {config.name: config.value for config in topic.configs if config.value is not None}


def _created(topic: CreatedTopic) -> CreateTopicsResponse.CreatableTopicResult:
    return CreateTopicsResponse.CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id or ZERO_UUID,
        error_code=topic.error_code,
        error_message=topic.error_message,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        configs=[],
    )
