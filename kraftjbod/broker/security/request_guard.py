"""LOOP. ``RequestGuard``: authorizes a request before its handler, item by item.

* A guard removes the forbidden items from the request, calls the handler with the others, and adds
  the refusals. So a handler never sees a forbidden item, and a missing topic and a forbidden one
  have the same answer.
* Guards of responses remove what the client may not see, or set authorized operations.
* Produce, Fetch, Metadata and DescribeTopicPartitions check in their handlers, by
  ``RequestContext.access``: they must not allocate per item, or depend on sessions and cursors.
* A broker with an API that has no guard, or no row in the table, does not start (``unguarded``).

``authorizer/api_rights.py`` has the table of the required rights. ADR 113 explains the division.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Any, Final

from kraftjbod.authorizer.api_rights import KAFKA_APIS
from kraftjbod.broker.access import Access
from kraftjbod.broker.cluster.forwarded_client import FORWARDED_CLIENT, ForwardedClient
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.security.authorized_operations import NOT_ASKED
from kraftjbod.core.acl import AclOperation, AclResourceType
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import ZERO_UUID, TopicId
from kraftjbod.net.cluster_actions import refuse_markers
from kraftjbod.protocol import messages as m
from kraftjbod.protocol.kafka_codec import Message

_Op, _Kind = AclOperation, AclResourceType
_T29: Final = ErrorCode.TOPIC_AUTHORIZATION_FAILED
_G30: Final = ErrorCode.GROUP_AUTHORIZATION_FAILED
_C31: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
_X53: Final = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
#: Kafka's message for a refused creation or deletion.
_FAILED: Final = "Authorization failed."
_CLUSTER_FAILED: Final = "Cluster authorization failed."
_BY_ID_SINCE: Final = 10
_KEYS_SINCE: Final = 4
_BY_BROKERS_SINCE: Final = 4
_GROUPS_SINCE: Final = 8
_ERROR_OF_GROUP_SINCE: Final = 2
_DELETE_BY_ID_SINCE: Final = 6
_TOPIC_RESOURCE: Final = 2
_GROUP_RESOURCE: Final = 32
_OF_GROUPS: Final = 0
_NULL_PROTOCOL_SINCE: Final = 7

Call = Callable[[Any], Awaitable[Any]]
"""Calls the handler with a request that has the allowed items only."""
Guard = Callable[["Checked", Any, Call], Awaitable[Any]]


class Checked:
    """The request that a guard checks: the rights of its client, its API version, and the metadata
    for topic names.

    ``topic``, ``group`` and ``transaction`` return whether the client may do an operation on the
    named resource.
    """

    __slots__ = ("access", "cache", "version")

    def __init__(self, access: Access, version: int, cache: MetadataCache) -> None:
        self.access = access
        self.version = version
        self.cache = cache

    def topic(self, operation: AclOperation, name: str) -> bool:
        return self.access.may(operation, _Kind.TOPIC, name)

    def group(self, operation: AclOperation, name: str) -> bool:
        return self.access.may(operation, _Kind.GROUP, name)

    def transaction(self, operation: AclOperation, name: str) -> bool:
        return self.access.may(operation, _Kind.TRANSACTIONAL_ID, name)

    def name_of(self, topic_id: bytes) -> str | None:
        topic = self.cache.state.topics.get(TopicId(bytes(topic_id)))
        return None if topic is None else topic.name


# --- the whole request ---------------------------------------------------------------------------


def _on_cluster(operation: AclOperation, refuse: Callable[[Any, int], Message]) -> Guard:
    """Return a guard that requires ``operation`` on the cluster.

    :param refuse: returns the response to a request and a version.
    """

    async def guard(checked: Checked, request: Any, call: Call) -> Any:
        if checked.access.may_on_cluster(operation):
            return await call(request)
        return refuse(request, checked.version)

    return guard


def _coded(
    response: Callable[..., Message], code: ErrorCode = _C31, **fields: str
) -> Callable[..., Message]:
    """Return a function that creates a response with a top-level error code."""
    return lambda _request, _version: response(error_code=code, **fields)


def _all_on_cluster(
    operation: AclOperation, responses: Mapping[type[Message], Callable[..., Message]]
) -> dict[type[Message], Guard]:
    """Return guards that require ``operation`` on the cluster, by request.

    :param responses: the responses by request; each has an error code and a message.
    """
    return {
        request: _on_cluster(operation, _coded(response, error_message=_CLUSTER_FAILED))
        for request, response in responses.items()
    }


async def _open(_checked: Checked, request: Any, call: Call) -> Any:
    """Call the handler: the API needs no right, or the handler checks it."""
    return await call(request)


# --- topics --------------------------------------------------------------------------------------


def _by_topic(
    operation: AclOperation,
    refuse: Callable[[Any], Any],
    *,
    response: Callable[..., Message],
    name: str = "name",
    or_cluster_action: bool = False,
) -> Guard:
    """Return a guard of a request and a response with ``topics`` in the same order.

    :param refuse: returns the result of a refused topic of the request.
    """

    async def guard(checked: Checked, request: Any, call: Call) -> Any:
        is_broker = or_cluster_action and checked.access.may_see(
            _Op.CLUSTER_ACTION, _Kind.CLUSTER, "kafka-cluster"
        )
        if is_broker:
            return await call(request)
        return await _split(
            request,
            lambda topic: checked.topic(operation, getattr(topic, name)),
            refuse,
            call,
            response,
        )

    return guard


async def _split(
    request: Any,
    is_allowed: Callable[[Any], bool],
    refuse: Callable[[Any], Any],
    call: Call,
    response: Callable[..., Message],
    *,
    items: str = "topics",
    results: str = "topics",
) -> Any:
    """Call the handler with the allowed items, and merge the refusals by the request's order."""
    wanted = getattr(request, items)
    verdicts = [is_allowed(one) for one in wanted]
    if all(verdicts):
        return await call(request)
    allowed = [one for one, may in zip(wanted, verdicts, strict=True) if may]
    answer: Any = response()
    if allowed:
        setattr(request, items, allowed)
        answer = await call(request)
    found = list(getattr(answer, results))
    if allowed and len(found) != len(allowed):
        # The handler refused the request as a whole, or combined its items.
        refused = [refuse(one) for one, may in zip(wanted, verdicts, strict=True) if not may]
        setattr(answer, results, [*found, *refused])
        return answer
    in_order = iter(found)
    merged = [
        next(in_order) if may else refuse(one) for one, may in zip(wanted, verdicts, strict=True)
    ]
    setattr(answer, results, merged)
    return answer


