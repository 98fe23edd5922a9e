"""Status of reassignments and directory moves in Kafka's sentences."""

from __future__ import annotations

import dataclasses

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterMetadata, PartitionMetadata, TopicMetadata
from kraftjbod.cli.clients.replica_admin import LogDirDescription, OngoingReassignment, ReplicaSize
from kraftjbod.cli.reassignment.reassignment_plan import (
    ReassignmentError,
    ReassignmentPlan,
    Replica,
)
from kraftjbod.cli.reassignment.reassignment_status import (
    Located,
    MoveState,
    PartitionState,
    locate,
    move_states,
    ongoing_line,
    partition_states,
    require_targets,
    why_closed,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import TopicPartition

FOO_0, FOO_1 = TopicPartition("foo", 0), TopicPartition("foo", 1)
REPLICA = Replica(1, "foo", 0)


def metadata(*replicas: int) -> ClusterMetadata:
    partition = PartitionMetadata(
        partition=0,
        leader=replicas[0],
        leader_epoch=0,
        replicas=replicas,
        isr=replicas,
        offline_replicas=(),
    )
    topic = TopicMetadata(
        name="foo", topic_id=bytes(16), is_internal=False, error_code=0, partitions={0: partition}
    )
    return ClusterMetadata(topics={"foo": topic})


def log_dir(path: str, *replicas: ReplicaSize, error: int = ErrorCode.NONE) -> LogDirDescription:
    return LogDirDescription(
        path=path,
        error_code=error,
        total_bytes=-1,
        usable_bytes=-1,
        is_cordoned=False,
        replicas=replicas,
    )


def copy(size_bytes: int, *, is_future: bool = False) -> ReplicaSize:
    return ReplicaSize(
        topic="foo", partition=0, size_bytes=size_bytes, offset_lag=0, is_future=is_future
    )


@pytest.mark.parametrize(
    ("current", "is_active", "sentence"),
    [
        ((1, 2), True, "Reassignment of partition foo-0 is still in progress."),
        ((2, 3), False, "Reassignment of partition foo-0 is completed."),
        (
            (1, 2),
            False,
            "There is no active reassignment of partition foo-0, but replica set is 1,2"
            " rather than 2,3.",
        ),
    ],
)
def test_partition_state_prints_kafkas_sentence(
    current: tuple[int, ...], is_active: bool, sentence: str
) -> None:
    state = PartitionState(partition=FOO_0, current=current, target=(2, 3), is_active=is_active)
    assert str(state) == sentence


def test_partition_states_use_ongoing_reassignments_then_metadata() -> None:
    """A partition that does not exist has no replicas, even one just after the topic's last
    partition."""
    plan = ReassignmentPlan(replicas={FOO_0: (1, 2), FOO_1: (1,)})
    known = metadata(1, 2)
    [zero, one] = partition_states(plan, {}, known)
    assert (zero.current, zero.is_active) == ((1, 2), False)
    assert (one.current, one.is_active) == ((), False)
    ongoing = {FOO_0: OngoingReassignment(replicas=(1, 2, 3), adding=(3,), removing=())}
    assert partition_states(plan, ongoing, known)[0].is_active


@pytest.mark.parametrize(
    ("located", "has_offline_dir", "is_done", "sentence"),
    [
        (
            Located(),
            True,
            False,
            "Partition foo-0 is not found in any live log dir on broker 1."
            " There is likely an offline log directory on the broker.",
        ),
        (
            Located(),
            False,
            False,
            "Partition foo-0 cannot be found in any live log directory on broker 1.",
        ),
        (
            Located(current_dir="/d1", future_dir="/d2"),
            False,
            False,
            "Reassignment of replica foo-0-1 is still in progress.",
        ),
        (
            Located(current_dir="/d1", future_dir="/d3"),
            False,
            False,
            "Partition foo-0 on broker 1 is being moved to log dir /d3 instead of /d2.",
        ),
        (
            Located(current_dir="/d2"),
            False,
            True,
            "Reassignment of replica foo-0-1 completed successfully.",
        ),
        (
            Located(current_dir="/d1"),
            True,
            True,
            "Partition foo-0 on broker 1 is not being moved from log dir /d1 to /d2.",
        ),
    ],
)
def test_move_state_prints_kafkas_sentence(
    located: Located, has_offline_dir: bool, is_done: bool, sentence: str
) -> None:
    state = MoveState(
        replica=REPLICA, target_dir="/d2", located=located, has_offline_dir=has_offline_dir
    )
    assert str(state) == sentence
    assert state.is_done is is_done


def test_locate_finds_current_and_future_replica() -> None:
    found = {
        1: [
            log_dir("/d1", copy(20)),
            log_dir("/d2", copy(5, is_future=True)),
            log_dir("/d3", error=ErrorCode.KAFKA_STORAGE_ERROR),
        ]
    }
    whole = Located(current_dir="/d1", future_dir="/d2", size_bytes=20, future_size_bytes=5)
    assert locate(found) == {REPLICA: whole}
    plan = ReassignmentPlan(replicas={FOO_0: (1,)}, log_dirs={REPLICA: "/d2"})
    assert move_states(plan, found) == [
        MoveState(replica=REPLICA, target_dir="/d2", located=whole, has_offline_dir=True)
    ]


def test_ongoing_line_lists_replicas_adding_and_removing() -> None:
    both = OngoingReassignment(replicas=(1, 2, 3), adding=(3,), removing=(1,))
    assert ongoing_line(FOO_0, both) == "foo-0: replicas: 1,2,3. adding: 3. removing: 1."
    grown = OngoingReassignment(replicas=(1, 2), adding=(2,), removing=())
    assert ongoing_line(FOO_1, grown) == "foo-1: replicas: 1,2. adding: 2."


@pytest.mark.parametrize(
    ("is_cordoned", "state", "why"),
    [
        (True, "online", "cordoned"),
        (False, "saturated", "saturated"),
        (False, "stalled", "stalled"),
    ],
)
def test_require_targets_refuses_closed_directory_unless_replica_is_in_it(
    is_cordoned: bool, state: str, why: str
) -> None:
    closed = dataclasses.replace(log_dir("/d2"), is_cordoned=is_cordoned, state=state)
    plan = ReassignmentPlan(replicas={FOO_0: (1,)}, log_dirs={REPLICA: "/d2"})
    with pytest.raises(ReassignmentError, match=f"/d2 of broker 1 is {why} and takes no new"):
        require_targets(plan, {1: [log_dir("/d1", copy(10)), closed]})
    assert why_closed(closed) == why
    staying = dataclasses.replace(closed, replicas=(copy(10),))
    require_targets(plan, {1: [log_dir("/d1"), staying]})


def test_require_targets_accepts_open_directory() -> None:
    plan = ReassignmentPlan(replicas={FOO_0: (1,)}, log_dirs={REPLICA: "/d2"})
    require_targets(plan, {1: [log_dir("/d1", copy(10)), log_dir("/d2")]})
    assert why_closed(log_dir("/d2")) is None
    assert why_closed(log_dir("/d2", error=ErrorCode.KAFKA_STORAGE_ERROR)) == "offline"
