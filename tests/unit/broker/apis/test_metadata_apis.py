"""Metadata and DescribeCluster over a real listener."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import LOST_DIR, TopicId
from kraftjbod.protocol.messages import DescribeClusterRequest, MetadataRequest
from kraftjbod.protocol.rpc_messages import (
    CreatedTopic,
    CreateTopicsRequestRpc,
    CreateTopicsResponseRpc,
    RpcRequest,
    RpcResponse,
)
from tests.unit.broker.broker_rig import TOPIC, TOPIC_ID, accept, brokers, dir_of, partition, topic
from tests.unit.broker.gates import settle

KIND = MetadataRequest


def asking(*names: str | None, **more: Any) -> Any:
    return KIND(topics=[KIND.MetadataRequestTopic(name=name) for name in names], **more)


async def test_metadata_topic_has_leader_replicas_and_offline_replicas() -> None:
    """KIP-858, "Metadata caching": a lost directory makes its replica offline."""
    async with brokers(2) as (rig, _):
        await rig.follow(topic(), partition(replicas=(1, 2), directories=[dir_of(1, 1), LOST_DIR]))
        response = await rig.ask(asking("t"))
        (answered,) = response.topics
        (part,) = answered.partitions
        assert (answered.name, answered.topic_id) == ("t", TOPIC_ID)
        assert (part.leader_id, part.replica_nodes, part.offline_replicas) == (1, [1, 2], [2])
        assert sorted(b.node_id for b in response.brokers) == [1, 2]
        assert response.controller_id == 1


async def test_metadata_finds_all_topics_or_one_by_id() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        assert [t.name for t in (await rig.ask(KIND(topics=None))).topics] == ["t"]
        by_id = KIND(topics=[KIND.MetadataRequestTopic(name=None, topic_id=TOPIC_ID)])
        assert [t.name for t in (await rig.ask(by_id)).topics] == ["t"]
        unknown = KIND(topics=[KIND.MetadataRequestTopic(name=None, topic_id=b"?" * 16)])
        assert (await rig.ask(unknown)).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_metadata_shows_leader_changes_immediately() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        assert (await rig.ask(asking("t"))).topics[0].partitions[0].leader_epoch == 0
        await rig.follow(partition(leader=-1, epoch=3))
        part = (await rig.ask(asking("t"))).topics[0].partitions[0]
        assert (part.leader_epoch, part.leader_id) == (3, -1)
        assert part.error_code == ErrorCode.LEADER_NOT_AVAILABLE


async def test_metadata_internal_topic_is_flagged_and_not_auto_created() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        absent, plain = (await rig.ask(asking("__storage_telemetry", "t"))).topics
        assert absent.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert not [
            seen for seen in rig.controller.seen if isinstance(seen, CreateTopicsRequestRpc)
        ]
        own = TopicId(b"s" * 16)
        await rig.follow(topic("__storage_telemetry", own), partition(topic_id=own))
        (present,) = (await rig.ask(asking("__storage_telemetry"))).topics
        assert (present.error_code, present.is_internal) == (0, True)
        assert not plain.is_internal


async def test_metadata_creates_topics_only_if_client_and_broker_allow_it() -> None:
    def answer(request: RpcRequest) -> RpcResponse:
        if isinstance(request, CreateTopicsRequestRpc):
            refused = ErrorCode.INVALID_TOPIC_EXCEPTION
            return CreateTopicsResponseRpc(
                topics=tuple(
                    CreatedTopic(
                        name=t.name,
                        error_code=refused if t.name == "bad name" else ErrorCode.NONE,
                    )
                    for t in request.topics
                )
            )
        return accept(request)

    async with brokers(answer=answer) as (rig,):
        answered = await rig.ask(asking("absent", "bad name", "", allow_auto_topic_creation=False))
        assert [t.error_code for t in answered.topics] == [
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
        assert rig.controller.seen == []
        answered = await rig.ask(asking("absent", "bad name"))
        assert [t.error_code for t in answered.topics] == [
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
    async with brokers(answer=answer, auto_create_topics_enable="false") as (rig,):
        (absent,) = (await rig.ask(asking("absent", allow_auto_topic_creation=True))).topics
        assert absent.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert rig.controller.seen == []


async def test_describe_cluster_includes_fenced_brokers_and_log_dirs_on_request() -> None:
    kind = DescribeClusterRequest
    async with brokers(2, knows_absent=False) as (rig, other):
        paths = {"log_dir_paths": ("/d1", "/d2")}
        rig.replay(replace(other.registration(fenced=True), **paths))
        described = await rig.ask(kind())
        assert [b.broker_id for b in described.brokers] == [1]
        described = await rig.ask(kind(include_fenced_brokers=True))
        assert [(b.broker_id, b.is_fenced) for b in described.brokers] == [(1, False), (2, True)]
        assert not any(b.log_dirs for b in described.brokers)
        rig.replay(topic(), partition(replicas=(1, 2)), partition(1, replicas=(2, 1)))
        asked = kind(include_fenced_brokers=True, include_log_dirs=True)
        _, fenced = (await rig.ask(asked)).brokers
        found = {d.path: (d.directory_id, d.is_offline, d.replicas) for d in fenced.log_dirs}
        assert found == {"/d1": (dir_of(2, 1), False, 2), "/d2": (dir_of(2, 2), False, 0)}


@pytest.mark.parametrize(
    ("endpoint_type", "code"),
    [(2, ErrorCode.MISMATCHED_ENDPOINT_TYPE), (3, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE)],
)
async def test_describe_cluster_with_other_endpoint_type_returns_error_of_kip_919(
    endpoint_type: int, code: ErrorCode
) -> None:
    """By this code tools recognize that --bootstrap-controller names brokers."""
    async with brokers() as (rig,):
        answer = await rig.ask(DescribeClusterRequest(endpoint_type=endpoint_type))
        assert (answer.error_code, answer.brokers) == (code, [])


async def test_metadata_concurrent_auto_creation_sends_one_create_request() -> None:
    def answer(request: RpcRequest) -> RpcResponse:
        if isinstance(request, CreateTopicsRequestRpc):
            return CreateTopicsResponseRpc(
                topics=tuple(CreatedTopic(name=t.name) for t in request.topics)
            )
        return accept(request)

    async with brokers(answer=answer) as (rig,):
        rig.controller.may_answer.clear()
        asked = [asyncio.create_task(rig.ask(asking("new"))) for _ in range(5)]
        await rig.controller.wait_seen(bool)
        await settle()
        rig.controller.may_answer.set()
        codes = {(await one).topics[0].error_code for one in asked}
        assert codes == {ErrorCode.LEADER_NOT_AVAILABLE}
        assert len(rig.controller.seen) == 1


async def test_metadata_omits_fenced_brokers_and_marks_their_replicas_offline() -> None:
    async with brokers(2) as (rig, other):
        await rig.follow(topic(), partition(replicas=(1, 2)), other.registration(fenced=True))
        response = await rig.ask(asking("t"))
        (part,) = response.topics[0].partitions
        assert [broker.node_id for broker in response.brokers] == [1]
        assert (part.replica_nodes, part.offline_replicas) == ([1, 2], [2])


async def test_metadata_lists_all_brokers_if_all_are_fenced() -> None:
    """A client without any broker cannot send another request; librdkafka stopped in this case."""
    async with brokers(2, knows_absent=False) as (rig, other):
        for one in (rig, other):
            rig.replay(one.registration(fenced=True))
        answer = await rig.ask(asking("t"), 9)
        assert [broker.node_id for broker in answer.brokers] == [1, 2]


@pytest.mark.parametrize("version", [10, 11])
async def test_metadata_topic_ids_before_version_12_return_invalid_request(version: int) -> None:
    """Requests of these versions have the field and a nullable name, but their responses have
    neither.
    """
    by_id = KIND.MetadataRequestTopic(name=None, topic_id=TOPIC_ID)
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        response = await rig.ask(KIND(topics=[by_id]), version)
        assert [(t.name, t.error_code) for t in response.topics] == [
            ("", ErrorCode.INVALID_REQUEST)
        ]


async def test_metadata_topic_named_twice_is_returned_once() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        named = [KIND.MetadataRequestTopic(name=TOPIC) for _ in range(50)]
        response = await rig.ask(KIND(topics=named), 12)
        assert [t.name for t in response.topics] == [TOPIC]