def _refuse_list_offsets(topic: Any) -> Any:
    kinds = m.ListOffsetsResponse
    return kinds.ListOffsetsTopicResponse(
        name=topic.name,
        partitions=[
            kinds.ListOffsetsPartitionResponse(
                partition_index=part.partition_index, error_code=_T29, offset=-1, timestamp=-1
            )
            for part in topic.partitions
        ],
    )


def _refuse_epochs(topic: Any) -> Any:
    kinds = m.OffsetForLeaderEpochResponse
    return kinds.OffsetForLeaderTopicResult(
        topic=topic.topic,
        partitions=[
            kinds.EpochEndOffset(partition=part.partition, error_code=_T29)
            for part in topic.partitions
        ],
    )


def _refuse_deletion(topic: Any) -> Any:
    kinds = m.DeleteRecordsResponse
    return kinds.DeleteRecordsTopicResult(
        name=topic.name,
        partitions=[
            kinds.DeleteRecordsPartitionResult(
                partition_index=part.partition_index, low_watermark=-1, error_code=_T29
            )
            for part in topic.partitions
        ],
    )


def _refuse_producers(topic: Any) -> Any:
    kinds = m.DescribeProducersResponse
    return kinds.TopicResponse(
        name=topic.name,
        partitions=[
            kinds.PartitionResponse(partition_index=index, error_code=_T29)
            for index in topic.partition_indexes
        ],
    )


