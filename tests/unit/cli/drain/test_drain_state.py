"""Replicas to drain, open places and obstacles, as the descriptions of a cluster show them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest

from kraftjbod.cli.clients.cluster_client import (
    BrokerNode,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from kraftjbod.cli.clients.replica_admin import LogDirDescription, OngoingReassignment, ReplicaSize
from kraftjbod.cli.drain.drain_plan import (
    DrainPlan,
    Leaving,
    Move,
    OpenPlace,
    Place,
    Scope,
    plan_drain,
)
from kraftjbod.cli.drain.drain_state import (
    Snapshot,
    Source,
    as_reassignment,
    find_source,
    has_lost_targets,
    leaving,
    obstacles,
    open_places_for,
    scope_of,
)
from kraftjbod.cli.reassignment.reassignment_plan import ReassignmentError, Replica
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import DirectoryId, TopicPartition

DISK, BROKER = Source(broker_id=1, path="/a"), Source(broker_id=1)
T_0 = TopicPartition("t", 0)
A_ID = DirectoryId(bytes(15) + b"\xc8")


def replica(partition: int, size: int, *, is_future: bool = False) -> ReplicaSize:
    return ReplicaSize(
        topic="t", partition=partition, size_bytes=size, offset_lag=0, is_future=is_future
    )


def log_dir(path: str, free: int, *replicas: ReplicaSize) -> LogDirDescription:
    return LogDirDescription(
        path=path,
        error_code=ErrorCode.NONE,
        total_bytes=1000,
        usable_bytes=free,
        is_cordoned=False,
        replicas=replicas,
        directory_id=A_ID if path == "/a" else None,
        state="online",
        queued_assignments=0,
    )


def cluster(
    log_dirs: Mapping[int, Sequence[LogDirDescription]],
    *replicas: tuple[int, ...],
    ongoing: Mapping[TopicPartition, OngoingReassignment] | None = None,
    kept_free: Mapping[int, int] | None = None,
) -> Snapshot:
    """Topic t with ``replicas`` by partition. Brokers without directories are dead."""
    partitions = {
        index: PartitionMetadata(
            partition=index,
            leader=brokers[0],
            leader_epoch=0,
            replicas=brokers,
            isr=brokers,
            offline_replicas=(),
        )
        for index, brokers in enumerate(replicas)
    }
    topic = TopicMetadata(
        name="t", topic_id=bytes(16), is_internal=False, error_code=0, partitions=partitions
    )
    nodes = {b: BrokerNode(node_id=b, host="h", port=1, rack=f"r{b % 2}") for b in log_dirs}
    return Snapshot(
        metadata=ClusterMetadata(brokers=nodes, topics={"t": topic}),
        ongoing=ongoing or {},
        log_dirs=log_dirs,
        kept_free=kept_free or {},
    )


def planned(source: Source, snapshot: Snapshot, *, across: bool = False) -> DrainPlan:
    return plan_drain(
        leaving(source, snapshot),
        open_places_for(source, snapshot),
        scope=scope_of(source, across_brokers=across),
        racks=snapshot.racks,
    )


# --- source directory ----------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["/a", "/a/", str(A_ID), f"dirid:{A_ID}"])
def test_find_source_accepts_path_or_id(text: str) -> None:
    found = {1: [log_dir("/a", 1), log_dir("/b", 1)]}
    assert find_source(1, text, found) == DISK


def test_find_source_refuses_unknown_and_offline_directories() -> None:
    dead = dataclasses.replace(log_dir("/b", 1), error_code=ErrorCode.KAFKA_STORAGE_ERROR)
    found = {1: [log_dir("/a", 1), dead]}
    with pytest.raises(ReassignmentError, match=rf"no log directory /x; it has /a \({A_ID}\), /b$"):
        find_source(1, "/x", found)
    with pytest.raises(ReassignmentError, match="/b of broker 1 is offline: nothing can be moved"):
        find_source(1, "/b", found)


def test_leaving_replicas_of_lost_broker_come_from_metadata_except_leaderless() -> None:
    living = {1: [log_dir("/a", 900, replica(0, 70))], 2: [log_dir("/x", 900)]}
    snapshot = cluster(living, (1, 9), (9,), (1, 2))
    partitions = snapshot.metadata.topics["t"].partitions
    partitions[1] = dataclasses.replace(partitions[1], leader=-1)
    lost = Source(broker_id=9)
    (found,) = leaving(lost, snapshot)
    assert (found.replica, found.size_bytes, found.source) == (Replica(9, "t", 0), 70, "")
    assert [str(move.target) for move in planned(lost, snapshot).moves] == ["2:/x"]
    assert [line.partition(" (")[0] for line in obstacles(lost, snapshot)] == [
        "t-0 has a replica on broker 9",
        "t-1 has a replica on broker 9 and no leader to copy it from",
    ]


# --- free space ----------------------------------------------------------------------------------


def test_open_places_subtract_bytes_to_keep_free() -> None:
    snapshot = cluster(
        {1: [log_dir("/a", 5), log_dir("/b", 50)], 2: [log_dir("/x", 70)]}, kept_free={1: 20}
    )
    assert open_places_for(DISK, snapshot) == [
        OpenPlace(place=Place(1, "/b"), free_bytes=30),
        OpenPlace(place=Place(2, "/x"), free_bytes=70),
    ]
    assert open_places_for(BROKER, snapshot) == [OpenPlace(place=Place(2, "/x"), free_bytes=70)]


@pytest.mark.parametrize(
    "closed",
    [
        {"is_cordoned": True},
        {"state": "saturated"},
        {"state": "stalled"},
        {"error_code": ErrorCode.KAFKA_STORAGE_ERROR},
    ],
)
def test_open_places_exclude_cordoned_impaired_and_offline_directories(
    closed: dict[str, object],
) -> None:
    other = dataclasses.replace(log_dir("/b", 50), **closed)  # type: ignore[arg-type]
    assert open_places_for(DISK, cluster({1: [log_dir("/a", 5), other]})) == []


def test_scope_of_drain_depends_on_source_and_across_brokers() -> None:
    assert scope_of(DISK, across_brokers=False) is Scope.WITHIN_BROKER
    assert scope_of(DISK, across_brokers=True) is Scope.BROKER_FIRST
    assert scope_of(BROKER, across_brokers=False) is Scope.OTHER_BROKERS


# --- leaving replicas ----------------------------------------------------------------------------


def test_leaving_lists_replicas_with_their_moves_in_flight() -> None:
    snapshot = cluster(
        {
            1: [
                log_dir("/a", 0, replica(0, 30), replica(1, 20)),
                log_dir("/b", 90, replica(1, 5, is_future=True), replica(2, 9)),
            ]
        },
        (1,), (1,), (1,),
    )  # fmt: skip
    assert leaving(DISK, snapshot) == [
        Leaving(replica=Replica(1, "t", 0), source="/a", size_bytes=30, holders=frozenset({1})),
        Leaving(
            replica=Replica(1, "t", 1),
            source="/a",
            size_bytes=20,
            holders=frozenset({1}),
            under_way=Place(1, "/b"),
            copied_bytes=5,
        ),
    ]


def test_plan_replaces_move_into_directory_that_became_saturated() -> None:
    full = dataclasses.replace(log_dir("/b", 90, replica(0, 5, is_future=True)), state="saturated")
    snapshot = cluster({1: [log_dir("/a", 0, replica(0, 30)), full, log_dir("/c", 40)]}, (1,))
    (move,) = planned(DISK, snapshot).moves
    assert (move.target, move.is_under_way) == (Place(1, "/c"), False)


def test_leaving_of_broker_has_the_size_of_the_leaders_replica() -> None:
    """A lagging replica grows to the size of the leader's replica."""
    snapshot = cluster(
        {
            1: [log_dir("/a", 0, replica(0, 10))],
            2: [log_dir("/x", 50, replica(0, 40))],
            3: [log_dir("/y", 60)],
        },
        (2, 1), (2,),
    )  # fmt: skip
    (one,) = leaving(BROKER, snapshot)
    assert (one.replica, one.size_bytes) == (Replica(1, "t", 0), 40)
    order = as_reassignment(planned(BROKER, snapshot), BROKER, snapshot)
    assert order.replicas == {T_0: (2, 3)}
    assert order.log_dirs == {Replica(3, "t", 0): "/y"}


