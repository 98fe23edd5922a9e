"""``ControllerClient``: which of several controllers receives the request."""

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
    DescribeQuorumRequestRpc,
    DescribeQuorumResponseRpc,
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


async def test_call_finds_active_controller_after_unreachable_and_standby_ones() -> None:
    standby, active = ScriptedController(_standby), ScriptedController(_active)
    async with serving(standby, active), _client(standby, active) as client:
        assert await client.call(ASK) == NOTHING
        assert (len(standby.seen), len(active.seen)) == (1, 1)


async def test_call_follows_leader_endpoint_that_a_follower_names() -> None:
    leader = ScriptedController(_active)

    def follows(request: RpcRequest) -> RpcResponse:
        if not isinstance(request, DescribeQuorumRequestRpc):
            return _standby(request)
        endpoint = f"CONTROLLER://127.0.0.1:{leader.server.port}"
        voters = [QuorumReplica(node_id=i) for i in (7, 8)]
        voters[1] = QuorumReplica(node_id=8, endpoints=(endpoint,))
        return DescribeQuorumResponseRpc(node_id=7, cluster_id="c", leader_id=8, voters=voters)

    follower = ScriptedController(follows)
    async with serving(follower, leader), _client(follower) as client:
        assert await client.call(ASK) == NOTHING
        assert await client.call(ASK) == NOTHING
        assert leader.seen == [ASK, ASK]
        leader.answer = _standby
        with pytest.raises(OperatingError, match="not me"):
            await client.call(ASK)


async def test_call_moves_from_hanging_controller_to_the_active_one() -> None:
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


async def test_call_does_not_repeat_refused_request_on_another_controller() -> None:
    first, second = ScriptedController(_refuses), ScriptedController(_active)
    async with serving(first, second), _client(first, second) as client:
        with pytest.raises(OperatingError, match="no"):
            await client.call(ASK)
        assert second.seen == []


async def test_call_without_active_controller_raises_not_controller() -> None:
    standby = ScriptedController(_standby)
    async with serving(standby), _client(standby) as client:
        with pytest.raises(OperatingError, match="not me") as refused:
            await client.call(ASK)
        assert refused.value.code == ErrorCode.NOT_CONTROLLER


@pytest.mark.parametrize("addresses", ["", ",", "h", ":1", "h:", "h:x"])
def test_controller_client_rejects_malformed_addresses(addresses: str) -> None:
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        ControllerClient(addresses, timeout_ms=1)