async def _create_topics(checked: Checked, request: Any, call: Call) -> Any:
    access, kinds = checked.access, m.CreateTopicsResponse
    wanted = list(request.topics)
    verdicts = {
        name: access.may_on_cluster_or(_Op.CREATE, _Kind.TOPIC, name)
        for name in dict.fromkeys(topic.name for topic in wanted)
    }
    answer = kinds(topics=[])
    request.topics = [topic for topic in wanted if verdicts[topic.name]]
    if request.topics:
        answer = await call(request)
    for result in answer.topics:
        if not result.error_code and not access.may_see(
            _Op.DESCRIBE_CONFIGS, _Kind.TOPIC, result.name
        ):
            result.topic_config_error_code = _T29
            result.num_partitions = result.replication_factor = -1
            result.configs = []
    refused = [
        kinds.CreatableTopicResult(
            name=name,
            topic_id=ZERO_UUID,
            error_code=_T29,
            error_message=_FAILED,
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
        for name, may in verdicts.items()
        if not may
    ]
    answer.topics = [*answer.topics, *refused]
    return answer


async def _delete_topics(checked: Checked, request: Any, call: Call) -> Any:
    access, kinds = checked.access, m.DeleteTopicsResponse
    refused: list[Any] = []

    def is_allowed(name: str | None, topic_id: bytes) -> bool:
        is_by_id = name is None
        name = checked.name_of(topic_id) if name is None else name
        if name is None:
            return True  # The handler answers UNKNOWN_TOPIC_ID.
        if access.may_on_cluster_or(_Op.DELETE, _Kind.TOPIC, name):
            return True
        is_known = not is_by_id or access.may_see(_Op.DESCRIBE, _Kind.TOPIC, name)
        refused.append(
            kinds.DeletableTopicResult(
                name=name if is_known else None,
                topic_id=topic_id if is_by_id else ZERO_UUID,
                error_code=_T29,
                error_message=_FAILED,
            )
        )
        return False

    if checked.version >= _DELETE_BY_ID_SINCE:
        request.topics = [one for one in request.topics if is_allowed(one.name, one.topic_id)]
        is_empty = not request.topics
    else:
        names = dict.fromkeys(request.topic_names)
        request.topic_names = [name for name in names if is_allowed(name, ZERO_UUID)]
        is_empty = not request.topic_names
    answer = kinds(responses=[]) if is_empty and refused else await call(request)
    answer.responses = [*answer.responses, *refused]
    return answer


async def _create_partitions(checked: Checked, request: Any, call: Call) -> Any:
    result = m.CreatePartitionsResponse.CreatePartitionsTopicResult
    return await _split(
        request,
        lambda topic: checked.topic(_Op.ALTER, topic.name),
        lambda topic: result(name=topic.name, error_code=_T29, error_message=_FAILED),
        call,
        m.CreatePartitionsResponse,
        results="results",
    )


# --- configurations ------------------------------------------------------------------------------


def _of_configs(
    operation: AclOperation, response: Callable[..., Message], result: Callable[..., Any], name: str
) -> Guard:
    """Return a guard of a request with ``resources``.

    :param result: creates the result of a refused resource.
    :param name: the attribute of the response with the results.
    """

    def code_of(checked: Checked, resource: Any) -> ErrorCode:
        kind, named = resource.resource_type, resource.resource_name
        if kind == _TOPIC_RESOURCE:
            return ErrorCode.NONE if checked.topic(operation, named) else _T29
        if kind == _GROUP_RESOURCE:
            return ErrorCode.NONE if checked.group(operation, named) else _G30
        return ErrorCode.NONE if checked.access.may_on_cluster(operation) else _C31

    async def guard(checked: Checked, request: Any, call: Call) -> Any:
        codes = [(one, code_of(checked, one)) for one in request.resources]
        refused = [
            result(
                error_code=code,
                error_message=_FAILED,
                resource_type=one.resource_type,
                resource_name=one.resource_name,
            )
            for one, code in codes
            if code
        ]
        if not refused:
            return await call(request)
        request.resources = [one for one, code in codes if not code]
        answer: Any = await call(request) if request.resources else response()
        setattr(answer, name, [*getattr(answer, name), *refused])
        return answer

    return guard


# --- groups --------------------------------------------------------------------------------------


def _of_group(operation: AclOperation, refuse: Callable[[Any, int], Message]) -> Guard:
    """Return a guard that requires ``operation`` on the group ``group_id`` of the request."""

    async def guard(checked: Checked, request: Any, call: Call) -> Any:
        if checked.group(operation, request.group_id):
            return await call(request)
        return refuse(request, checked.version)

    return guard


def _refuse_join(_request: Any, version: int) -> Message:
    return m.JoinGroupResponse(
        error_code=_G30,
        generation_id=-1,
        protocol_type=None,
        protocol_name=None if version >= _NULL_PROTOCOL_SINCE else "",
        leader="",
        member_id="",
        members=[],
    )


async def _find_coordinator(checked: Checked, request: Any, call: Call) -> Any:
    is_group = request.key_type == _OF_GROUPS
    kind, code = (_Kind.GROUP, _G30) if is_group else (_Kind.TRANSACTIONAL_ID, _X53)
    kinds = m.FindCoordinatorResponse
    if checked.version < _KEYS_SINCE:
        if checked.access.may(_Op.DESCRIBE, kind, request.key):
            return await call(request)
        return kinds(error_code=code, error_message=_FAILED, node_id=-1, host="", port=-1)
    request.coordinator_keys = list(request.coordinator_keys)
    return await _split(
        request,
        lambda key: checked.access.may(_Op.DESCRIBE, kind, key),
        lambda key: kinds.Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=code, error_message=None
        ),
        call,
        kinds,
        items="coordinator_keys",
        results="coordinators",
    )


async def _offset_commit(checked: Checked, request: Any, call: Call) -> Any:
    kinds = m.OffsetCommitResponse

    def refuse(topic: Any, code: ErrorCode) -> Any:
        return kinds.OffsetCommitResponseTopic(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                kinds.OffsetCommitResponsePartition(
                    partition_index=part.partition_index, error_code=code
                )
                for part in topic.partitions
            ],
        )

    if not checked.group(_Op.READ, request.group_id):
        return kinds(topics=[refuse(topic, _G30) for topic in request.topics])

    def is_allowed(topic: Any) -> bool:
        is_by_id = checked.version >= _BY_ID_SINCE
        name = checked.name_of(topic.topic_id) if is_by_id else topic.name
        return name is None or checked.topic(_Op.READ, name)

    return await _split(request, is_allowed, lambda topic: refuse(topic, _T29), call, kinds)


