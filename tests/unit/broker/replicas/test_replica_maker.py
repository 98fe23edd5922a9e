"""Where new logs are made while directories fill, stall and die."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.broker.partitions.replica_states import ReplicaState
from kraftjbod.core.ids import UNASSIGNED_DIR
from kraftjbod.storage.log.log_handle import LogHandle
from tests.unit.broker.broker_rig import TP, BrokerRig, brokers, dir_of, partition, topic
from tests.unit.broker.gates import until
from tests.unit.broker.impaired_dirs import answer, fill, stall


def state_of(rig: BrokerRig) -> ReplicaState:
    replica = rig.parts.hosted.get(TP)
    assert replica is not None
    return replica.state


def place_of(rig: BrokerRig) -> str:
    handle = rig.logs.get(TP)
    assert handle is not None
    return handle.log_dir.path


async def test_without_a_place_of_its_own_a_replica_is_made_where_there_is_space() -> None:
    async with brokers() as (rig,):
        await fill(rig.dirs[0])
        await rig.follow(topic(), partition(directories=[UNASSIGNED_DIR]))
        assert (place_of(rig), state_of(rig)) == ("/d2", ReplicaState.ONLINE)


async def test_where_every_directory_is_impaired_it_is_made_in_the_first_that_is_not() -> None:
    async with brokers() as (rig,):
        rig.tasks.start(rig.parts.state_handler.run(), "handler")
        await fill(rig.dirs[0])
        stall(rig.dirs[1])
        with capture_logs() as logged:
            await rig.follow(topic(), partition(directories=[UNASSIGNED_DIR]))
        waits = [line for line in logged if line["event"] == "replica_awaits_impaired_dir"]
        assert len(waits) == 1 and "/d1 is saturated" in waits[0]["reason"]
        assert state_of(rig) is ReplicaState.HELD_BACK
        await answer(rig.dirs[1])
        await until(lambda: state_of(rig) is ReplicaState.ONLINE)
        assert place_of(rig) == "/d2"


async def test_a_wish_for_a_full_directory_is_no_reason_to_wait() -> None:
    async with brokers() as (rig,):
        rig.parts.manager.prefer_directory(TP, dir_of(1, 2))
        await fill(rig.dirs[1])
        await rig.follow(topic(), partition(directories=[UNASSIGNED_DIR]))
        assert place_of(rig) == "/d1"


@pytest.mark.parametrize("where", ["wished", "named"])
async def test_a_place_from_before_the_cordon_is_chosen_anew(where: str) -> None:
    """KIP-1066: it takes no new replicas, whoever said so when it did."""
    async with brokers() as (rig,):
        wished = UNASSIGNED_DIR if where == "wished" else dir_of(1, 2)
        if where == "wished":
            rig.parts.manager.prefer_directory(TP, dir_of(1, 2))
        rig.dirs[1].is_cordoned = True
        await rig.follow(topic(), partition(directories=[wished]))
        await rig.parts.assignments.idle()
        assert place_of(rig) == "/d1"


async def test_replica_waits_while_all_online_directories_are_cordoned() -> None:
    """KIP-1066: a cordoned directory takes no new replicas, also if it is the last one."""
    async with brokers() as (rig,):
        await fill(rig.dirs[0])
        rig.dirs[1].is_cordoned = True
        await rig.follow(topic(), partition(directories=[dir_of(1, 2)]))
        assert state_of(rig) is ReplicaState.HELD_BACK
        rig.dirs[1].is_cordoned = False
        rig.parts.publisher.reconcile_again()
        await until(lambda: state_of(rig) is ReplicaState.ONLINE)
        assert place_of(rig) == "/d2"


async def test_replica_waits_while_all_directories_are_cordoned() -> None:
    """It was placed before the controller knew."""
    async with brokers() as (rig,):
        for log_dir in rig.dirs:
            log_dir.is_cordoned = True
        await rig.follow(topic(), partition())
        assert state_of(rig) is ReplicaState.HELD_BACK


async def test_what_waits_for_space_is_made_elsewhere_when_that_directory_dies() -> None:
    async with brokers() as (rig,):
        rig.tasks.start(rig.parts.state_handler.run(), "handler")
        await fill(rig.dirs[0])
        await rig.follow(topic(), partition())
        assert state_of(rig) is ReplicaState.HELD_BACK
        rig.dirs[0].go_offline("test")
        await until(lambda: state_of(rig) is ReplicaState.ONLINE)
        assert place_of(rig) == "/d2"


async def test_a_directory_that_healed_before_its_refusal_was_heard_is_simply_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would look again: that it is all right was reported already."""
    async with brokers() as (rig,):
        create, refusals = rig.logs.create, [rig.dirs[0].impaired_error()]

        async def late(*wanted: Any) -> LogHandle:
            if refusals:
                raise refusals.pop()
            return await create(*wanted)

        monkeypatch.setattr(rig.logs, "create", late)
        await rig.follow(topic(), partition())
        assert refusals == [] and state_of(rig) is ReplicaState.ONLINE
