"""Who may speak as a broker, by address; and that the controller's door asks."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from ipaddress import ip_network

import msgpack
import pytest

from kraftjbod.controller.brokers.cluster_action import ClusterActionGuard
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, ConnectionId
from kraftjbod.net.listener import Listener
from kraftjbod.net.rpc_server import rpc_server
from kraftjbod.protocol import rpc_config_messages as c
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.protocol.rpc_codec import REQUESTS

PRODUCER_IDS = m.AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(1))
LIST = c.ListPartitionReassignmentsRequest()
GUARD = ClusterActionGuard([ip_network("127.0.0.1"), ip_network("10.1.0.0/16")])


@pytest.mark.parametrize("host", ["127.0.0.1", "10.1.2.3", "::ffff:10.1.2.3"])
def test_brokers_may(host: str) -> None:
    GUARD.admit(PRODUCER_IDS, host)


@pytest.mark.parametrize("host", ["127.0.0.2", "10.2.0.1", "::1", "?"])
def test_others_may_not(host: str) -> None:
    with pytest.raises(OperatingError, match=r"cluster\.action\.allowed\.hosts") as refused:
        GUARD.admit(PRODUCER_IDS, host)
    assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert f"AllocateProducerIds from {host}" in refused.value.message


def test_admin_requests_are_no_cluster_action() -> None:
    GUARD.admit(LIST, "127.0.0.2")


def test_without_the_key_everybody_may() -> None:
    ClusterActionGuard(None).admit(PRODUCER_IDS, "127.0.0.2")


def test_which_requests_need_it() -> None:
    guarded = set()
    for api, kind in REQUESTS.items():
        try:
            GUARD.admit(kind.model_construct(), "127.0.0.2")
        except OperatingError:
            guarded.add(api)
    assert guarded == {
        "BrokerRegistration",
        "BrokerHeartbeat",
        "AssignReplicasToDirs",
        "AlterPartition",
        "AllocateProducerIds",
        "FetchMetadata",
        "QuorumMessages",
        "ControllerRegistration",
    }


@pytest.fixture
async def door() -> AsyncIterator[Listener]:
    async def handler(request: m.RpcRequest, _connection: ConnectionId) -> m.RpcResponse:
        return m.AllocateProducerIdsResponse(producer_id_start=0, producer_id_count=1)

    door = rpc_server(host="127.0.0.1", port=0, handler=handler, admit=GUARD.admit)
    await door.start()
    yield door
    await door.close(timeout_ms=0)


@pytest.mark.parametrize(("host", "is_answered"), [("127.0.0.1", True), ("127.0.0.2", False)])
async def test_the_door_asks(door: Listener, host: str, is_answered: bool) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", door.port, local_addr=(host, 0))
    frame = msgpack.packb([0, 5, PRODUCER_IDS.api, PRODUCER_IDS.version, PRODUCER_IDS.model_dump()])
    writer.write(struct.pack(">I", len(frame)) + frame)
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    answer = msgpack.unpackb(await reader.readexactly(length))
    if is_answered:
        assert answer[2] == ErrorCode.NONE
    else:
        assert answer[2] == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert "127.0.0.2 is not in the controller's cluster.action.allowed.hosts" in answer[3]
    writer.close()
