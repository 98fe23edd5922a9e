"""Blocks of producer ids never overlap."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.protocol import rpc_messages as m
from tests.golden.transcript import World


def test_allocate_producer_ids_returns_disjoint_blocks() -> None:
    world = World()
    for line in ("up 1 dirs=a", "up 2 dirs=b"):
        list(world.run(line))
    replies = [list(world.run(f"producer_ids {broker}"))[-1] for broker in (1, 2, 1)]
    assert [reply.split("start=")[1].split()[0] for reply in replies] == ["0", "1000", "2000"]
    assert world.state.next_producer_id == 3000


def test_allocate_producer_ids_refuses_stale_broker_epoch() -> None:
    world = World()
    list(world.run("up 1 dirs=a"))
    request = m.AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(0))
    with pytest.raises(OperatingError) as refused:
        world.ask(request)
    assert refused.value.code == ErrorCode.STALE_BROKER_EPOCH