async def _txn_offset_commit(checked: Checked, request: Any, call: Call) -> Any:
    kinds = m.TxnOffsetCommitResponse

    def refuse(topic: Any, code: ErrorCode) -> Any:
        return kinds.TxnOffsetCommitResponseTopic(
            name=topic.name,
            partitions=[
                kinds.TxnOffsetCommitResponsePartition(
                    partition_index=part.partition_index, error_code=code
                )
                for part in topic.partitions
            ],
        )

    code = ErrorCode.NONE
    if not checked.transaction(_Op.WRITE, request.transactional_id):
        code = _X53
    elif not checked.group(_Op.READ, request.group_id):
        code = _G30
    if code:
        return kinds(topics=[refuse(topic, code) for topic in request.topics])
    return await _split(
        request,
        lambda topic: checked.topic(_Op.READ, topic.name),
        lambda topic: refuse(topic, _T29),
        call,
        kinds,
    )


async def _offset_fetch(checked: Checked, request: Any, call: Call) -> Any:
    if checked.version < _GROUPS_SINCE:
        return await _offset_fetch_of_one(checked, request, call)
    kinds = m.OffsetFetchResponse
    refused: dict[int, Any] = {}
    hidden: dict[int, list[Any]] = {}
    allowed: list[Any] = []
    wanted = list(request.groups)
    for index, group in enumerate(wanted):
        if not checked.group(_Op.DESCRIBE, group.group_id):
            refused[index] = kinds.OffsetFetchResponseGroup(
                group_id=group.group_id, error_code=_G30
            )
            continue
        if group.topics is not None:
            shown, hidden[index] = _partition(
                group.topics, lambda topic: _may_describe(checked, topic)
            )
            group.topics = shown
        allowed.append(group)
    request.groups = allowed
    answered = iter((await call(request)).groups if allowed else ())
    groups = []
    for index, group in enumerate(wanted):
        if index in refused:
            groups.append(refused[index])
            continue
        answer = next(answered)
        if group.topics is None:
            answer.topics = [
                one
                for one in answer.topics
                if checked.access.may_see(
                    _Op.DESCRIBE, _Kind.TOPIC, one.name or checked.name_of(one.topic_id) or ""
                )
            ]
        elif not answer.error_code:
            unseen = [
                kinds.OffsetFetchResponseTopics(
                    name=topic.name,
                    topic_id=topic.topic_id,
                    partitions=_unfetched(
                        kinds.OffsetFetchResponsePartitions, topic.partition_indexes, _T29
                    ),
                )
                for topic in hidden[index]
            ]
            answer.topics = [*answer.topics, *unseen]
        groups.append(answer)
    return kinds(groups=groups)


def _may_describe(checked: Checked, topic: Any) -> bool:
    is_by_id = checked.version >= _BY_ID_SINCE
    name = checked.name_of(topic.topic_id) if is_by_id else topic.name
    return name is None or checked.topic(_Op.DESCRIBE, name)


def _partition(
    items: Iterable[Any], is_allowed: Callable[[Any], bool]
) -> tuple[list[Any], list[Any]]:
    """Return the allowed items and the others."""
    allowed: list[Any] = []
    others: list[Any] = []
    for one in items:
        (allowed if is_allowed(one) else others).append(one)
    return allowed, others


def _unfetched(kind: Callable[..., Any], indexes: Iterable[int], code: ErrorCode) -> list[Any]:
    return [
        kind(
            partition_index=index,
            committed_offset=-1,
            committed_leader_epoch=-1,
            metadata="",
            error_code=code,
        )
        for index in indexes
    ]


async def _offset_fetch_of_one(checked: Checked, request: Any, call: Call) -> Any:
    kinds = m.OffsetFetchResponse

    def refuse(topics: Iterable[Any], code: ErrorCode) -> list[Any]:
        return [
            kinds.OffsetFetchResponseTopic(
                name=topic.name,
                partitions=_unfetched(
                    kinds.OffsetFetchResponsePartition, topic.partition_indexes, code
                ),
            )
            for topic in topics
        ]

    if not checked.group(_Op.DESCRIBE, request.group_id):
        if checked.version >= _ERROR_OF_GROUP_SINCE:
            return kinds(error_code=_G30)
        return kinds(topics=refuse(request.topics or (), _G30))
    if request.topics is None:
        answer = await call(request)
        answer.topics = [
            one
            for one in answer.topics
            if checked.access.may_see(_Op.DESCRIBE, _Kind.TOPIC, one.name)
        ]
        return answer
    request.topics, hidden = _partition(
        request.topics, lambda topic: checked.topic(_Op.DESCRIBE, topic.name)
    )
    answer = await call(request)
    if not answer.error_code:
        answer.topics = [*answer.topics, *refuse(hidden, _T29)]
    return answer


