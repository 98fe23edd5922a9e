"""Changes of a broker with many partitions are applied in parts, with other requests in between."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable

import pytest

from kraftjbod.controller import replication_control
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import UNKNOWN_BROKER_EPOCH, BrokerId, ConnectionId, TopicId, Uuid
from kraftjbod.metadata.records import PartitionChangeRecord
from kraftjbod.protocol import rpc_messages as m
from tests.golden.transcript import ELR, World, directory
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


@pytest.mark.parametrize("has_elr", [False, True])
@pytest.mark.parametrize("is_reported", [False, True])
def test_directory_returned_in_parts_leads_only_after_its_registration(
    has_elr: bool, is_reported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by simulated seed 2940994: each part elected the returning replicas again, before the
    registration named their directory as online.

    :param is_reported: whether the broker reported that the directory failed.
    """
    lines = ("heartbeat 1 offline=a",) if is_reported else ()
    with monkeypatch.context() as patch:
        patch.setattr(replication_control, "MAX_FOLLOWED_AT_ONCE", 1000)
        whole = _world_of_last_copies("1", lines=lines, has_elr=has_elr)
        whole.ask(_reattach(whole))
    world = _world_of_last_copies("1", lines=lines, has_elr=has_elr)
    parts = _reattach_in_parts(world)
    assert len(parts) == PARTITIONS // AT_ONCE
    elected = [record.leader for part in parts for record in part if record.leader == ONE]
    assert not elected, "the directory has not returned yet"
    assert world.state.brokers[ONE].log_dirs == (directory("a"), directory("b"))
    _finish(world)
    assert world.managers.index.led_count(ONE) == PARTITIONS
    assert _leaders(world) == _leaders(whole)


@pytest.mark.parametrize("has_elr", [False, True])
def test_unclean_return_in_parts_elects_no_lagging_replica(has_elr: bool) -> None:
    """The last leader, which is about to return, has more records than the lagging replica."""
    world = _world_of_last_copies(
        "1,2",
        options="min.insync.replicas=1 unclean.leader.election.enable=true",
        lines=("heartbeat 2 want_fence", "heartbeat 2"),
        has_elr=has_elr,
    )
    parts = _reattach_in_parts(world)
    assert not any(record.leader == TWO for part in parts for record in part)
    _finish(world)
    assert world.managers.index.led_count(ONE) == PARTITIONS


@pytest.mark.parametrize("has_elr", [False, True])
@pytest.mark.parametrize("replicas", ["1", "1,2"])
@pytest.mark.parametrize("is_interrupted", [False, True])
def test_forgotten_directory_is_decided_in_parts(
    has_elr: bool, replicas: str, is_interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One decision about 4,000 replicas blocked the event loop for 0.12 seconds.

    :param is_interrupted: whether another controller becomes active after each part.
    """
    with monkeypatch.context() as patch:
        patch.setattr(replication_control, "MAX_FOLLOWED_AT_ONCE", 1000)
        whole = _world_before_forget(replicas, has_elr=has_elr)
        whole.ask(_forget(whole))
    world = _world_before_forget(replicas, has_elr=has_elr)
    parts = 0
    while (result := world.managers.decide(_forget(world), now_ms=world.now_ms)).is_part:
        parts += 1
        assert len(result.records) == AT_ONCE
        assert ONE not in {r.leader for r in result.records if isinstance(r, PartitionChangeRecord)}
        world.commit(result.records)
        assert directory("a") in world.state.brokers[ONE].offline_log_dirs
        if is_interrupted:
            world.rebuild_from_snapshot(1000)
            world.managers.take_leadership(0)
            _finish(world)
    world.commit(result.records)
    _finish(world)
    assert parts == PARTITIONS // AT_ONCE
    assert not world.managers.index.partitions_in_directory(ONE, directory("a"))
    assert directory("a") not in world.state.brokers[ONE].known_log_dirs
    assert _leaders(world) == _leaders(whole)


def _world_before_forget(replicas: str, *, has_elr: bool) -> World:
    world = _world_of_last_copies(
        replicas,
        options="min.insync.replicas=1 unclean.leader.election.enable=true",
        lines=("heartbeat 2 want_fence", "heartbeat 2"),
        has_elr=has_elr,
    )
    list(world.run("heartbeat 1 offline=a"))
    _finish(world)
    return world


def test_forget_of_last_copies_is_refused_before_the_first_part() -> None:
    world = _world_of_last_copies("1", lines=("heartbeat 1 offline=a",), has_elr=False)
    offset = world.state.offset
    with pytest.raises(OperatingError, match="holds the last in-sync replica of t-0, t-1"):
        world.managers.decide(_forget(world), now_ms=world.now_ms)
    assert world.state.offset == offset


def _world_of_last_copies(
    replicas: str, *, options: str = "", lines: tuple[str, ...] = (), has_elr: bool
) -> World:
    """Return a world whose broker 1 has the only in-sync replica of each partition, in directory a.

    :param options: configuration of the topic.
    :param lines: commands that follow the creation of the topic.
    """
    world = World()
    features = ("feature 30", "feature 1 elr") if has_elr else ()
    topic = f"topic t replicas={'|'.join([replicas] * PARTITIONS)} {options}"
    homes = " ".join(f"t-{index}=a" for index in range(PARTITIONS))
    brokers = ("up 1 dirs=a,b", "up 2 dirs=c")
    for line in (*features, *brokers, topic, f"assign 1 {homes}", *lines):
        printed = list(world.run(line))
        assert not any(one.startswith("error") for one in printed), printed
        _finish(world)
    assert all(partition.isr in ((ONE,), ()) for _, partition in world.state.partitions())
    return world


def _reattach(world: World) -> m.BrokerRegistrationRequest:
    """Return the request by which broker 1 registers again with directory a, which is unclean."""
    former = world.state.brokers[ONE]
    return m.BrokerRegistrationRequest(
        broker_id=ONE,
        cluster_id="golden",
        incarnation_id=former.incarnation_id,
        listeners=(m.ListenerInfo(name="P", host="h", port=1),),
        features={ELR: (0, 1), "metadata.version": (1, 30)},
        log_dirs=(directory("a"), directory("b")),
        clean_shutdown_epochs=(UNKNOWN_BROKER_EPOCH, former.epoch),
    )


def _forget(world: World) -> m.BrokerRegistrationRequest:
    """Return the request by which broker 1 registers again without directory a, permanently."""
    request = _reattach(world)
    return request.model_copy(
        update={
            "log_dirs": (directory("b"),),
            "clean_shutdown_epochs": request.clean_shutdown_epochs[1:],
            "forgotten_log_dirs": (directory("a"),),
        }
    )


def _reattach_in_parts(world: World) -> list[tuple[PartitionChangeRecord, ...]]:
    """Register broker 1 with directory a, and return the records of the parts before the last."""
    parts = []
    while (result := world.managers.decide(_reattach(world), now_ms=world.now_ms)).is_part:
        part = tuple(r for r in result.records if isinstance(r, PartitionChangeRecord))
        assert len(result.records) == len(part) == AT_ONCE
        assert not {record.partition_id for record in part} & {
            record.partition_id for former in parts for record in former
        }, "each partition fails in one part"
        parts.append(part)
        world.commit(result.records)
    world.commit(result.records)
    return parts


def _leaders(world: World) -> list[tuple[object, ...]]:
    """Return leader, in-sync and eligible replicas and recovery of each partition."""
    return [
        (p.leader, p.isr, p.elr, p.last_known_elr, p.leader_recovering)
        for _, p in world.state.partitions()
    ]


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
