"""FindCoordinator, and the creation of internal topics."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import FindCoordinatorRequest
from kraftjbod.protocol.rpc_messages import (
    CreatedTopic,
    CreateTopicsRequestRpc,
    CreateTopicsResponseRpc,
    RpcRequest,
    RpcResponse,
)
from tests.unit.broker.broker_rig import accept, brokers
from tests.unit.broker.groups.group_rig import coordinator, lead

E = ErrorCode


@pytest.mark.parametrize("version", range(7))
async def test_find_coordinator_returns_the_partition_leader(version: int) -> None:
    async with coordinator() as rig:
        request = FindCoordinatorRequest(key="g")
        if version >= 4:
            request = FindCoordinatorRequest(coordinator_keys=["g", "h"])
        answer = await rig.ask(request, version)
        for found in answer.coordinators if version >= 4 else [answer]:
            assert (found.error_code, found.node_id, found.port) == (0, 1, rig.listener.port)
        await lead(rig, 1, leader=2)
        answer = await rig.ask(request, version)
        for lost in answer.coordinators if version >= 4 else [answer]:
            assert (lost.error_code, lost.node_id) == (E.COORDINATOR_NOT_AVAILABLE, -1)


async def test_find_coordinator_for_share_groups_returns_invalid_request() -> None:
    async with coordinator() as rig:
        answer = await rig.ask(FindCoordinatorRequest(key="t:id:0", key_type=2), 3)
        assert answer.error_code == E.INVALID_REQUEST
        assert answer.error_message == "only groups and transactions have coordinators here"


@pytest.mark.parametrize(("key_type", "name"), [(0, "offsets"), (1, "transactions")])
async def test_find_coordinator_creates_the_internal_topic_and_logs_a_failure_once(
    key_type: int, name: str
) -> None:
    codes = [E.INVALID_REPLICATION_FACTOR, E.INVALID_REPLICATION_FACTOR, E.NONE]
    topics: list[Any] = []

    def answering(request: RpcRequest) -> RpcResponse:
        if not isinstance(request, CreateTopicsRequestRpc):
            return accept(request)
        topics.extend(request.topics)
        created = CreatedTopic(
            name=request.topics[0].name, error_code=codes.pop(0), error_message="too few brokers"
        )
        return CreateTopicsResponseRpc(topics=(created,))

    async with brokers(answer=answering) as (rig,):
        with capture_logs() as lines:
            for _ in range(3):
                answer = await rig.ask(FindCoordinatorRequest(key="g", key_type=key_type), 3)
                assert answer.error_code == E.COORDINATOR_NOT_AVAILABLE
        assert [(one.num_partitions, one.replication_factor) for one in topics] == [(50, 3)] * 3
        failures = [line for line in lines if line["event"] == f"{name}_topic_not_created"]
        assert [line["reason"] for line in failures] == ["too few brokers"], "logged once"
