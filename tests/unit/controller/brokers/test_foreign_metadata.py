"""Registrations and heartbeats of brokers with another metadata log, or with more of this log."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.controller.brokers.foreign_metadata import require_same_entry
from kraftjbod.core.errors import ErrorCode, ForeignMetadataError, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, Uuid
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.protocol.rpc_config_messages import (
    AlteredResource,
    ConfigChange,
    IncrementalAlterConfigsRequestRpc,
)
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest
from kraftjbod.testing.simulation import SimulatedCluster
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
    """Return the common message with which a registration and a heartbeat are refused.

    This refusal has precedence over all others."""
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


def test_registration_and_heartbeat_with_foreign_or_longer_log_are_refused() -> None:
    world = World()
    ours, end = world.state.metadata_log_id, world.state.offset
    assert f"has followed metadata log {OTHER}" in refusal(world, OTHER, 0)
    assert f"here it ends at {end}" in refusal(world, ours, end + 1)


def test_registration_and_heartbeat_with_this_log_or_none_are_accepted() -> None:
    for named in (True, False):
        world = World()
        ours = world.state.metadata_log_id if named else None
        epoch = register(world, ours, world.state.offset)
        beat(world, epoch, ours, world.state.offset)


@pytest.mark.parametrize(
    ("known", "here"),
    [(None, 4), (3, None), (3, 3)],
    ids=["no epoch sent", "no epoch here", "same"],
)
def test_require_same_entry_refuses_only_known_different_epochs(
    known: int | None, here: int | None
) -> None:
    ask = FetchMetadataRequest(
        broker_id=BrokerId(1),
        fetch_offset=8,
        max_wait_ms=0,
        max_bytes=1,
        metadata_log_id=OTHER,
        applied_metadata_offset=7,
        applied_metadata_epoch=known,
    )
    require_same_entry(ask, here)
    forgotten = ask.model_copy(update={"metadata_log_id": None, "applied_metadata_epoch": 2})
    require_same_entry(forgotten, here)
    with pytest.raises(ForeignMetadataError):
        require_same_entry(ask.model_copy(update={"applied_metadata_epoch": 2}), 4)


def test_broker_rejects_metadata_log_that_diverges_before_its_end() -> None:
    """Before, brokers applied later entries of a log that they had never followed."""
    with SimulatedCluster(5, controllers=3, brokers=1, log_dirs=1) as cluster:
        cluster.start()
        cluster.run_for(3_000)
        behind, *lost = sorted(cluster.controllers, key=lambda host: host.is_active)
        behind.kill()
        client = cluster.client("client")
        for name in ("a", "b"):
            client.run(create_topic(client.kafka, name, partitions=1))
        wiring = cluster.broker(1).wiring
        assert wiring is not None
        state = wiring.cluster.cache.state
        followed = state.offset
        for host in lost:
            host.kill()
            cluster.replace_metadata_disk(host, is_voter=True)
        # Delete the record of voter directories, with which the survivor would refuse the replaced
        # disks.
        path = behind.metadata_disk.path
        behind.metadata_disk.vfs.unlink_if_exists(f"{path}/__cluster_metadata-0/voter-directories")
        for host in (behind, *lost):
            host.start()
        cluster.wait_for(lambda: any(one.is_active for one in cluster.controllers), "one leads")
        change = AlteredResource(
            resource_type=4,
            name="",
            changes=(ConfigChange(name="message.max.bytes", operation=0, value="1048576"),),
        )
        controllers = client.new_controller_client()
        for size in range(20):
            value = change.changes[0].model_copy(update={"value": str(1_048_576 + size)})
            client.run(
                controllers.call(
                    IncrementalAlterConfigsRequestRpc(
                        resources=(change.model_copy(update={"changes": (value,)}),),
                        validated_by=BrokerId(1),
                    )
                )
            )
        leader = next(one for one in cluster.controllers if one.is_active)
        assert leader.state is not None
        assert leader.state.offset > followed + 5
        assert set(leader.state.topic_ids) == set()
        cluster.run_for(15_000)
        assert state is wiring.cluster.cache.state
        assert (state.offset, set(state.topic_ids)) == (followed, {"a", "b"})