async def _offset_delete(checked: Checked, request: Any, call: Call) -> Any:
    kinds = m.OffsetDeleteResponse
    if not checked.group(_Op.DELETE, request.group_id):
        return kinds(error_code=_G30)
    request.topics, hidden = _partition(
        request.topics, lambda topic: checked.topic(_Op.READ, topic.name)
    )
    answer = await call(request) if request.topics or not hidden else kinds()
    if not answer.error_code:
        refused = [
            kinds.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    kinds.OffsetDeleteResponsePartition(
                        partition_index=part.partition_index, error_code=_T29
                    )
                    for part in topic.partitions
                ],
            )
            for topic in hidden
        ]
        answer.topics = [*answer.topics, *refused]
    return answer


async def _describe_groups(checked: Checked, request: Any, call: Call) -> Any:
    kinds, asks = m.DescribeGroupsResponse, request.include_authorized_operations
    request.groups, hidden = _partition(
        dict.fromkeys(request.groups), lambda name: checked.group(_Op.DESCRIBE, name)
    )
    answer = await call(request)
    _set_operations(checked, answer.groups, asks=asks)
    refused = [
        kinds.DescribedGroup(group_id=name, error_code=_G30, authorized_operations=NOT_ASKED)
        for name in hidden
    ]
    answer.groups = [*answer.groups, *refused]
    return answer


def _set_operations(checked: Checked, groups: Iterable[Any], *, asks: bool) -> None:
    for group in groups:
        if asks and not group.error_code:
            group.authorized_operations = checked.access.operations_on(_Kind.GROUP, group.group_id)


async def _describe_consumer_groups(checked: Checked, request: Any, call: Call) -> Any:
    kinds, asks = m.ConsumerGroupDescribeResponse, request.include_authorized_operations
    request.group_ids, hidden = _partition(
        dict.fromkeys(request.group_ids), lambda name: checked.group(_Op.DESCRIBE, name)
    )
    answer = await call(request)
    _set_operations(checked, answer.groups, asks=asks)
    for group in answer.groups:
        names = {name for member in group.members for name in _topics_of(member)}
        if not all(checked.access.may_see(_Op.DESCRIBE, _Kind.TOPIC, name) for name in names):
            group.error_code = _T29
            group.error_message = (
                "The group has described topic(s) that the client is not authorized to describe."
            )
            group.members = []
    refused = [
        kinds.DescribedGroup(
            group_id=name,
            error_code=_G30,
            error_message=None,
            authorized_operations=NOT_ASKED,
        )
        for name in hidden
    ]
    answer.groups = [*answer.groups, *refused]
    return answer


def _topics_of(member: Any) -> Iterable[str]:
    for assignment in (member.assignment, member.target_assignment):
        if assignment is not None:
            yield from (topic.topic_name for topic in assignment.topic_partitions)


async def _list_groups(checked: Checked, request: Any, call: Call) -> Any:
    answer = await call(request)
    if not checked.access.may_see(_Op.DESCRIBE, _Kind.CLUSTER, "kafka-cluster"):
        answer.groups = [
            group
            for group in answer.groups
            if checked.access.may_see(_Op.DESCRIBE, _Kind.GROUP, group.group_id)
        ]
    return answer


async def _delete_groups(checked: Checked, request: Any, call: Call) -> Any:
    kinds = m.DeleteGroupsResponse
    request.groups_names, hidden = _partition(
        dict.fromkeys(request.groups_names), lambda name: checked.group(_Op.DELETE, name)
    )
    answer = await call(request)
    refused = [kinds.DeletableGroupResult(group_id=name, error_code=_G30) for name in hidden]
    answer.results = [*answer.results, *refused]
    return answer


async def _consumer_group_heartbeat(checked: Checked, request: Any, call: Call) -> Any:
    kinds = m.ConsumerGroupHeartbeatResponse
    if not checked.group(_Op.READ, request.group_id):
        return kinds(error_code=_G30, error_message=None, member_id=None, assignment=None)
    names = request.subscribed_topic_names or ()
    if not all([checked.topic(_Op.DESCRIBE, name) for name in names]):
        return kinds(error_code=_T29, error_message=None, member_id=None, assignment=None)
    return await call(request)


# --- transactions --------------------------------------------------------------------------------


