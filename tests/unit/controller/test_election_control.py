"""What the transcripts of elections and of brokers given up (tests/golden) do not show."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.protocol import rpc_config_messages as c
from tests.golden.transcript import World


def test_a_partition_that_is_named_twice_changes_once() -> None:
    world = World()
    for line in ("up 1 dirs=a", "up 2 dirs=b", "topic t replicas=1,2", "heartbeat 1 want_fence"):
        list(world.run(line))
    for line in ("heartbeat 1", "alter 2 t-0 isr=2,1"):
        list(world.run(line))
    wanted = c.ElectedPartition(topic="t", partition=0)
    request = c.ElectLeadersRequest(
        election_type=c.ElectionType.PREFERRED, partitions=(wanted, wanted)
    )
    result = world.managers.decide(request, now_ms=0)
    assert len(result.records) == 1
    assert len(result.response.partitions) == 2


def test_one_who_is_given_up_again_is_not_another_that_has_its_id() -> None:
    world = World()
    for line in ("up 1 dirs=a", "heartbeat 1 want_fence"):
        list(world.run(line))
    epoch = world.state.brokers[BrokerId(1)].epoch
    request = c.UnregisterBrokerRequest(broker_id=BrokerId(1), found_epoch=epoch)
    world.ask(request)
    assert world.ask(request.again()) == c.UnregisterBrokerResponse()
    with pytest.raises(OperatingError) as never_found:
        world.ask(c.UnregisterBrokerRequest(broker_id=BrokerId(1)).again())
    assert never_found.value.code is ErrorCode.BROKER_ID_NOT_REGISTERED
    list(world.run("register 1 dirs=a incarnation=other"))
    with pytest.raises(OperatingError, match="registered anew"):
        world.ask(request.again())
    assert BrokerId(1) in world.state.brokers


def test_who_was_given_up_may_register_at_once_and_is_another() -> None:
    """Its session ended with its registration, and an epoch of before says nothing any more."""
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
