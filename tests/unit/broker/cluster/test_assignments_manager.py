"""``AssignmentsManager`` against a scripted controller on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from structlog.testing import capture_logs

from kraftjbod.broker.cluster.assignments_manager import AssignmentsManager
from kraftjbod.broker.cluster.assignments_state import MAX_ASSIGNMENTS_PER_REQUEST
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, TopicId, TopicIdPartition
from kraftjbod.core.telemetry import Metrics
from kraftjbod.protocol.rpc_messages import (
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    RefusedAssignment,
    RpcRequest,
    RpcResponse,
)
from tests.unit.broker.scripted_controller import (
    RealClock,
    ScriptedController,
    channel_to,
    serving,
)

A, B = DirectoryId(b"A" * 16), DirectoryId(b"B" * 16)
T = TopicId(b"t" * 16)
EPOCH = BrokerEpoch(7)


@dataclass
class Cluster:
    """Stores assignments; each entry of ``refuse_once`` is refused once."""

    directories: dict[TopicIdPartition, DirectoryId] = field(default_factory=dict)
    refuse_once: set[TopicIdPartition] = field(default_factory=set)
    fail_once: ErrorCode | None = None

    def answer(self, request: RpcRequest) -> RpcResponse:
        assert isinstance(request, AssignReplicasToDirsRequest)
        assert (request.broker_id, request.broker_epoch) == (1, EPOCH)
        if self.fail_once is not None:
            code, self.fail_once = self.fail_once, None
            raise OperatingError("failed by script", code=code)
        found = {
            TopicIdPartition(topic.topic_id, index): directory.directory_id
            for directory in request.directories
            for topic in directory.topics
            for index in topic.partitions
        }
        refused, self.refuse_once = found.keys() & self.refuse_once, set()
        self.directories.update({k: v for k, v in found.items() if k not in refused})
        return AssignReplicasToDirsResponse(
            refused=tuple(
                RefusedAssignment(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                )
                for key in refused
            )
        )


@asynccontextmanager
async def assigning(
    cluster: Cluster, metrics: Metrics | None = None, max_batch: int = MAX_ASSIGNMENTS_PER_REQUEST
) -> AsyncIterator[tuple[AssignmentsManager, ScriptedController]]:
    controller = ScriptedController(cluster.answer)
    async with serving(controller), channel_to(controller.voter()) as channel:
        manager = AssignmentsManager(
            broker_id=BrokerId(1),
            broker_epoch=lambda: EPOCH,
            is_replica=lambda key: key.partition != 666,
            channel=channel,
            clock=RealClock(),
            random_unit=lambda: 0.5,
            metrics=metrics or Metrics(),
            gather_ms=1,
            max_batch=max_batch,
            backoff_ms=1,
            backoff_max_ms=2,
        )
        try:
            yield manager, controller
        finally:
            await manager.close()


async def test_assignments_reach_the_controller_and_are_counted_while_queued() -> None:
    cluster, metrics = Cluster(), Metrics()
    async with assigning(cluster, metrics) as (manager, controller):
        await manager.idle()
        requested = {TopicIdPartition(T, index): (A, B)[index % 2] for index in range(50)}
        for key, directory_id in requested.items():
            manager.assign(key, directory_id)
        assert metrics.snapshot()["QueuedReplicaToDirAssignments"] == 50
        await manager.idle()
        assert manager.queued == 0 and cluster.directories == requested
        assert len(controller.seen) == 1


async def test_many_assignments_are_sent_in_batches_of_limited_size() -> None:
    cluster = Cluster()
    async with assigning(cluster, max_batch=10) as (manager, controller):
        for index in range(35):
            manager.assign(TopicIdPartition(T, index), A)
        await manager.idle()
        assert len(cluster.directories) == 35 and len(controller.seen) == 4


async def test_assignments_of_a_thousand_replicas_are_sent_in_small_requests() -> None:
    """The controller decides each request in one event loop iteration."""
    cluster = Cluster()
    async with assigning(cluster) as (manager, controller):
        for index in range(1_000, 2_100):
            manager.assign(TopicIdPartition(T, index), A)
        await manager.idle()
        sizes = [
            sum(len(topic.partitions) for one in request.directories for topic in one.topics)
            for request in controller.seen
            if isinstance(request, AssignReplicasToDirsRequest)
        ]
    assert len(cluster.directories) == sum(sizes) == 1_100
    assert max(sizes) <= 500


async def test_refused_assignment_is_sent_again() -> None:
    key = TopicIdPartition(T, 3)
    cluster, metrics = Cluster(refuse_once={key}), Metrics()
    with capture_logs() as logged:
        async with assigning(cluster, metrics) as (manager, _):
            manager.assign(key, A)
            await manager.idle()
    assert metrics.snapshot()["RefusedReplicaToDirAssignments"] == 1
    assert cluster.directories == {key: A}
    (refused,) = [e for e in logged if e["event"] == "replica_assignment_refused"]
    assert refused["code"] == "UNKNOWN_TOPIC_ID"


async def test_failed_assignment_request_is_sent_again() -> None:
    key = TopicIdPartition(T, 3)
    cluster = Cluster(fail_once=ErrorCode.STALE_BROKER_EPOCH)
    with capture_logs() as logged:
        async with assigning(cluster) as (manager, _):
            manager.assign(key, A)
            await manager.idle()
    assert cluster.directories == {key: A}
    (failed,) = [e for e in logged if e["event"] == "replica_assignments_failed"]
    assert failed["code"] == "STALE_BROKER_EPOCH"


async def test_assignment_of_an_unhosted_replica_is_dropped() -> None:
    cluster = Cluster()
    async with assigning(cluster) as (manager, controller):
        manager.assign(TopicIdPartition(T, 666), A)
        await manager.idle()
        assert not controller.seen


async def test_closed_assignments_manager_sends_nothing() -> None:
    async with assigning(Cluster()) as (manager, controller):
        manager.assign(TopicIdPartition(T, 1), A)
        await manager.close()
        manager.assign(TopicIdPartition(T, 2), A)
        await asyncio.sleep(0)
        assert not controller.seen and "ready=1" in repr(manager)


async def test_assignment_callback_runs_once_after_acceptance() -> None:
    key, reported = TopicIdPartition(T, 3), list[str]()
    async with assigning(Cluster(refuse_once={key})) as (manager, _):
        manager.assign(key, A, lambda: reported.append("A"))
        await manager.idle()
        manager.assign(key, A)
        await manager.idle()
    assert reported == ["A"]


async def test_newer_assignment_replaces_the_callback_of_the_older_one() -> None:
    """A cancelled move receives no acceptance, and the next move does not receive that of the
    first."""
    key, reported, other = TopicIdPartition(T, 3), list[str](), TopicIdPartition(T, 4)
    cluster = Cluster()
    async with assigning(cluster) as (manager, controller):
        manager.assign(key, B, lambda: reported.append("first"))
        while not controller.seen:
            await asyncio.sleep(0)
        # The answer is in flight.
        manager.assign(key, A)
        manager.assign(other, A, lambda: reported.append("other"))
        manager.assign(key, B, lambda: reported.append("second"))
        await manager.idle()
    assert sorted(reported) == ["other", "second"] and cluster.directories[key] == B


async def test_assignments_refused_at_an_old_level_are_sent_again() -> None:
    key = TopicIdPartition(T, 3)
    cluster = Cluster(fail_once=ErrorCode.UNSUPPORTED_VERSION)
    with capture_logs() as logged:
        async with assigning(cluster) as (manager, controller):
            manager.assign(key, A)
            assert manager.queued_into(A)
            await manager.idle()
            assert len(controller.seen) == 2 and not manager.queued_into(A)
    assert cluster.directories == {key: A}
    (failed,) = [e for e in logged if e["event"] == "replica_assignments_failed"]
    assert failed["code"] == "UNSUPPORTED_VERSION"


async def test_assignment_callback_may_assign_again() -> None:
    key, reported = TopicIdPartition(T, 3), list[str]()
    cluster = Cluster()
    async with assigning(cluster) as (manager, _):
        manager.assign(key, A, lambda: manager.assign(key, B, lambda: reported.append("B")))
        while not reported:
            await manager.idle()
            await asyncio.sleep(0)
    assert cluster.directories == {key: B}


async def test_assignment_of_an_unhosted_replica_runs_no_callback() -> None:
    reported = list[str]()
    async with assigning(Cluster()) as (manager, _):
        manager.assign(TopicIdPartition(T, 666), A, lambda: reported.append("gone"))
        await manager.idle()
    assert reported == []
