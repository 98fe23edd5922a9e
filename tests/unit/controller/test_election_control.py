"""Elections and unregistered brokers: cases that the transcripts in tests/golden do not contain."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.protocol import rpc_config_messages as c
from tests.golden.transcript import World


def test_elect_leaders_changes_partition_named_twice_once() -> None:
    world = World()
    for line in ("up 1 dirs=a", "up 2 dirs=b", "topic t replicas=1,2", "heartbeat 1 want_fence"):
        list(world.run(line))
    for line in ("heartbeat 1", "alter 2 t-0 isr=2,1"):
        list(world.run(line))
    wanted = c.ElectedPartition(topic="t", partition=0)
    request = c.ElectLeadersRequestRpc(
        election_type=c.ElectionType.PREFERRED, partitions=(wanted, wanted)
    )
    result = world.managers.decide(request, now_ms=0)
    assert len(result.records) == 1
    assert len(result.response.partitions) == 2


def test_repeated_unregister_does_not_remove_another_broker_with_the_id() -> None:
    world = World()
    for line in ("up 1 dirs=a", "heartbeat 1 want_fence"):
        list(world.run(line))
    epoch = world.state.brokers[BrokerId(1)].epoch
    request = c.UnregisterBrokerRequestRpc(broker_id=BrokerId(1), found_epoch=epoch)
    world.ask(request)
    assert world.ask(request.again()) == c.UnregisterBrokerResponseRpc()
    with pytest.raises(OperatingError) as never_found:
        world.ask(c.UnregisterBrokerRequestRpc(broker_id=BrokerId(1)).again())
    assert never_found.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    list(world.run("register 1 dirs=a incarnation=other"))
    with pytest.raises(OperatingError, match="registered again"):
        world.ask(request.again())
    assert BrokerId(1) in world.state.brokers


def test_unregistered_broker_may_register_at_once_with_a_newer_epoch() -> None:
    """Its session ended with its registration, and heartbeats with the former epoch are refused."""
    world = World()
    for line in ("up 1 dirs=a", "up 2 dirs=b", "topic t replicas=1,2", "heartbeat 1 want_fence"):
        list(world.run(line))
    epoch = world.state.brokers[BrokerId(1)].epoch
    assert list(world.run("unregister 1"))[-1] == "reply: unregistered"
    (_, reply) = world.run("register 1 dirs=a incarnation=other")
    assert reply == f"reply: epoch {world.state.brokers[BrokerId(1)].epoch}"
    assert world.state.brokers[BrokerId(1)].epoch > epoch
    (refusal,) = world.run(f"heartbeat 1 epoch={epoch}")
    assert refusal.startswith("error STALE_BROKER_EPOCH")