async def _init_producer_id(checked: Checked, request: Any, call: Call) -> Any:
    code = ErrorCode.NONE
    if request.transactional_id is not None:
        if not checked.transaction(_Op.WRITE, request.transactional_id):
            code = _X53
    elif not (
        checked.access.may_see(_Op.IDEMPOTENT_WRITE, _Kind.CLUSTER, "kafka-cluster")
        or checked.access.may_write_a_topic()
        or checked.access.may_on_cluster(_Op.IDEMPOTENT_WRITE)
    ):
        code = _C31
    if not code:
        return await call(request)
    return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)


async def _add_partitions_to_txn(checked: Checked, request: Any, call: Call) -> Any:
    kinds = m.AddPartitionsToTxnResponse
    if checked.version >= _BY_BROKERS_SINCE:
        if checked.access.may_on_cluster(_Op.CLUSTER_ACTION):
            return await call(request)
        return kinds(error_code=_C31)
    topics = request.v3_and_below_topics
    is_producer = checked.transaction(_Op.WRITE, request.v3_and_below_transactional_id)
    verdicts = {
        topic.name: is_producer and checked.topic(_Op.WRITE, topic.name) for topic in topics
    }
    if is_producer and all(verdicts.values()):
        return await call(request)

    def code_of(name: str) -> ErrorCode:
        if not is_producer:
            return _X53
        return ErrorCode.OPERATION_NOT_ATTEMPTED if verdicts[name] else _T29

    return kinds(
        results_by_topic_v3_and_below=[
            kinds.AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    kinds.AddPartitionsToTxnPartitionResult(
                        partition_index=index, partition_error_code=code_of(topic.name)
                    )
                    for index in topic.partitions
                ],
            )
            for topic in topics
        ]
    )


async def _add_offsets_to_txn(checked: Checked, request: Any, call: Call) -> Any:
    if not checked.transaction(_Op.WRITE, request.transactional_id):
        return m.AddOffsetsToTxnResponse(error_code=_X53)
    if not checked.group(_Op.READ, request.group_id):
        return m.AddOffsetsToTxnResponse(error_code=_G30)
    return await call(request)


async def _end_txn(checked: Checked, request: Any, call: Call) -> Any:
    if not checked.transaction(_Op.WRITE, request.transactional_id):
        return m.EndTxnResponse(error_code=_X53, producer_id=-1, producer_epoch=-1)
    return await call(request)


async def _write_txn_markers(checked: Checked, request: Any, call: Call) -> Any:
    is_alter = checked.access.may_see(_Op.ALTER, _Kind.CLUSTER, "kafka-cluster")
    if is_alter or checked.access.may_on_cluster(_Op.CLUSTER_ACTION):
        return await call(request)
    return refuse_markers(request)


async def _describe_transactions(checked: Checked, request: Any, call: Call) -> Any:
    kinds = m.DescribeTransactionsResponse
    request.transactional_ids, hidden = _partition(
        dict.fromkeys(request.transactional_ids),
        lambda name: checked.transaction(_Op.DESCRIBE, name),
    )
    answer = await call(request)
    for state in answer.transaction_states:
        state.topics = [
            topic
            for topic in state.topics
            if checked.access.may_see(_Op.DESCRIBE, _Kind.TOPIC, topic.topic)
        ]
    refused = [kinds.TransactionState(transactional_id=name, error_code=_X53) for name in hidden]
    answer.transaction_states = [*answer.transaction_states, *refused]
    return answer


async def _list_transactions(checked: Checked, request: Any, call: Call) -> Any:
    answer = await call(request)
    answer.transaction_states = [
        state
        for state in answer.transaction_states
        if checked.access.may_see(_Op.DESCRIBE, _Kind.TRANSACTIONAL_ID, state.transactional_id)
    ]
    return answer


# --- the cluster ---------------------------------------------------------------------------------


def _refuse_log_dirs(request: Any, _version: int) -> Message:
    """Return C31 for each requested partition, as Kafka does for AlterReplicaLogDirs."""
    kinds = m.AlterReplicaLogDirsResponse
    by_topic: dict[str, list[int]] = {}
    for one in request.dirs:
        for topic in one.topics:
            by_topic.setdefault(topic.name, []).extend(topic.partitions)
    return kinds(
        results=[
            kinds.AlterReplicaLogDirTopicResult(
                topic_name=name,
                partitions=[
                    kinds.AlterReplicaLogDirPartitionResult(partition_index=index, error_code=_C31)
                    for index in indexes
                ],
            )
            for name, indexes in by_topic.items()
        ]
    )


