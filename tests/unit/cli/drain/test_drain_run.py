"""``Drain`` against a scripted broker: draining, refusing and cancelling."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.drain.drain_run import DoesNotFitError, Drain, DrainOptions
from kraftjbod.cli.reassignment.reassignment_plan import ReassignmentError
from kraftjbod.cli.reassignment.reassignment_progress import StalledError
from kraftjbod.cli.reassignment.reassignment_throttles import MOVER_RATE
from tests.unit.cli.drain.drained_broker import CORDONS, DrainedBroker, drained_broker
from tests.unit.cli.mini_broker import BROKER_ID
from tests.unit.cli.reassignment.moving_broker import SIZE_BYTES


@asynccontextmanager
async def draining(
    broker: DrainedBroker, reported: list[str], *, throttle: int | None = None
) -> AsyncIterator[Drain]:
    async with ClusterClient(broker.address, retry_timeout_ms=2_000) as client:
        options = DrainOptions(throttle=throttle, poll_ms=1, settle_ms=20)
        yield await Drain.find(client, BROKER_ID, "/d1", options, report=reported.append)


async def test_drain_run_moves_all_replicas_including_ones_created_meanwhile() -> None:
    reported: list[str] = []
    async with drained_broker() as broker, draining(broker, reported) as drain:
        broker.hold("foo", 3)
        late = [lambda: broker.hold("late")]
        broker.at_poll.append(lambda: late.pop()() if late and broker.future else None)
        assert await drain.run_drain() == 4
        assert set(broker.current.values()) == {"/d2"}
        assert broker.broker_configs == {CORDONS: "/d1"}
        assert reported == [
            f"directory /d1 of broker {BROKER_ID} is cordoned: it takes no new replicas"
        ]


async def test_drain_run_on_empty_directory_sets_cordon_and_moves_nothing() -> None:
    async with drained_broker() as broker, draining(broker, []) as drain:
        assert await drain.run_drain() == 0
        assert broker.broker_configs == {CORDONS: "/d1"}


async def test_drain_plan_starts_no_move_and_sets_no_cordon() -> None:
    async with drained_broker() as broker, draining(broker, []) as drain:
        broker.hold("foo", 2)
        plan = await drain.plan()
        assert ([str(m.target) for m in plan.moves], plan.misfits) == ([f"{BROKER_ID}:/d2"] * 2, ())
        assert (broker.future, broker.broker_configs) == ({}, {})


@pytest.mark.parametrize("before", [None, "/d3", ""])
async def test_drain_run_with_misfit_moves_nothing_and_restores_cordons(before: str | None) -> None:
    async with drained_broker() as broker, draining(broker, []) as drain:
        broker.hold("foo", 2)
        broker.usable["/d2"] = SIZE_BYTES
        configs = {} if before is None else {CORDONS: before}
        broker.broker_configs |= configs
        with pytest.raises(DoesNotFitError) as refused:
            await drain.run_drain()
        assert len(refused.value.plan.misfits) == 1
        assert (broker.future, broker.broker_configs) == ({}, configs)


async def test_drain_run_with_misfit_keeps_cordon_that_was_set_before() -> None:
    async with drained_broker() as broker, draining(broker, []) as drain:
        broker.hold("foo")
        broker.usable["/d2"] = 0
        broker.broker_configs[CORDONS] = "/d1"
        with pytest.raises(DoesNotFitError):
            await drain.run_drain()
        assert broker.broker_configs == {CORDONS: "/d1"}


async def test_drain_plan_keeps_reserve_and_minimum_free_bytes() -> None:
    async with drained_broker() as broker, draining(broker, []) as drain:
        broker.hold("foo")
        broker.usable["/d2"] = 3 * SIZE_BYTES
        broker.broker_configs |= {
            "log.dir.min.free.bytes": str(SIZE_BYTES),
            "log.dir.reserve.bytes": str(SIZE_BYTES + 1),
        }
        (misfit,) = (await drain.plan()).misfits
        assert misfit.best_free_bytes == SIZE_BYTES - 1


async def test_drain_run_resumes_a_drain_in_progress() -> None:
    async with drained_broker() as broker, draining(broker, []) as drain:
        broker.hold("foo")
        broker.broker_configs[CORDONS] = "/d1"
        broker.future = {("foo", 0): "/d2"}
        broker.ends_moves = False
        ends = iter([False] * 4)
        broker.at_poll.append(lambda: setattr(broker, "ends_moves", next(ends, True)))
        assert await drain.run_drain() == 1
        assert "AlterReplicaLogDirs" not in broker.asked


async def test_drain_run_reports_misfit_when_target_fills_up_meanwhile() -> None:
    async with drained_broker() as broker, draining(broker, []) as drain:
        broker.hold("foo", 2)

        def fill() -> None:
            if broker.future:
                broker.future.pop(("foo", 1), None)
                broker.usable["/d2"] = 0

        broker.at_poll.append(fill)
        with pytest.raises(DoesNotFitError) as refused:
            await drain.run_drain()
        assert [m.replica.partition for m in refused.value.plan.misfits] == [1]
        # One replica has moved, so the cordon stays.
        assert broker.broker_configs == {CORDONS: "/d1"}


async def test_drain_run_raises_stalled_error_when_moves_never_start() -> None:
    reported: list[str] = []
    async with drained_broker() as broker, draining(broker, reported) as drain:
        broker.hold("foo")
        broker.at_poll.append(broker.future.clear)
        with pytest.raises(StalledError, match="is not empty, and nothing moves: foo-0 is in /d1"):
            await drain.run_drain()


async def test_drain_run_plans_again_after_a_refused_reassignment() -> None:
    reported: list[str] = []
    async with drained_broker() as broker, draining(broker, reported) as drain:
        broker.hold("foo")
        broker.fail_next["AlterPartitionReassignments"] = [39]
        assert await drain.run_drain() == 1
        assert [line for line in reported if line.endswith("; planning again")] == [
            "Error reassigning partition(s): foo-0: no such thing; planning again"
        ]


async def test_drain_run_removes_throttle_at_the_end() -> None:
    async with drained_broker() as broker, draining(broker, [], throttle=5000) as drain:
        broker.hold("foo")
        rates: set[str | None] = set()
        broker.at_poll.append(lambda: rates.add(broker.broker_configs.get(MOVER_RATE)))
        await drain.run_drain()
        assert "5000" in rates
        assert MOVER_RATE not in broker.broker_configs


async def test_drain_cancel_reverts_moves_in_flight_and_lifts_the_cordon() -> None:
    reported: list[str] = []
    async with drained_broker() as broker, draining(broker, reported) as drain:
        broker.hold("foo", 2)
        broker.ends_moves = False
        broker.future = {("foo", 0): "/d2"}
        broker.broker_configs[CORDONS] = "/d1,/d3"
        assert await drain.cancel() == 1
        assert (broker.future, broker.broker_configs) == ({}, {CORDONS: "/d3"})
        assert await drain.cancel() == 0
        assert broker.broker_configs == {CORDONS: "/d3"}


async def test_drain_cancel_reports_that_wildcard_cordon_stays() -> None:
    reported: list[str] = []
    async with drained_broker() as broker, draining(broker, reported) as drain:
        broker.broker_configs[CORDONS] = "*"
        await drain.cancel()
        assert reported == [f"{CORDONS} is * and stays so"]


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({"metadata.log.dir": "/d1", "log.dirs": "/d2"}, True),
        ({"metadata.log.dir": "/m", "log.dirs": "/d1"}, False),
        ({"log.dirs": "/d1,/d2"}, True),
        ({"log.dirs": "/d2,/d1"}, False),
        ({"log.dir": "/d1"}, True),
        ({}, False),
    ],
)
async def test_has_metadata_compares_directory_with_metadata_log_dir(
    configs: dict[str, str], expected: bool
) -> None:
    async with drained_broker() as broker, draining(broker, []) as drain:
        broker.broker_configs |= configs
        assert await drain.has_metadata() is expected


@pytest.mark.parametrize(
    ("broker_id", "directory", "why"),
    [
        (9, None, f"there is no broker 9: .*alive: {BROKER_ID}"),
        (8, "/d1", f"broker 8 does not run.*--broker 8 drains all of it.*are: {BROKER_ID}"),
    ],
)
async def test_drain_find_refuses_unknown_brokers_and_directories_of_lost_brokers(
    broker_id: int, directory: str | None, why: str
) -> None:
    async with drained_broker() as broker, ClusterClient(broker.address) as client:
        with pytest.raises(ReassignmentError, match=why):
            await Drain.find(client, broker_id, directory, DrainOptions(), report=[].append)


async def test_drain_run_on_a_lost_broker_plans_from_metadata_and_sets_no_cordon() -> None:
    """The one live broker already has a replica of the partition, so no broker can take another
    one."""
    reported: list[str] = []
    async with drained_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        broker.replicas = (BROKER_ID, 8)
        drain = await Drain.find(
            client, 8, None, DrainOptions(poll_ms=1, settle_ms=20), report=reported.append
        )
        with pytest.raises(DoesNotFitError) as refused:
            await drain.run_drain()
        assert [str(m.replica) for m in refused.value.plan.misfits] == ["foo-0-8"]
        assert (reported, broker.broker_configs) == ([], {})


async def test_drain_run_on_a_lost_broker_names_partitions_without_a_leader() -> None:
    reported: list[str] = []
    async with drained_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        broker.replicas, broker.leader = (8,), -1
        drain = await Drain.find(
            client, 8, None, DrainOptions(poll_ms=1, settle_ms=20), report=reported.append
        )
        with pytest.raises(StalledError, match="foo-0 has a replica on broker 8 and no leader"):
            await drain.run_drain()
        assert reported == ["1 partitions cannot be copied yet, because they have no leader: foo-0"]
        assert "AlterPartitionReassignments" not in broker.asked


async def test_drain_run_on_whole_broker_without_other_brokers_reports_misfit() -> None:
    async with drained_broker() as broker, ClusterClient(broker.address) as client:
        broker.hold("foo")
        drain = await Drain.find(client, BROKER_ID, None, DrainOptions(), report=[].append)
        with pytest.raises(DoesNotFitError) as refused:
            await drain.run_drain()
        assert [m.best_free_bytes for m in refused.value.plan.misfits] == [None]
        assert broker.broker_configs == {}
