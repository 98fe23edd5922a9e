"""Leader hints for a client that sent a request to the wrong broker (KIP-951)."""

from __future__ import annotations

import pytest

from kraftjbod.broker.apis.leader_hints import LeaderHints
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import ProduceResponse
from tests.unit.broker.broker_rig import (
    LISTENER,
    TP,
    BrokerRig,
    brokers,
    partition,
    topic,
)

WRONG = ErrorCode.NOT_LEADER_OR_FOLLOWER


def hints_of(rig: BrokerRig, listener: str = LISTENER, *, speaks: bool = True) -> LeaderHints:
    return LeaderHints(
        ProduceResponse.LeaderIdAndEpoch,
        ProduceResponse.NodeEndpoint,
        cache=rig.parts.cache,
        broker_id=rig.broker_id,
        listener_name=listener,
        has_leaders=speaks,
        has_endpoints=speaks,
    )


async def test_leader_hints_return_leader_of_each_partition_and_its_endpoint_once() -> None:
    async with brokers(2) as (rig, other):
        led = [partition(i, replicas=(1, 2), leader=2, epoch=3) for i in (0, 1)]
        await rig.follow(topic(), *led)
        hints = hints_of(rig)
        assert hints.endpoints() == []
        for index in (0, 1):
            leader = hints.leader_of(TP._replace(partition=index), WRONG)
            assert leader is not None and (leader.leader_id, leader.leader_epoch) == (2, 3)
        (node,) = hints.endpoints()
        assert (node.node_id, node.port, node.rack) == (2, other.listener.port, None)


@pytest.mark.parametrize(
    ("leader", "code", "listener", "speaks"),
    [
        (1, WRONG, LISTENER, True),
        (-1, WRONG, LISTENER, True),
        (2, ErrorCode.KAFKA_STORAGE_ERROR, LISTENER, True),
        (2, ErrorCode.NONE, LISTENER, True),
        (2, WRONG, "ELSEWHERE", True),
        (2, WRONG, LISTENER, False),
    ],
    ids=["itself", "no_leader", "other_error", "no_error", "other_listener", "old_version"],
)
async def test_leader_hints_are_absent_without_a_usable_leader(
    leader: int, code: ErrorCode, listener: str, speaks: bool
) -> None:
    async with brokers(2) as (rig, _):
        await rig.follow(topic(), partition(replicas=(1, 2), leader=leader))
        hints = hints_of(rig, listener, speaks=speaks)
        assert hints.leader_of(TP, code) is None and hints.endpoints() == []


async def test_leader_hints_for_unknown_partition_are_absent() -> None:
    async with brokers() as (rig,):
        assert hints_of(rig).leader_of(TP, WRONG) is None
