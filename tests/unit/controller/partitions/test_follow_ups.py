"""Changes of a broker with many partitions are applied in parts, with other requests in between."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest

from kraftjbod.controller import replication_control
from kraftjbod.core.ids import BrokerId, ConnectionId, TopicId, Uuid
from kraftjbod.metadata.records import PartitionChangeRecord
from kraftjbod.protocol import rpc_messages as m
from tests.golden.transcript import World, directory
from tests.unit.controller.conftest import ONE, TWO, Node

PARTITIONS = 23
AT_ONCE = 5


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replication_control, "MAX_FOLLOWED_AT_ONCE", AT_ONCE)


def _world() -> World:
    """Return a world whose broker 1 leads half of the partitions and is in sync for all."""
    world = World()
    replicas = "|".join(["2,1" if index % 2 else "1,2" for index in range(PARTITIONS)])
    for line in ("up 1 dirs=a", "up 2 dirs=b", f"topic t replicas={replicas}"):
        list(world.run(line))
    return world


def _standings(world: World) -> list[str]:
    return list(world.state_lines())


def _part(world: World) -> bool:
    """Apply one more part; return False if none is left."""
    if not world.managers.has_follow_ups:
        return False
    result = world.managers.follow_up()
    assert sum(isinstance(r, PartitionChangeRecord) for r in result.records) <= AT_ONCE
    world.commit(result.records)
    return True


def _finish(world: World) -> None:
    for _ in range(10 * PARTITIONS):
        if not _part(world):
            return
    pytest.fail("the follow-ups never end")


def _in_one_go(monkeypatch: pytest.MonkeyPatch, *lines: str) -> list[str]:
    with monkeypatch.context() as patch:
        patch.setattr(replication_control, "MAX_FOLLOWED_AT_ONCE", 1000)
        world = _world()
        for line in lines:
            list(world.run(line))
        assert not world.managers.has_follow_ups
        return _standings(world)


@pytest.mark.parametrize("change", ["want_fence", "want_shut_down", "offline=a"])
def test_follow_ups_yield_same_state_as_one_entry(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = _world()
    list(world.run(f"heartbeat 1 {change}"))
    assert len(world.entries[-1]) == AT_ONCE + 1, "the first part, and the broker's record"
    broker = world.state.brokers[ONE]
    assert broker.fenced or broker.in_controlled_shutdown
    led = world.managers.index.led_count(ONE)
    assert led == PARTITIONS // 2 + 1 - AT_ONCE, "partitions that it leads come first"
    _finish(world)
    assert _standings(world) == _in_one_go(monkeypatch, f"heartbeat 1 {change}")
    list(world.run("heartbeat 1"))


def test_leaderless_partitions_elect_returned_broker_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = _world()
    lines = ("heartbeat 1 want_fence", "heartbeat 2 want_fence", "heartbeat 2")
    for line in lines:
        list(world.run(line))
        _finish(world)
    assert not world.managers.index.leaderless_count
    assert _standings(world) == _in_one_go(monkeypatch, *lines)


def test_broker_unfenced_between_two_parts_keeps_remaining_leaderships() -> None:
    world = _world()
    list(world.run("heartbeat 1 want_fence"))
    _part(world)
    led = world.managers.index.led_count(ONE)
    list(world.run("heartbeat 1"))
    _finish(world)
    assert world.managers.index.led_count(ONE) == led > 0
    assert not world.managers.index.leaderless_count


def test_follow_ups_skip_topic_deleted_between_two_parts() -> None:
    world = _world()
    list(world.run("heartbeat 1 want_fence"))
    list(world.run("delete t"))
    _finish(world)
    assert not world.managers.has_follow_ups


@pytest.mark.parametrize("parts", [0, 2])
def test_new_controller_continues_follow_ups_from_state_alone(
    parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ("heartbeat 1 want_fence", "heartbeat 2 want_fence")
    world = _world()
    for line in lines:
        list(world.run(line))
        for _ in range(parts):
            _part(world)
    world.rebuild_from_snapshot(1000)
    world.managers.take_leadership(0)
    _finish(world)
    leaderless = world.managers.index.leaderless_count
    assert leaderless == PARTITIONS, "both are fenced"
    list(world.run("heartbeat 2"))
    world.rebuild_from_snapshot(1000)
    world.managers.take_leadership(0)
    _finish(world)
    wanted = [line for line in _in_one_go(monkeypatch, *lines, "heartbeat 2") if " leader " in line]
    assert world.managers.index.led_count(TWO) == sum(" leader 2 " in line for line in wanted)


def test_controlled_shutdown_completes_after_brokers_replayed_the_last_part() -> None:
    """A broker that has replayed only the first part would still send clients to the leaving
    broker."""
    world = _world()
    list(world.run("heartbeat 1 want_shut_down"))
    first = world.state.offset
    _finish(world)
    for behind, stops in ((first, False), (world.state.offset, True)):
        for broker_id in (2, 1):
            *_, said = world.run(
                f"heartbeat {broker_id} offset={behind}" + " want_shut_down" * (broker_id == 1)
            )
        assert ("shut down now" in said) is stops, said


def test_registration_after_unclean_stop_is_decided_in_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(replication_control, "MAX_FOLLOWED_AT_ONCE", 1000)
        whole = _world()
        whole.now_ms = 20_000
        whole.ask(_return())
    world = _world()
    world.now_ms = 20_000
    result = world.managers.decide(_return(), now_ms=world.now_ms)
    parts = 0
    while result.is_part:
        parts += 1
        assert len(result.records) == AT_ONCE
        assert not world.state.brokers[ONE].fenced, "it is not registered before the last part"
        world.commit(result.records)
        result = world.managers.decide(_return(), now_ms=world.now_ms)
    world.commit(result.records)
    assert parts == PARTITIONS // AT_ONCE
    assert isinstance(result.response, m.BrokerRegistrationResponse)
    assert result.response.broker_epoch == world.state.offset == world.state.brokers[ONE].epoch
    assert _standings(world)[2:] == _standings(whole)[2:]


def _return() -> m.BrokerRegistrationRequest:
    return m.BrokerRegistrationRequest(
        broker_id=ONE,
        cluster_id="golden",
        incarnation_id=Uuid(b"another~~~~~~~~~"),
        listeners=(m.ListenerInfo(name="P", host="h", port=1),),
        log_dirs=(directory("a"),),
    )


async def test_controller_answers_heartbeats_between_two_parts(node: Node) -> None:
    """Before, the death of a broker with many partitions delayed heartbeats and lost the
    leadership."""
    one = await node.register("a", ONE)
    two = await node.register("b", TWO)
    await node.heartbeat(one, connection=5)
    await node.heartbeat(two, broker_id=TWO, connection=6)
    await node.controller.handle(_many())
    await _answered_meanwhile(node, lambda: node.heartbeat(two, broker_id=TWO, connection=6))
    assert not node.managers.index.led_count(ONE)
    assert node.managers.index.led_count(TWO) == PARTITIONS


def _many() -> m.CreateTopicsRequestRpc:
    topic = m.NewTopic(name="t", num_partitions=PARTITIONS, replication_factor=2)
    return m.CreateTopicsRequestRpc(topics=(topic,), topic_ids=(TopicId(bytes(16)),))


async def _answered_meanwhile(node: Node, ask: Callable[[], Awaitable[object]]) -> None:
    node.has_no_listener = True
    led = node.managers.index.led_count(ONE)
    node.controller.connection_closed(ConnectionId(5))
    seen = {led}
    while node.managers.index.led_count(ONE):
        await ask()
        # A heartbeat that changes nothing is answered without a wait.
        await asyncio.sleep(0)
        seen.add(node.managers.index.led_count(ONE))
    assert len(seen) > 2, "heartbeats were answered between parts"


async def test_registration_in_parts_answers_with_the_final_epoch(node: Node) -> None:
    one = await node.register("a", ONE)
    two = await node.register("b", TWO)
    await node.heartbeat(one, connection=5)
    await node.heartbeat(two, broker_id=TWO)
    await node.controller.handle(_many())
    node.controller.connection_closed(ConnectionId(5))
    epoch = await node.register("a", ONE, incarnation=b"\1")
    assert node.managers.state.brokers[ONE].epoch == epoch > one
    assert not node.managers.index.partitions_in_isr(BrokerId(1))


def test_replaced_control_managers_are_freed_without_garbage_collection() -> None:
    """A rebuilt state replaces one that the garbage collector no longer scans."""
    world = _world()
    gone = weakref.ref(world.managers)
    gc.disable()
    try:
        world.rebuild_from_snapshot(1000)
        assert gone() is None
    finally:
        gc.enable()
