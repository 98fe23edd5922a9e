"""``ClusterControlManager``; tests/golden/registration_rules.txt has more scenarios."""

from __future__ import annotations

import pytest

from kraftjbod.controller.brokers.heartbeat_manager import BrokerHeartbeatManager
from kraftjbod.controller.cluster_control import ClusterControlManager
from kraftjbod.controller.partitions.acceptance import Acceptance
from kraftjbod.core.ids import MIGRATING_DIR, UNASSIGNED_DIR, BrokerId, DirectoryId
from tests.golden.transcript import CLUSTER_ID, World, directory


@pytest.fixture
def world() -> World:
    world = World()
    for line in ("up 1 dirs=a", "up 2 dirs=b,c", "register 3 dirs=d", "up 4 dirs=e,f"):
        list(world.run(line))
    return world


def _cluster(world: World) -> ClusterControlManager:
    return ClusterControlManager(
        cluster_id=CLUSTER_ID,
        state=world.state,
        index=world.managers.index,
        heartbeats=BrokerHeartbeatManager(session_timeout_ms=9000, reconnect_grace_ms=1000),
        election_timeout_ms=1000,
    )


@pytest.mark.parametrize(
    ("broker", "lines", "expected"),
    [
        pytest.param(1, [], directory("a"), id="the only one"),
        pytest.param(2, [], UNASSIGNED_DIR, id="never among several"),
        pytest.param(2, ["heartbeat 2 offline=b"], directory("c"), id="the only one left"),
        pytest.param(1, ["heartbeat 1 offline=a"], UNASSIGNED_DIR, id="none left"),
        pytest.param(
            2, ["feature 30", "heartbeat 2 impaired=b"], directory("c"), id="not impaired"
        ),
        pytest.param(9, [], UNASSIGNED_DIR, id="unknown broker"),
    ],
)
def test_default_dir_is_the_only_usable_directory_or_unassigned(
    world: World, broker: int, lines: list[str], expected: DirectoryId
) -> None:
    for line in lines:
        list(world.run(line))
    assert _cluster(world).default_dir(BrokerId(broker)) == expected
    assert expected != MIGRATING_DIR


def test_usable_brokers_exclude_shutting_down_and_offline_ones(world: World) -> None:
    list(world.run("topic t replicas=2"))
    list(world.run("heartbeat 2 want_shut_down"))
    list(world.run("heartbeat 4 offline=e,f"))
    usable = _cluster(world).usable_brokers()
    assert [(broker.broker_id, broker.fenced) for broker in usable] == [(1, False), (3, True)]


def test_brokers_by_use_counts_reasons_against_new_replicas(world: World) -> None:
    list(world.run("feature 30"))
    list(world.run("heartbeat 1 impaired=a"))
    list(world.run("heartbeat 2 impaired=b cordoned=c"))
    list(world.run("heartbeat 4 impaired=e offline=f cordoned=e"))
    assert _cluster(world).brokers_by_use() == (
        "Brokers: 4 registered, 1 fenced, 0 shutting down, "
        "1 with all directories cordoned or offline, 2 with all others full or stalled."
    )
    assert [broker.broker_id for broker in _cluster(world).usable_brokers()] == [3]


def test_active_brokers_are_unfenced_and_their_known_directories_acceptable(world: World) -> None:
    cluster = _cluster(world)
    assert list(cluster.active_brokers()) == [1, 2, 4]
    assert list(cluster.unfenced_brokers()) == [1, 2, 4]
    assert not cluster.is_active(BrokerId(3))
    assert not cluster.is_active(BrokerId(9))
    assert cluster.acceptance(BrokerId(2), directory("b")) is Acceptance.ACCEPTABLE
    assert cluster.acceptance(BrokerId(2), directory("x")) is Acceptance.REFUSED
