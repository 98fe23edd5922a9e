"""The queue, the hold until commit, and the periodic work, over a real dir thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.controller.control_managers import ControlManagers
from kraftjbod.controller.quorum_controller import NO_RECORDS, QuorumController
from kraftjbod.controller.topic_control import TopicDefaults
from kraftjbod.core.errors import ErrorCode, KafkaStorageError, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, Uuid
from kraftjbod.core.telemetry import Metrics
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.raft.driver import RaftDriver
from kraftjbod.raft.log_store import RaftLogStore
from tests.faults.rig import ManualClock, format_dir, open_dir
from tests.faults.vfs_fault import Effect, Fault, FaultVfs
from tests.faults.vfs_mem import MemVfs
from tests.golden.transcript import directory

ONE = BrokerId(1)


class Node:
    def __init__(self, vfs: FaultVfs, *, max_pending: int = 100) -> None:
        self.clock = ManualClock()
        self.metrics = Metrics()
        self.log_dir = open_dir(vfs, clock=self.clock)
        self.managers = ControlManagers(
            cluster_id="c",
            session_timeout_ms=9000,
            topic_config_defaults=TopicConfig(),
            topic_defaults=TopicDefaults(num_partitions=1, replication_factor=1),
            max_partitions_per_request=100,
            random_bytes=lambda count: bytes(count - 1) + b"\xff",
            draw_below=lambda _: 0,
        )
        self.controller = QuorumController(
            managers=self.managers,
            driver=RaftDriver(
                log_dir=self.log_dir,
                store=RaftLogStore(
                    vfs=vfs, directory="/d1/log", segment_bytes=1000, retained_entries=0
                ),
                clock=self.clock,
                node_id=BrokerId(9),
                voters=[BrokerId(9)],
                first_payload_of_term=NO_RECORDS,
                bytes_between_snapshots=1 << 30,
                max_cached_bytes=1 << 20,
                max_pending_proposals=max_pending,
            ),
            clock=self.clock,
            metrics=self.metrics,
            metadata_version=17,
            session_timeout_ms=9000,
            preferred_interval_ms=10,
            unclean_interval_ms=10,
            max_fetch_bytes=1000,
        )

    async def register(self, dirs: str = "a") -> BrokerEpoch:
        request = m.BrokerRegistrationRequest(
            broker_id=ONE,
            cluster_id="c",
            incarnation_id=Uuid(bytes(16)),
            listeners=(m.ListenerInfo(name="P", host="h", port=1),),
            log_dirs=tuple(map(directory, dirs)),
        )
        response = await self.controller.handle(request)
        assert isinstance(response, m.BrokerRegistrationResponse)
        return response.broker_epoch

    async def heartbeat(self, epoch: BrokerEpoch, offline: str = "") -> m.BrokerHeartbeatResponse:
        request = m.BrokerHeartbeatRequest(
            broker_id=ONE,
            broker_epoch=epoch,
            current_metadata_offset=1000,
            want_fence=False,
            want_shut_down=False,
            offline_log_dirs=tuple(map(directory, offline)),
        )
        response = await self.controller.handle(request)
        assert isinstance(response, m.BrokerHeartbeatResponse)
        return response

    async def pass_time_until(self, holds: Callable[[], Any]) -> None:
        """In small steps, for a long one looks like a pause of the controller itself."""
        while not holds():
            self.clock.ms += 200
            await asyncio.sleep(0.02)


@pytest.fixture
def vfs() -> FaultVfs:
    inner = MemVfs()
    format_dir(inner, "/d1", 1)
    return FaultVfs(inner)


@pytest.fixture
async def node(vfs: FaultVfs) -> AsyncIterator[Node]:
    made = Node(vfs)
    await made.controller.start()
    yield made
    await made.controller.stop()
    made.log_dir.close()


async def test_an_empty_log_begins_with_the_feature_level(node: Node) -> None:
    assert node.managers.state.features == {"metadata.version": 17}
    figures = node.metrics.snapshot()
    assert figures["LastCommittedRecordOffset"] == figures["LastAppliedRecordOffset"] == 1
    assert figures["NewActiveControllersCount"] == 1


async def test_decisions_in_flight_see_each_other(node: Node) -> None:
    epochs = await asyncio.gather(node.register("ab"), node.register("ab"))
    assert epochs[0] == epochs[1], "the same incarnation, told twice"


async def test_no_reply_before_commit_even_where_nothing_changed(vfs: FaultVfs, node: Node) -> None:
    epoch = await node.register("ab")
    await node.heartbeat(epoch)
    vfs.inject(Fault(effect=Effect.NEVER, kinds=frozenset({"sync"})))
    first = asyncio.create_task(node.heartbeat(epoch, "a"))
    await asyncio.sleep(0)
    repeated = asyncio.create_task(node.heartbeat(epoch, "a"))
    await asyncio.sleep(0.05)
    assert not first.done()
    assert not repeated.done()
    assert node.managers.state.brokers[ONE].log_dirs == (directory("b"),)
    committed = node.metrics.snapshot()["LastCommittedRecordOffset"]
    fetched = await node.controller.handle(
        m.FetchMetadataRequest(
            broker_id=ONE, fetch_offset=int(committed) + 1, max_wait_ms=0, max_bytes=1000
        )
    )
    assert isinstance(fetched, m.FetchMetadataResponse)
    assert not fetched.entries, "followers see committed entries only"
    with capture_logs() as events:
        vfs.release()
        for heartbeat in (first, repeated):
            with pytest.raises(KafkaStorageError):
                await heartbeat
        with pytest.raises(KafkaStorageError):
            await node.controller.wait_failed()
    assert "metadata_log_failed" in {event["event"] for event in events}


async def test_a_refused_request_changes_nothing(node: Node) -> None:
    offset = node.managers.state.offset
    with pytest.raises(OperatingError) as refused:
        await node.heartbeat(BrokerEpoch(5))
    assert refused.value.code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert node.managers.state.offset == offset


async def test_a_follower_that_is_ahead_is_told(node: Node) -> None:
    request = m.FetchMetadataRequest(broker_id=ONE, fetch_offset=99, max_wait_ms=0, max_bytes=1000)
    with pytest.raises(OperatingError) as refused:
        await node.controller.handle(request)
    assert refused.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


async def test_failed_directories_and_fencing_are_told(node: Node) -> None:
    with capture_logs() as events:
        epoch = await node.register("ab")
        await node.heartbeat(epoch)
        await node.heartbeat(epoch, "a")
        await node.heartbeat(epoch, "ab")
    told = [event["event"] for event in events]
    assert told == [
        "broker_registered",
        "broker_unfenced",
        "broker_log_dirs_offline",
        "broker_log_dirs_offline",
        "broker_fenced",
    ]


async def test_a_silent_broker_is_fenced_by_the_sweep(node: Node) -> None:
    await node.heartbeat(await node.register())
    with capture_logs() as events:
        await node.pass_time_until(lambda: node.managers.state.brokers[ONE].fenced)
    assert {"broker_session_expired", "broker_fenced"} <= {event["event"] for event in events}
    assert node.metrics.snapshot()["TimedOutBrokerHeartbeatCount"] == 1


async def test_a_controller_that_stood_still_blames_nobody(node: Node) -> None:
    await node.heartbeat(await node.register())
    with capture_logs() as events:
        node.clock.ms += 60_000
        while not events:
            await asyncio.sleep(0.01)
    assert [event["event"] for event in events] == ["controller_was_paused"]
    assert not node.managers.state.brokers[ONE].fenced


async def test_a_pass_that_cannot_be_written_is_told_and_tried_again(vfs: FaultVfs) -> None:
    node = Node(vfs, max_pending=1)
    await node.controller.start()
    epoch = await node.register("ab")
    await node.heartbeat(epoch)
    vfs.inject(Fault(effect=Effect.NEVER, kinds=frozenset({"sync"})))
    stuck = asyncio.create_task(node.heartbeat(epoch, "a"))
    await asyncio.sleep(0)
    with capture_logs() as events:
        await node.pass_time_until(
            lambda: "controller_pass_failed" in {event["event"] for event in events}
        )
        vfs.release()
        with pytest.raises(KafkaStorageError):
            await stuck
        await node.controller.stop()
    node.log_dir.close()
