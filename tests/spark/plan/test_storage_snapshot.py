"""The conversion of brokers' answers to the input of plans; the plan job's tests send requests."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.balance.cluster_planner import plan_cluster
from kraftjbod.balance.placement import Drain, LogDir, PlanRequest
from kraftjbod.cli.clients.cluster_client import (
    BrokerNode,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from kraftjbod.cli.clients.replica_admin import LogDirDescription, OngoingReassignment, ReplicaSize
from kraftjbod.core.errors import ErrorCode, StartupError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.plan.storage_snapshot import StorageSnapshot, require_sizes


def held(partition: int, size: int, *, is_future: bool = False) -> ReplicaSize:
    return ReplicaSize(
        topic="t", partition=partition, size_bytes=size, offset_lag=0, is_future=is_future
    )


def log_dir(path: str, *replicas: ReplicaSize, **more: Any) -> LogDirDescription:
    given = {"error_code": 0, "total_bytes": 1000, "usable_bytes": 500, "is_cordoned": False}
    return LogDirDescription(path=path, replicas=replicas, **{**given, **more})


def metadata(*brokers: int, **partitions: tuple[int, ...]) -> ClusterMetadata:
    """Return partitions as ``p0=(1, 2)``, led by their first broker."""
    return ClusterMetadata(
        brokers={
            n: BrokerNode(node_id=n, host="h", port=1, rack="r" if n == 1 else None)
            for n in brokers
        },
        topics={
            "t": TopicMetadata(
                name="t",
                topic_id=bytes(16),
                is_internal=False,
                error_code=0,
                partitions={
                    int(name[1:]): PartitionMetadata(
                        partition=int(name[1:]),
                        leader=replicas[0],
                        leader_epoch=0,
                        replicas=replicas,
                        isr=replicas,
                        offline_replicas=(),
                    )
                    for name, replicas in partitions.items()
                },
            )
        },
    )


OFFLINE = {"error_code": ErrorCode.KAFKA_STORAGE_ERROR, "total_bytes": -1, "usable_bytes": -1}


def snapshot(**more: Any) -> StorageSnapshot:
    log_dirs = {
        1: [
            log_dir("/a", held(0, 100), held(1, 50), held(9, 5), state="saturated"),
            log_dir("/b", held(0, 30, is_future=True), is_cordoned=True),
        ],
        2: [log_dir("/a", held(1, 40)), log_dir("/dead", **OFFLINE)],
    }
    given = {
        "metadata": metadata(1, 2, p0=(1, 3), p1=(2, 1)),
        "ongoing": {},
        "log_dirs": log_dirs,
        "kept_free": {1: 100, 2: 600},
        "rates": {(1, "t", 0): 2.5},
    }
    return StorageSnapshot(**{**given, **more})


def test_snapshot_dirs_have_reported_states_with_and_without_extensions() -> None:
    assert snapshot().dirs == [
        (1, "r", "/a", None, "saturated", False, 1000, 400),
        (1, "r", "/b", None, "online", True, 1000, 400),
        (2, None, "/a", None, "online", False, 1000, 0),
        (2, None, "/dead", None, "offline", False, 0, 0),
    ]


def test_snapshot_replicas_have_the_assignment_of_their_partition() -> None:
    assert sorted(snapshot().replicas) == [
        ("t", 0, 1, "/a", 100, 2.5, True, False, (1, 3)),
        ("t", 0, 1, "/b", 30, 0.0, True, True, (1, 3)),
        ("t", 1, 1, "/a", 50, 0.0, False, False, (2, 1)),
        ("t", 1, 2, "/a", 40, 0.0, True, False, (2, 1)),
        ("t", 9, 1, "/a", 5, 0.0, False, False, None),
    ]


def test_snapshot_counts_running_reassignment_as_done() -> None:
    ongoing = {
        TopicPartition("t", 1): OngoingReassignment(replicas=(2, 1), adding=(2,), removing=(1,))
    }
    found = [one for one in snapshot(ongoing=ongoing).replicas if one.partition == 1]
    assert found == [("t", 1, 2, "/a", 50, 0.0, True, True, (2, 1))]


def test_snapshot_notes_name_what_a_plan_leaves_out() -> None:
    ongoing = {TopicPartition("t", 1): OngoingReassignment(replicas=(2,), adding=(), removing=())}
    offline, absent, moving = snapshot(ongoing=ongoing).notes
    assert "/dead of broker 2 is offline" in offline
    assert absent == "broker 3 does not run: its replicas stay out of the plan"
    assert moving.startswith("1 partitions are being reassigned")


def test_snapshot_takes_replicas_of_lost_drained_broker_from_metadata() -> None:
    found = snapshot(metadata=metadata(1, 2, p0=(1, 3), p1=(2, 1, 3), p2=(-1, 3)), lost=[3])
    assert found.dirs[-1] == (3, None, "any", None, "online", True, 0, 0)
    assert [one for one in found.replicas if one.broker_id == 3] == [
        ("t", 0, 3, "any", 100, 2.5, False, False, (1, 3)),
        ("t", 1, 3, "any", 50, 0.0, False, False, (2, 1, 3)),
    ]
    request = PlanRequest(across_brokers=True, drains=(Drain(broker_id=3),))
    roomy = [LogDir(4, "r", "/c", None, "online", False, 10_000, 10_000)]
    plan = plan_cluster(found.dirs + roomy, found.replicas, request)
    drained = [move for move in plan.moves if move.from_broker == 3]
    assert sorted(move[:2] for move in drained) == [("t", 0), ("t", 1)]
    assert {(move.to_broker, move.to_path) for move in drained} == {(4, "/c")}
    assert "broker 3 does not run: its replicas are copied from their leaders" in found.notes
    assert any(note.startswith("1 partitions of broker 3 have no leader") for note in found.notes)


def test_require_sizes_of_unknown_size_is_refused() -> None:
    require_sizes({2: [log_dir("/dead", **OFFLINE)]})
    with pytest.raises(StartupError, match="broker 1 does not report how large the disk of /a is"):
        require_sizes({1: [log_dir("/a", total_bytes=-1)]})
