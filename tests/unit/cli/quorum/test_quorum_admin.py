"""``describe_quorum`` through a broker."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.quorum.quorum_admin import QuorumReplica, describe_quorum, require_leader
from kraftjbod.core.errors import OperatingError
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from kraftjbod.protocol.rpc_quorum_messages import DescribeQuorumRequestRpc
from tests.unit.broker.apis.test_quorum_apis import DIRECTORY, QUORUM
from tests.unit.broker.broker_rig import accept, brokers


@pytest.mark.parametrize("leader", [100, 7])
async def test_describe_quorum_through_broker_returns_controllers_view(leader: int) -> None:
    def answer(request: RpcRequest) -> RpcResponse:
        if isinstance(request, DescribeQuorumRequestRpc):
            return QUORUM.model_copy(update={"leader_id": leader})
        return accept(request)

    async with (
        brokers(answer=answer) as (rig,),
        ClusterClient(f"127.0.0.1:{rig.listener.port}") as client,
    ):
        found = await describe_quorum(client)
    assert found.voters[0] == QuorumReplica(
        node_id=100,
        directory_id=str(DIRECTORY),
        log_end_offset=12,
        last_fetch_ms=5_000,
        last_caught_up_ms=5_000,
        endpoints=("CONTROLLER://[::1]:9090",),
    )
    assert found.voters[1].directory_id is None
    if leader == 100:
        assert require_leader(found) is found.voters[0]
    else:
        with pytest.raises(OperatingError, match="the quorum has no leader now"):
            require_leader(found)