def _refuse_elections(request: Any, version: int) -> Message:
    kinds = m.ElectLeadersResponse
    if version:
        return kinds(error_code=_C31)
    return kinds(
        replica_election_results=[
            kinds.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    kinds.PartitionResult(
                        partition_id=index, error_code=_C31, error_message=_CLUSTER_FAILED
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ]
    )


def _refuse_acl_creations(request: Any, _version: int) -> Message:
    kinds = m.CreateAclsResponse
    return kinds(
        results=[
            kinds.AclCreationResult(error_code=_C31, error_message=_CLUSTER_FAILED)
            for _ in request.creations
        ]
    )


def _refuse_acl_deletions(request: Any, _version: int) -> Message:
    kinds = m.DeleteAclsResponse
    return kinds(
        filter_results=[
            kinds.DeleteAclsFilterResult(error_code=_C31, error_message=_CLUSTER_FAILED)
            for _ in request.filters
        ]
    )


def _refuse_scram_changes(request: Any, _version: int) -> Message:
    """Return C31 once per user, as Kafka does."""
    kinds = m.AlterUserScramCredentialsResponse
    users = dict.fromkeys(one.name for one in (*request.deletions, *request.upsertions))
    return kinds(
        results=[
            kinds.AlterUserScramCredentialsResult(
                user=user, error_code=_C31, error_message=_CLUSTER_FAILED
            )
            for user in users
        ]
    )


def _refuse_quota_changes(request: Any, _version: int) -> Message:
    kinds = m.AlterClientQuotasResponse
    return kinds(
        entries=[
            kinds.EntryData(
                error_code=_C31,
                error_message=_CLUSTER_FAILED,
                entity=[
                    kinds.EntityData(entity_type=one.entity_type, entity_name=one.entity_name)
                    for one in entry.entity
                ],
            )
            for entry in request.entries
        ]
    )


def _refuse_quota_description(_request: Any, _version: int) -> Message:
    return m.DescribeClientQuotasResponse(
        error_code=_C31, error_message=_CLUSTER_FAILED, entries=None
    )


async def _describe_cluster(checked: Checked, request: Any, call: Call) -> Any:
    answer = await call(request)
    if request.include_cluster_authorized_operations and not answer.error_code:
        answer.cluster_authorized_operations = checked.access.operations_on_cluster()
    return answer


_GUARDS: Final[Mapping[type[Message], Guard]] = {
    m.ProduceRequest: _open,
    m.FetchRequest: _open,
    m.MetadataRequest: _open,
    m.DescribeTopicPartitionsRequest: _open,
    m.SaslHandshakeRequest: _open,
    m.SaslAuthenticateRequest: _open,
    m.ListOffsetsRequest: _by_topic(
        _Op.DESCRIBE, _refuse_list_offsets, response=m.ListOffsetsResponse
    ),
    m.OffsetForLeaderEpochRequest: _by_topic(
        _Op.DESCRIBE,
        _refuse_epochs,
        response=m.OffsetForLeaderEpochResponse,
        name="topic",
        or_cluster_action=True,
    ),
    m.DeleteRecordsRequest: _by_topic(
        _Op.DELETE, _refuse_deletion, response=m.DeleteRecordsResponse
    ),
    m.DescribeProducersRequest: _by_topic(
        _Op.READ, _refuse_producers, response=m.DescribeProducersResponse
    ),
    m.CreateTopicsRequest: _create_topics,
    m.DeleteTopicsRequest: _delete_topics,
    m.CreatePartitionsRequest: _create_partitions,
    m.DescribeConfigsRequest: _of_configs(
        _Op.DESCRIBE_CONFIGS,
        m.DescribeConfigsResponse,
        m.DescribeConfigsResponse.DescribeConfigsResult,
        "results",
    ),
    m.AlterConfigsRequest: _of_configs(
        _Op.ALTER_CONFIGS,
        m.AlterConfigsResponse,
        m.AlterConfigsResponse.AlterConfigsResourceResponse,
        "responses",
    ),
    m.IncrementalAlterConfigsRequest: _of_configs(
        _Op.ALTER_CONFIGS,
        m.IncrementalAlterConfigsResponse,
        m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse,
        "responses",
    ),
    m.ListConfigResourcesRequest: _on_cluster(
        _Op.DESCRIBE_CONFIGS, _coded(m.ListConfigResourcesResponse)
    ),
    m.ElectLeadersRequest: _on_cluster(_Op.ALTER, _refuse_elections),
    **_all_on_cluster(
        _Op.ALTER,
        {
            m.UnregisterBrokerRequest: m.UnregisterBrokerResponse,
            m.UnregisterControllerRequest: m.UnregisterControllerResponse,
            m.AddRaftVoterRequest: m.AddRaftVoterResponse,
            m.RemoveRaftVoterRequest: m.RemoveRaftVoterResponse,
            m.UpdateFeaturesRequest: m.UpdateFeaturesResponse,
            m.AlterPartitionReassignmentsRequest: m.AlterPartitionReassignmentsResponse,
        },
    ),
    **_all_on_cluster(
        _Op.DESCRIBE,
        {
            m.ListPartitionReassignmentsRequest: m.ListPartitionReassignmentsResponse,
            m.DescribeAclsRequest: m.DescribeAclsResponse,
            m.DescribeUserScramCredentialsRequest: m.DescribeUserScramCredentialsResponse,
        },
    ),
    m.DescribeQuorumRequest: _on_cluster(_Op.DESCRIBE, _coded(m.DescribeQuorumResponse)),
    m.DescribeLogDirsRequest: _on_cluster(_Op.DESCRIBE, _coded(m.DescribeLogDirsResponse)),
    m.AlterReplicaLogDirsRequest: _on_cluster(_Op.ALTER, _refuse_log_dirs),
    m.AlterLogDirsRequest: _on_cluster(
        _Op.ALTER, _coded(m.AlterLogDirsResponse, message=_CLUSTER_FAILED)
    ),
    m.CreateAclsRequest: _on_cluster(_Op.ALTER, _refuse_acl_creations),
    m.DeleteAclsRequest: _on_cluster(_Op.ALTER, _refuse_acl_deletions),
    m.AlterUserScramCredentialsRequest: _on_cluster(_Op.ALTER, _refuse_scram_changes),
    m.DescribeClientQuotasRequest: _on_cluster(_Op.DESCRIBE_CONFIGS, _refuse_quota_description),
    m.AlterClientQuotasRequest: _on_cluster(_Op.ALTER_CONFIGS, _refuse_quota_changes),
    m.DescribeClusterRequest: _describe_cluster,
    m.FindCoordinatorRequest: _find_coordinator,
    m.JoinGroupRequest: _of_group(_Op.READ, _refuse_join),
    m.SyncGroupRequest: _of_group(_Op.READ, _coded(m.SyncGroupResponse, _G30)),
    m.HeartbeatRequest: _of_group(_Op.READ, _coded(m.HeartbeatResponse, _G30)),
    m.LeaveGroupRequest: _of_group(_Op.READ, _coded(m.LeaveGroupResponse, _G30)),
    m.OffsetCommitRequest: _offset_commit,
    m.OffsetFetchRequest: _offset_fetch,
    m.OffsetDeleteRequest: _offset_delete,
    m.TxnOffsetCommitRequest: _txn_offset_commit,
    m.DescribeGroupsRequest: _describe_groups,
    m.ListGroupsRequest: _list_groups,
    m.DeleteGroupsRequest: _delete_groups,
    m.ConsumerGroupHeartbeatRequest: _consumer_group_heartbeat,
    m.ConsumerGroupDescribeRequest: _describe_consumer_groups,
    m.InitProducerIdRequest: _init_producer_id,
    m.AddPartitionsToTxnRequest: _add_partitions_to_txn,
    m.AddOffsetsToTxnRequest: _add_offsets_to_txn,
    m.EndTxnRequest: _end_txn,
    m.WriteTxnMarkersRequest: _write_txn_markers,
    m.DescribeTransactionsRequest: _describe_transactions,
    m.ListTransactionsRequest: _list_transactions,
}


def unguarded(kinds: Iterable[type[Message]]) -> list[str]:
    """Return the names of the requests that have no guard, or no row in the table of rights."""
    return [
        kind.__name__
        for kind in kinds
        if kind not in _GUARDS or kind.__name__.removesuffix("Request") not in KAFKA_APIS
    ]


class RequestGuard:
    """Authorizes requests, and calls each handler with the allowed items of its request.

    Only brokers with an authorizer have a guard.
    """

    def __init__(
        self,
        *,
        cache: MetadataCache,
        make_access: Callable[[RequestContext, str], Access],
        checked_by_handler: Collection[type[Message]] = (m.ProduceRequest, m.FetchRequest),
    ) -> None:
        """Create a guard.

        :param make_access: creates the access of a request from its context and its API's name.
        :param checked_by_handler: requests that must be answered without a task.
        """
        self._cache = cache
        self._make_access = make_access
        self._is_direct = frozenset(checked_by_handler)

    def handle(
        self,
        request: Message,
        context: RequestContext,
        handler: Callable[[Any, RequestContext], Awaitable[Message | None]],
    ) -> Awaitable[Message | None]:
        kind = type(request)
        access = self._make_access(context, kind.__name__.removesuffix("Request"))
        context = context.with_access(access)
        if kind in self._is_direct:
            return handler(request, context)
        return self._guarded(kind, request, context, access, handler)

    async def _guarded(
        self,
        kind: type[Message],
        request: Message,
        context: RequestContext,
        access: Access,
        handler: Callable[[Any, RequestContext], Awaitable[Message | None]],
    ) -> Message | None:
        token = FORWARDED_CLIENT.set(ForwardedClient(access.principal, access.host))
        try:
            checked = Checked(access, context.api_version, self._cache)
            answer: Message | None = await _GUARDS[kind](
                checked, request, lambda allowed: handler(allowed, context)
            )
        finally:
            FORWARDED_CLIENT.reset(token)
        return answer