def test_leaving_excludes_replicas_that_a_reassignment_removes() -> None:
    ongoing = {T_0: OngoingReassignment(replicas=(3, 2, 1), adding=(3,), removing=(1,))}
    dirs = {1: [log_dir("/a", 0, replica(0, 10))], 2: [log_dir("/x", 50)], 3: [log_dir("/y", 60)]}
    snapshot = cluster(dirs, (3, 2, 1), ongoing=ongoing)
    assert leaving(BROKER, snapshot) == leaving(DISK, snapshot) == []
    assert obstacles(BROKER, snapshot) == ["t-0 is in /a", "t-0 has a replica on broker 1"]
    assert not has_lost_targets(BROKER, snapshot)


def test_plan_replaces_added_broker_that_died() -> None:
    ongoing = {T_0: OngoingReassignment(replicas=(3, 2, 1), adding=(3,), removing=(1,))}
    dirs = {1: [log_dir("/a", 0, replica(0, 10))], 2: [log_dir("/x", 50)], 4: [log_dir("/y", 60)]}
    snapshot = cluster(dirs, (3, 2, 1), ongoing=ongoing)
    assert has_lost_targets(BROKER, snapshot)
    order = as_reassignment(planned(BROKER, snapshot), BROKER, snapshot)
    assert order.replicas == {T_0: (4, 2)}


