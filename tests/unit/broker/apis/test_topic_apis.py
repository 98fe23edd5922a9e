"""CreateTopics, DeleteTopics, CreatePartitions (forwarded to the controller) and InitProducerId."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from kraftjbod.core.errors import ErrorCode, NotControllerError, OperatingError
from kraftjbod.core.ids import TopicId
from kraftjbod.core.request_limits import (
    MAX_FORWARDED_ITEMS,
    MAX_ITEMS_PER_REQUEST,
    MAX_PARTITIONS_MADE_PER_REQUEST,
)
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol.kafka_codec import message
from kraftjbod.protocol.rpc_config_messages import ConfigSource
from kraftjbod.protocol.rpc_messages import (
    CreatedTopic,
    CreatePartitionsRequestRpc,
    CreatePartitionsResponseRpc,
    CreateTopicsRequestRpc,
    CreateTopicsResponseRpc,
    DeletedTopic,
    DeleteTopicsRequestRpc,
    DeleteTopicsResponseRpc,
    FindTopicsRequest,
    FindTopicsResponse,
    FoundTopic,
    GrownTopic,
    OnceOnlyRequest,
    RpcRequest,
    RpcResponse,
)
from tests.golden.transcript import World
from tests.unit.broker.broker_rig import TOPIC_ID, accept, brokers

CREATE, DELETE = message("CreateTopicsRequest"), message("DeleteTopicsRequest")
METADATA = message("MetadataRequest")
GROW, INIT = message("CreatePartitionsRequest"), message("InitProducerIdRequest")


def answer(request: RpcRequest) -> RpcResponse:
    match request:
        case FindTopicsRequest():
            return FindTopicsResponse(
                topics=tuple(
                    FoundTopic(asked=ref, topic_id=TopicId((ref.name or "").encode().ljust(16)))
                    for ref in request.topics
                )
            )
        case CreateTopicsRequestRpc():
            return CreateTopicsResponseRpc(
                topics=tuple(
                    CreatedTopic(name=t.name, topic_id=TOPIC_ID, num_partitions=t.num_partitions)
                    for t in request.topics
                )
            )
        case DeleteTopicsRequestRpc():
            return DeleteTopicsResponseRpc(
                topics=tuple(DeletedTopic(name=t.name, topic_id=t.topic_id) for t in request.topics)
            )
        case CreatePartitionsRequestRpc():
            return CreatePartitionsResponseRpc(
                topics=tuple(GrownTopic(name=t.name) for t in request.topics)
            )
        case _:
            return accept(request)


async def test_create_topics_response_contains_topic_configs() -> None:
    """KIP-525: since version 5, sorted by name, each value with its source."""

    def created(request: RpcRequest) -> RpcResponse:
        if not isinstance(request, CreateTopicsRequestRpc):
            return accept(request)
        exists = ErrorCode.TOPIC_ALREADY_EXISTS
        return CreateTopicsResponseRpc(
            topics=tuple(
                CreatedTopic(name=t.name, error_code=exists)
                if t.name == "old"
                else CreatedTopic(name=t.name, num_partitions=3, replication_factor=2)
                for t in request.topics
            )
        )

    def asked(name: str, **own: str | None) -> object:
        kind = CREATE.CreatableTopicConfig
        configs = [kind(name=key.replace("_", "."), value=value) for key, value in own.items()]
        return CREATE.CreatableTopic(
            name=name, num_partitions=3, replication_factor=2, configs=configs
        )

    topics = [asked("a", retention_ms="5", flush_ms=None), asked("b"), asked("old")]
    async with brokers(answer=created, log_segment_bytes="4096") as (rig,):
        for validate_only in (False, True):
            request = CREATE(topics=topics, timeout_ms=5_000, validate_only=validate_only)
            found = {t.name: t for t in (await rig.ask(request, 7)).topics}
            names = [config.name for config in found["a"].configs]
            assert names == sorted(TopicConfig.keys())
            own = {c.name: (c.value, c.config_source) for c in found["a"].configs}
            assert own["retention.ms"] == ("5", ConfigSource.TOPIC)
            assert own["segment.bytes"] == ("4096", ConfigSource.STATIC_BROKER)
            assert own["flush.ms"] == (str(2**63 - 1), ConfigSource.DEFAULT)
            # The rig sets this value for the whole cluster.
            assert own["min.insync.replicas"] == ("1", ConfigSource.DYNAMIC_DEFAULT_BROKER)
            plain = {c.name: c.value for c in found["b"].configs}
            assert plain["retention.ms"] == "604800000"
            assert (found["old"].error_code, found["old"].configs) == (36, [])
        assert (await rig.ask(request, 4)).topics[0].name == "a"


async def test_create_topics_rejects_a_name_given_twice() -> None:
    def asked(name: str) -> object:
        return CREATE.CreatableTopic(name=name, num_partitions=3, replication_factor=1)

    async with brokers(answer=answer) as (rig,):
        response = await rig.ask(CREATE(topics=[asked("a"), asked("b"), asked("b")]))
        assert {t.name: t.error_code for t in response.topics} == {
            "a": 0,
            "b": ErrorCode.INVALID_REQUEST,
        }
        assert response.topics[0].num_partitions == 3


@pytest.mark.parametrize(
    ("of_file", "expected"),
    [
        ({}, (-1, -1)),
        ({"num_partitions": "4", "default_replication_factor": "3"}, (4, 3)),
        ({"default_replication_factor": "2"}, (-1, 2)),
    ],
)
async def test_new_topics_use_broker_defaults_unless_the_request_names_values(
    of_file: dict[str, str], expected: tuple[int, int]
) -> None:
    """The controller chooses the values that neither the broker nor the request sets."""
    async with brokers(answer=answer, **of_file) as (rig,):
        wanted = METADATA.MetadataRequestTopic(name="by-asking")
        await rig.ask(METADATA(topics=[wanted], allow_auto_topic_creation=True))
        unsaid = CREATE.CreatableTopic(name="by-order", num_partitions=-1, replication_factor=-1)
        said = CREATE.CreatableTopic(name="said", num_partitions=7, replication_factor=1)
        await rig.ask(CREATE(topics=[unsaid, said]))
        made = {
            topic.name: (topic.num_partitions, topic.replication_factor)
            for request in rig.controller.seen
            if isinstance(request, CreateTopicsRequestRpc)
            for topic in request.topics
        }
        assert made == {"by-asking": expected, "by-order": expected, "said": (7, 1)}


async def test_delete_topics_accepts_topic_names_in_version_3_and_topic_states_in_the_newest() -> (
    None
):
    async with brokers(answer=answer) as (rig,):
        old = await rig.ask(DELETE(topic_names=["a"], timeout_ms=5_000), 3)
        new = await rig.ask(DELETE(topics=[DELETE.DeleteTopicState(name="a")], timeout_ms=5_000))
        assert [r.responses[0].error_code for r in (old, new)] == [0, 0]


class Forgetful:
    """A real controller whose first response to each change is lost.

    ``meanwhile`` changes the controller's state between the first attempt and the repetition.
    """

    def __init__(self, meanwhile: Callable[[World], None] = lambda _: None) -> None:
        self.world = World()
        self.run("up 1 dirs=a", "topic old replicas=1")
        self._meanwhile = meanwhile

    def run(self, *lines: str) -> None:
        for line in lines:
            list(self.world.run(line))

    def __call__(self, request: RpcRequest) -> RpcResponse:
        answered = self.world.ask(request)
        is_change = isinstance(request, OnceOnlyRequest)
        if is_change and not request.is_repeated:
            self._meanwhile(self.world)
            raise NotControllerError("another one leads by now")
        return answered


def lines(*of_world: str) -> Callable[[World], None]:
    def run(world: World) -> None:
        for line in of_world:
            list(world.run(line))

    return run


DELETE_OLD = DELETE(topics=[DELETE.DeleteTopicState(name="old")], timeout_ms=5_000)


@pytest.mark.parametrize(
    ("meanwhile", "left"), [((), []), (("topic old replicas=1",), ["old"])], ids=["gone", "newer"]
)
async def test_delete_topics_repeated_request_succeeds_and_keeps_a_newer_topic(
    meanwhile: tuple[str, ...], left: list[str]
) -> None:
    controller = Forgetful(lines(*meanwhile))
    async with brokers(answer=controller) as (rig,):
        (deleted,) = (await rig.ask(DELETE_OLD)).responses
        assert (deleted.name, deleted.error_code) == ("old", ErrorCode.NONE)
        assert list(controller.world.state.topic_ids) == left
        (unknown,) = (
            await rig.ask(DELETE(topics=[DELETE.DeleteTopicState(name="x")], timeout_ms=5_000))
        ).responses
        assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize(
    ("meanwhile", "code"),
    [
        ((), ErrorCode.NONE),
        # The partition count was reached, by this request or by another one.
        (("grow old 5",), ErrorCode.NONE),
        (("delete old", "topic old replicas=1"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
    ids=["grown", "grown-further", "newer"],
)
async def test_create_partitions_repeated_request_succeeds_unless_the_topic_is_newer(
    meanwhile: tuple[str, ...], code: ErrorCode
) -> None:
    controller = Forgetful(lines(*meanwhile))
    wanted = GROW.CreatePartitionsTopic(name="old", count=3, assignments=None)
    async with brokers(answer=controller) as (rig,):
        (grown,) = (await rig.ask(GROW(topics=[wanted], timeout_ms=5_000))).results
        assert (grown.name, grown.error_code) == ("old", code)
        count = len(controller.world.state.topic("old").partitions)
        assert count == (1 if code else 5 if meanwhile else 3)


async def test_delete_topics_with_older_controller_sends_topic_names() -> None:
    def older(request: RpcRequest) -> RpcResponse:
        if isinstance(request, FindTopicsRequest):
            raise OperatingError("not served", code=ErrorCode.UNSUPPORTED_VERSION)
        return answer(request)

    async with brokers(answer=older) as (rig,):
        assert [r.error_code for r in (await rig.ask(DELETE_OLD)).responses] == [0]
        deletion = rig.controller.seen[-1]
        assert isinstance(deletion, DeleteTopicsRequestRpc) and deletion.topics[0].name == "old"


@pytest.mark.parametrize("disabled_by", ["broker", "controller"])
async def test_delete_topics_with_deletion_disabled_keeps_topics(disabled_by: str) -> None:
    """Versions before 3 have no error code for this case."""

    def refusing(request: RpcRequest) -> RpcResponse:
        if isinstance(request, DeleteTopicsRequestRpc):
            raise OperatingError("disabled", code=ErrorCode.TOPIC_DELETION_DISABLED)
        return answer(request)

    enabled = "false" if disabled_by == "broker" else "true"
    async with brokers(answer=refusing, delete_topic_enable=enabled) as (rig,):
        (new,) = (await rig.ask(DELETE_OLD)).responses
        assert (new.name, new.error_code) == ("old", ErrorCode.TOPIC_DELETION_DISABLED)
        old_version = DELETE(topic_names=["old"], timeout_ms=5_000)
        (old,) = (await rig.ask(old_version, 2)).responses
        assert (old.name, old.error_code) == ("old", ErrorCode.INVALID_REQUEST)
        asked = any(isinstance(seen, DeleteTopicsRequestRpc) for seen in rig.controller.seen)
        assert asked == (disabled_by == "controller")


async def test_create_partitions_returns_the_controllers_result_per_topic() -> None:
    def refuse_b(request: RpcRequest) -> RpcResponse:
        if not isinstance(request, CreatePartitionsRequestRpc):
            return answer(request)
        refused = GrownTopic(name="b", error_code=ErrorCode.INVALID_PARTITIONS, error_message="no")
        return CreatePartitionsResponseRpc(topics=(GrownTopic(name="a"), refused))

    async with brokers(answer=refuse_b) as (rig,):
        request = GROW(
            topics=[GROW.CreatePartitionsTopic(name=n, count=4, assignments=None) for n in "ab"],
            timeout_ms=5_000,
        )
        results = (await rig.ask(request)).results
        assert [(one.name, one.error_code, one.error_message) for one in results] == [
            ("a", ErrorCode.NONE, None),
            ("b", ErrorCode.INVALID_PARTITIONS, "no"),
        ]


@pytest.mark.parametrize(
    "request_",
    [
        CREATE(topics=[CREATE.CreatableTopic(name=name) for name in "ab"], timeout_ms=1000),
        DELETE(topics=[DELETE.DeleteTopicState(name=name) for name in "ab"], timeout_ms=1000),
        GROW(
            topics=[GROW.CreatePartitionsTopic(name=name, assignments=None) for name in "ab"],
            timeout_ms=1000,
        ),
    ],
    ids=["create", "delete", "grow"],
)
async def test_topic_requests_controller_error_applies_to_every_topic(request_: object) -> None:
    def refuse(request: RpcRequest) -> RpcResponse:
        raise OperatingError("no", code=ErrorCode.POLICY_VIOLATION)

    async with brokers(answer=refuse) as (rig,):
        response = await rig.ask(request_)  # type: ignore[arg-type]  # a Message of either kind
        answered = getattr(response, "topics", None) or getattr(response, "responses", None)
        codes = [(one.name, one.error_code) for one in answered or response.results]
        assert codes == [(name, ErrorCode.POLICY_VIOLATION) for name in "ab"]


async def test_init_producer_id_returns_distinct_ids_from_allocated_blocks() -> None:
    blocks = iter([5_000, 9_000])

    def count_blocks(request: RpcRequest) -> RpcResponse:
        block = accept(request)
        return block.model_copy(update={"producer_id_start": next(blocks)})

    async with brokers(answer=count_blocks) as (rig,):
        ids = [(await rig.ask(INIT(transactional_id=None))).producer_id for _ in range(3)]
        assert ids == [5_000, 5_001, 9_000]


async def test_init_producer_id_refused_by_the_controller_returns_request_timed_out() -> None:
    def refuse(request: RpcRequest) -> RpcResponse:
        raise OperatingError("no", code=ErrorCode.STALE_BROKER_EPOCH)

    async with brokers(answer=refuse) as (rig,):
        response = await rig.ask(INIT(transactional_id=None))
        assert response.error_code == ErrorCode.REQUEST_TIMED_OUT


TOO_MANY = MAX_ITEMS_PER_REQUEST + 1


@pytest.mark.parametrize(
    "request_",
    [
        CREATE(topics=[CREATE.CreatableTopic(name=f"t{n}") for n in range(3 * TOO_MANY)]),
        DELETE(topics=[DELETE.DeleteTopicState(name=f"t{n}") for n in range(TOO_MANY)]),
        GROW(topics=[GROW.CreatePartitionsTopic(name=f"t{n}", count=0) for n in range(TOO_MANY)]),
    ],
    ids=["create", "delete", "grow"],
)
async def test_topic_requests_above_item_limit_refuse_some_topics_and_keep_the_connection(
    request_: Any,
) -> None:
    request_.timeout_ms = 60_000
    async with brokers(answer=answer) as (rig,):
        connection = await rig.connect()
        response = await connection.request(request_, timeout_ms=60_000)
        answered = getattr(response, "topics", None) or getattr(response, "responses", None)
        codes = {one.name: one.error_code for one in answered or response.results}
        assert len(codes) == len(request_.topics)
        refused = [name for name, code in codes.items() if code]
        assert {codes[name] for name in refused} <= {
            ErrorCode.INVALID_REQUEST,
            ErrorCode.POLICY_VIOLATION,
        }
        assert refused
        assert connection.is_open


async def test_create_topics_partition_limit_applies_before_the_request_is_split() -> None:
    asked = [
        CREATE.CreatableTopic(name=f"t{n}", num_partitions=1 + MAX_FORWARDED_ITEMS)
        for n in range(MAX_PARTITIONS_MADE_PER_REQUEST // MAX_FORWARDED_ITEMS)
    ]
    async with brokers(answer=answer) as (rig,):
        response = await rig.ask(CREATE(topics=asked, timeout_ms=5_000))
        assert {t.error_code for t in response.topics} == {ErrorCode.POLICY_VIOLATION}
        assert not rig.controller.seen


async def test_metadata_auto_creation_of_many_topics_is_split_and_limited() -> None:
    names = [f"t{number}" for number in range(TOO_MANY)]
    request = METADATA(
        topics=[METADATA.MetadataRequestTopic(name=name) for name in names],
        allow_auto_topic_creation=True,
    )
    async with brokers(answer=answer, controller_request_timeout_ms="60000") as (rig,):
        connection = await rig.connect()
        response = await connection.request(request, timeout_ms=60_000, version=9)
        codes = {topic.name: topic.error_code for topic in response.topics}
        assert codes.pop(names[-1]) == ErrorCode.INVALID_REQUEST
        assert set(codes.values()) == {ErrorCode.LEADER_NOT_AVAILABLE}
        creations = [r for r in rig.controller.seen if isinstance(r, CreateTopicsRequestRpc)]
        sizes = [len(creation.topics) for creation in creations]
        assert (max(sizes), sum(sizes)) == (MAX_FORWARDED_ITEMS, MAX_ITEMS_PER_REQUEST)


def exceeded(request: RpcRequest) -> RpcResponse:
    """Answer as a controller whose client exceeded its quota."""
    response = answer(request)
    if isinstance(request, FindTopicsRequest) or not hasattr(response, "throttle_time_ms"):
        return response
    return response.model_copy(update={"throttle_time_ms": 3_600_000})


@pytest.mark.parametrize(
    ("request_body", "strict_since"),
    [
        (CREATE(topics=[CREATE.CreatableTopic(name="t", num_partitions=1)], timeout_ms=5_000), 6),
        (DELETE(topic_names=["t"], timeout_ms=5_000), 5),
        (
            GROW(
                topics=[GROW.CreatePartitionsTopic(name="t", count=9, assignments=None)],
                timeout_ms=5_000,
            ),
            3,
        ),
    ],
)
async def test_topic_changes_name_their_client_and_mute_its_connection(
    request_body: Any, strict_since: int
) -> None:
    async with brokers(answer=exceeded) as (rig,):
        for version in (strict_since - 1, strict_since):
            connection = await rig.connect()
            response = await connection.request(request_body, timeout_ms=5_000, version=version)
            assert response.throttle_time_ms == 3_600_000
            (charged,) = [
                request.charged
                for request in rig.controller.seen[-1:]
                if not isinstance(request, FindTopicsRequest)
            ]
            assert (charged.user, charged.is_strict) == ("ANONYMOUS", version == strict_since)
            muted = asyncio.create_task(
                connection.request(METADATA(topics=[]), timeout_ms=5_000, version=9)
            )
            for _ in range(3):
                await rig.ask(METADATA(topics=[]), 9)
            assert not muted.done()
            muted.cancel()


async def test_automatic_creation_is_charged_and_not_strict() -> None:
    async with brokers(answer=exceeded) as (rig,):
        request = METADATA(topics=[METADATA.MetadataRequestTopic(name="new")])
        response = await rig.ask(request, 9)
        assert response.throttle_time_ms == 3_600_000
        (created,) = [r for r in rig.controller.seen if isinstance(r, CreateTopicsRequestRpc)]
        assert created.charged is not None and not created.charged.is_strict
