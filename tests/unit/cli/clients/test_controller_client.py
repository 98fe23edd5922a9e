"""Which of several controllers is asked."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.controller_client import ControllerClient
from kraftjbod.core.errors import ConfigError, ErrorCode, NotControllerError, OperatingError
from kraftjbod.protocol.rpc_config_messages import (
    DescribeDynamicConfigsRequest,
    DescribeDynamicConfigsResponse,
)
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from kraftjbod.protocol.rpc_quorum_messages import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    QuorumReplica,
)
from tests.unit.broker.scripted_controller import ScriptedController, serving

ASK = DescribeDynamicConfigsRequest(resource_type=4)
NOTHING = DescribeDynamicConfigsResponse(resources=())


def _active(_: RpcRequest) -> RpcResponse:
    return NOTHING


def _standby(_: RpcRequest) -> RpcResponse:
    raise NotControllerError("not me")


def _refuses(_: RpcRequest) -> RpcResponse:
    raise OperatingError("no", code=ErrorCode.POLICY_VIOLATION)


def _client(*controllers: ScriptedController) -> ControllerClient:
    addresses = ["127.0.0.1:1", *(f"127.0.0.1:{c.server.port}" for c in controllers)]
    return ControllerClient(" , ".join(addresses), timeout_ms=10_000)


async def test_the_active_one_is_found_after_dead_and_passive_ones() -> None:
    standby, active = ScriptedController(_standby), ScriptedController(_active)
    async with serving(standby, active), _client(standby, active) as client:
        assert await client.call(ASK) == NOTHING
        assert (len(standby.seen), len(active.seen)) == (1, 1)


async def test_one_that_follows_says_who_leads_though_nobody_named_that_one() -> None:
    leader = ScriptedController(_active)

    def follows(request: RpcRequest) -> RpcResponse:
        if not isinstance(request, DescribeQuorumRequest):
            return _standby(request)
        endpoint = f"CONTROLLER://127.0.0.1:{leader.server.port}"
        voters = [QuorumReplica(node_id=i) for i in (7, 8)]
        voters[1] = QuorumReplica(node_id=8, endpoints=(endpoint,))
        return DescribeQuorumResponse(node_id=7, cluster_id="c", leader_id=8, voters=voters)

    follower = ScriptedController(follows)
    async with serving(follower, leader), _client(follower) as client:
        assert await client.call(ASK) == NOTHING
        assert await client.call(ASK) == NOTHING
        assert leader.seen == [ASK, ASK]
        leader.answer = _standby
        with pytest.raises(OperatingError, match="not me"):
            await client.call(ASK)


async def test_one_that_stands_still_is_left_for_the_active_one() -> None:
    still, other = ScriptedController(_active), ScriptedController(_active)
    still.may_answer.clear()
    async with serving(still, other):
        addresses = f"127.0.0.1:{still.server.port},127.0.0.1:{other.server.port}"
        async with ControllerClient(addresses, timeout_ms=200) as client:
            assert await client.call(ASK) == NOTHING
            other.answer = _standby
            with pytest.raises(OperatingError) as refused:
                await client.call(ASK)
            assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT, "it may have been done"


async def test_a_refusal_is_not_repeated_elsewhere() -> None:
    first, second = ScriptedController(_refuses), ScriptedController(_active)
    async with serving(first, second), _client(first, second) as client:
        with pytest.raises(OperatingError, match="no"):
            await client.call(ASK)
        assert second.seen == []


async def test_where_none_is_active_the_last_one_is_heard() -> None:
    standby = ScriptedController(_standby)
    async with serving(standby), _client(standby) as client:
        with pytest.raises(OperatingError, match="not me") as refused:
            await client.call(ASK)
        assert refused.value.code == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("addresses", ["", ",", "h", ":1", "h:", "h:x"])
def test_what_is_no_address(addresses: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        ControllerClient(addresses, timeout_ms=1)