def test_plan_within_broker_repeats_the_ongoing_reassignment_and_changes_one_directory() -> None:
    ongoing = {T_0: OngoingReassignment(replicas=(1, 3, 2), adding=(3,), removing=(2,))}
    dirs = {1: [log_dir("/a", 0, replica(0, 10)), log_dir("/b", 50)], 2: [], 3: []}
    snapshot = cluster(dirs, (1, 3, 2), ongoing=ongoing)
    order = as_reassignment(planned(DISK, snapshot), DISK, snapshot)
    # The ongoing reassignment is repeated in the order, so that it continues.
    assert order.replicas == {T_0: (1, 3)}
    assert order.log_dirs == {Replica(1, "t", 0): "/b"}


def test_plan_reverts_move_into_the_drained_directory() -> None:
    snapshot = cluster(
        {1: [log_dir("/a", 9, replica(0, 3, is_future=True)), log_dir("/b", 9, replica(0, 5))]},
        (1,),
    )
    order = as_reassignment(planned(DISK, snapshot), DISK, snapshot)
    assert order.log_dirs == {Replica(1, "t", 0): "/b"}
    assert obstacles(DISK, snapshot) == ["t-0 is being moved into /a"]


def test_obstacles_include_assignments_that_the_controller_does_not_know() -> None:
    waiting = dataclasses.replace(log_dir("/a", 9), queued_assignments=2)
    assert obstacles(DISK, cluster({1: [waiting]})) == [
        "2 replicas of /a are not known to the controller"
    ]
    assert obstacles(DISK, cluster({1: [log_dir("/a", 9), log_dir("/b", 9, replica(0, 5))]})) == []


def test_plan_across_brokers_moves_replica_that_fits_nowhere_on_its_broker() -> None:
    dirs = {
        1: [log_dir("/a", 0, replica(0, 30), replica(1, 8)), log_dir("/b", 10)],
        2: [log_dir("/x", 50)],
    }
    snapshot = cluster(dirs, (1,), (1,))
    assert [misfit.replica.partition for misfit in planned(DISK, snapshot).misfits] == [0]
    plan = planned(DISK, snapshot, across=True)
    assert {m.replica.partition: m.target for m in plan.moves} == {
        0: Place(2, "/x"),
        1: Place(1, "/b"),
    }
    order = as_reassignment(plan, DISK, snapshot)
    assert order.replicas == {T_0: (2,), TopicPartition("t", 1): (1,)}


def test_reassignment_keeps_position_of_replaced_replica() -> None:
    snapshot = cluster({1: [], 2: [], 3: [], 4: []}, (2, 1, 3))
    move = Move(replica=Replica(1, "t", 0), source="/a", target=Place(4, "/y"), size_bytes=1)
    order = as_reassignment(DrainPlan(moves=(move,), misfits=()), BROKER, snapshot)
    assert order.replicas == {T_0: (2, 4, 3)}
