"""Registrations and heartbeats of brokers that know another metadata log, or more of this one."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, Uuid
from kraftjbod.protocol import rpc_messages as m
from tests.golden.transcript import CLUSTER_ID, World, directory

OTHER = Uuid(b"o" * 16)


def register(world: World, log_id: Uuid | None, applied_offset: int) -> BrokerEpoch:
    request = m.BrokerRegistrationRequest(
        broker_id=BrokerId(1),
        cluster_id=CLUSTER_ID,
        incarnation_id=Uuid(bytes(16)),
        listeners=(m.ListenerInfo(name="P", host="h", port=1),),
        log_dirs=(directory("a"),),
        metadata_log_id=log_id,
        applied_metadata_offset=applied_offset,
    )
    result = world.managers.decide(request, now_ms=0)
    world.commit(result.records)
    assert isinstance(result.response, m.BrokerRegistrationResponse)
    assert result.response.metadata_log_id == world.state.metadata_log_id
    return result.response.broker_epoch


def beat(world: World, epoch: BrokerEpoch, log_id: Uuid | None, offset: int) -> None:
    request = m.BrokerHeartbeatRequest(
        broker_id=BrokerId(1),
        broker_epoch=epoch,
        current_metadata_offset=offset,
        want_fence=True,
        want_shut_down=False,
        metadata_log_id=log_id,
    )
    world.managers.decide(request, now_ms=0)


def refusal(world: World, log_id: Uuid, offset: int) -> str:
    """How both a registration and a heartbeat are answered, before any other reason counts."""
    said = set()
    for ask in (
        lambda: register(world, log_id, offset),
        lambda: beat(world, BrokerEpoch(77), log_id, offset),
    ):
        with pytest.raises(OperatingError) as refused:
            ask()
        assert refused.value.code is ErrorCode.FOREIGN_METADATA
        said.add(refused.value.message)
    assert not world.state.brokers
    return said.pop() if len(said) == 1 else str(said)


def test_a_broker_of_another_log_or_with_more_of_this_one_is_refused() -> None:
    world = World()
    ours, end = world.state.metadata_log_id, world.state.offset
    assert f"has followed metadata log {OTHER}" in refusal(world, OTHER, 0)
    assert f"here it ends at {end}" in refusal(world, ours, end + 1)


def test_a_broker_that_knows_this_log_or_none_is_served() -> None:
    for named in (True, False):
        world = World()
        ours = world.state.metadata_log_id if named else None
        epoch = register(world, ours, world.state.offset)
        beat(world, epoch, ours, world.state.offset)
