from __future__ import annotations

import asyncio
import random

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.testing.simulation.cluster_view import ClusterView
from kraftjbod.testing.simulation.search.faults.dir_faults import DirFaults
from kraftjbod.testing.simulation.search.faults.operator_work import OperatorWork
from kraftjbod.testing.simulation.search.faults.schedule import Fault, Kind
from kraftjbod.testing.simulation.search.faults.stage import Stage
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.sim.search.faults.play_kinds import play

OF_DISKS = [
    Kind.EIO,
    Kind.EIO_ONCE,
    Kind.UNHEARD_EIO,
    Kind.LOST_TAIL,
    Kind.HANG,
    Kind.SLOW,
    Kind.FULL,
    Kind.VANISH,
    Kind.WIPE,
    Kind.MOVE_HANG,
    Kind.ROT,
    Kind.ROT_BESIDE,
    Kind.LOST_END,
    Kind.CLUTTER,
    Kind.WRITEBACK,
]


def test_disks_are_in_use_again_whatever_befell_them() -> None:
    play(OF_DISKS)


def test_an_empty_disk_that_is_in_service_as_a_new_one_by_then_is_not_forgotten():
    """As after a kill between the controller's word and the operator's answer: with replicas on it
    that is refused, for ever."""
    notes: list[str] = []
    with SimulatedCluster(5) as cluster:
        view = ClusterView(cluster)
        stage = Stage(cluster, view, topics={"t": 4}, note=notes.append)
        cluster.start()
        client = cluster.client("operator")
        client.run(create_topic(client.kafka, "t", partitions=4, replication_factor=3))
        operator = OperatorWork(stage, make_client=lambda name: client.new_kafka(client_id=name))
        # Nothing of it comes late.
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
