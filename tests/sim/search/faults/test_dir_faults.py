from __future__ import annotations

import asyncio
import random

import pytest

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.sim.search.cluster_view import ClusterView
from tests.sim.search.faults.dir_faults import DirFaults
from tests.sim.search.faults.operator_work import (
    _ELECTED_UNCLEAN,
    OperatorWork,
)
from tests.sim.search.faults.play_kinds import play
from tests.sim.search.faults.schedule import Fault, Kind
from tests.sim.search.faults.stage import Stage

OF_DISKS = [
    Kind.EIO,
    Kind.EIO_ONCE,
    Kind.UNREPORTED_EIO,
    Kind.LOST_TAIL,
    Kind.HANG,
    Kind.SLOW,
    Kind.FULL,
    Kind.VANISH,
    Kind.WIPE,
    Kind.MOVE_HANG,
    Kind.ROT,
    Kind.ROT_BESIDE,
    Kind.CLUTTER,
    Kind.WRITEBACK,
]

OF_REPLICAS = [Kind.REPLICA_REMOVED, Kind.REMAINS_REMOVED]


def test_each_kind_of_disk_fault_ends_and_breaks_no_invariant() -> None:
    play(OF_DISKS)
    # The fault lasts until two scrubs are over, so that others would be skipped.
    play([Kind.LOST_END])


def test_removal_of_replica_directories_ends_and_breaks_no_invariant() -> None:
    play(OF_REPLICAS)


def test_wiped_disk_already_in_service_as_new_one_is_not_forgotten() -> None:
    """As after a kill between the controller's decision and the operator's response.

    Forgetting a disk with replicas is refused permanently."""
    notes: list[str] = []
    with SimulatedCluster(5) as cluster:
        view = ClusterView(cluster)
        stage = Stage(cluster, view, topics={"t": 4}, note=notes.append)
        cluster.start()
        client = cluster.client("operator")
        client.run(create_topic(client.kafka, "t", partitions=4, replication_factor=3))
        operator = OperatorWork(stage, make_client=lambda name: client.new_kafka(client_id=name))
        # No request or response is delayed.
        choice = next(n for n in range(99) if random.Random(n).random() > 0.6)
        fault = Fault(
            number=1, at_ms=0, kind=Kind.WIPE, broker=2, dir=1, other=3, for_ms=9_000, choice=choice
        )
        path = stage.path(fault)

        async def add_it_again() -> None:
            while view.dir_state(2, path) is not LogDirState.OFFLINE:
                await asyncio.sleep(0.1)
            for operation in ("forget", "add"):
                await operator.order(fault, operation, but=ErrorCode.NONE)
            await operator.move_to(2, path, [TopicPartition("t", n) for n in range(4)])
            while not stage.replicas_in(2, path):
                await asyncio.sleep(0.1)

        async def play() -> None:
            adding = asyncio.create_task(add_it_again())
            await DirFaults(stage, operator).plays()[Kind.WIPE](fault)
            await adding

        client.run(play(), timeout_ms=60_000)
        assert notes.count(f"forget {path}: done") == 1


@pytest.mark.parametrize("is_elected", [True, False])
def test_wipe_of_last_in_sync_replica_ends_once_the_operator_allows_unclean_election(
    is_elected: bool,
) -> None:
    """The broker refuses to forget the disk until the operator abandons the topic's records."""
    choice = next(
        n for n in range(999) if is_elected is (random.Random(n).random() < _ELECTED_UNCLEAN)
    )
    with SimulatedCluster(6, log_dirs=2) as cluster:
        view, notes = ClusterView(cluster), list[str]()
        stage = Stage(cluster, view, topics={"loose": 1}, note=notes.append, loose={"loose"})
        cluster.start()
        client = cluster.client("operator")
        configs = {"min.insync.replicas": "1"}
        client.run(create_topic(client.kafka, "loose", assignment={0: [2, 1, 3]}, configs=configs))
        operator = OperatorWork(stage, make_client=lambda name: client.new_kafka(client_id=name))
        cluster.wait_for(lambda: not view.not_whole(2), "the topic's replicas")
        path = next(one for one in cluster.broker(2).log_dirs if stage.replicas_in(2, one))
        fault = Fault(
            number=1,
            at_ms=0,
            kind=Kind.WIPE,
            broker=2,
            dir=cluster.broker(2).log_dirs.index(path),
            other=3,
            for_ms=500,
            choice=choice,
        )

        async def play() -> None:
            for broker in (1, 3):
                await stage.stop_host(cluster.broker(broker))
            wiping = asyncio.create_task(DirFaults(stage, operator).plays()[Kind.WIPE](fault))
            assert await stage.until_offline_or_end(fault)
            for broker in (1, 3):
                await stage.until_serving(broker)
            await wiping
            while view.not_whole(2):
                await asyncio.sleep(0.1)

        client.run(play(), timeout_ms=60_000)
        elected = "elect unclean leaders of loose-0: done"
        allowed = "topic loose: set unclean.leader.election.enable=true: done"
        assert [elected in notes, allowed in notes] == [is_elected, not is_elected]
        assert notes.count(f"forget {path}: done") == 1
