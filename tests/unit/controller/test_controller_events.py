"""Events about the decisions of a controller."""

from __future__ import annotations

from structlog.testing import capture_logs

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerEpoch
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.protocol import rpc_messages as m
from tests.faults.vfs_fault import FaultVfs
from tests.unit.controller.conftest import ONE, TWO, Node


async def test_controller_logs_failed_directories_and_fencing(node: Node) -> None:
    with capture_logs() as events:
        epoch = await node.register("ab")
        await node.heartbeat(epoch)
        await node.heartbeat(epoch, "a")
        await node.heartbeat(epoch, "ab")
    logged = [event["event"] for event in events]
    assert logged == [
        "broker_registered",
        "broker_unfenced",
        "broker_log_dirs_offline",
        "broker_log_dirs_offline",
        "broker_fenced",
    ]


async def test_controller_logs_ineligible_isr_member_with_reason(
    vfs: FaultVfs,
) -> None:
    node = Node(vfs)
    await node.controller.start()
    epochs = {ONE: await node.register("a"), TWO: await node.register("b", TWO)}
    for broker_id, epoch in epochs.items():
        await node.heartbeat(epoch, broker_id=broker_id)
    new = m.NewTopic(name="t", assignments={0: (ONE, TWO)})
    await node.controller.handle(m.CreateTopicsRequestRpc(topics=(new,)))
    (topic,) = node.managers.state.topics.values()
    requested = m.PartitionIsr(
        topic_id=topic.topic_id,
        partition=0,
        leader_epoch=topic.partitions[0].leader_epoch,
        partition_epoch=topic.partitions[0].partition_epoch,
        isr=(ONE, TWO),
        isr_broker_epochs=(epochs[ONE], BrokerEpoch(epochs[TWO] - 1)),
    )
    request = m.AlterPartitionRequest(
        broker_id=ONE, broker_epoch=epochs[ONE], partitions=(requested,)
    )
    with capture_logs() as events:
        for _ in range(2):
            response = await node.controller.handle(request)
            assert isinstance(response, m.AlterPartitionResponse)
            assert response.partitions[0].error_code is ErrorCode.INELIGIBLE_REPLICA
        node.clock.ms += 30_000
        await node.controller.handle(request)
    assert [event["event"] for event in events] == ["isr_member_ineligible"] * 2
    assert (events[0]["member"], events[0]["partition"]) == (TWO, "t-0")
    assert events[0]["reason"] == (
        f"the leader knows broker epoch {epochs[TWO] - 1}, and it is {epochs[TWO]}"
    )
    await node.controller.stop()
    node.log_dir.close()


async def test_controller_logs_and_counts_impaired_directories(vfs: FaultVfs) -> None:
    node = Node(vfs, level=30)
    await node.controller.start()
    epochs = {ONE: await node.register("ab"), TWO: await node.register("cd", TWO)}
    for broker_id, epoch in epochs.items():
        await node.heartbeat(epoch, broker_id=broker_id)
    replicated = m.NewTopic(name="t", assignments={0: (ONE, TWO)})
    single = m.NewTopic(name="s", assignments={0: (ONE,)})
    await node.controller.handle(m.CreateTopicsRequestRpc(topics=(replicated, single)))
    full, stalled = LogDirState.SATURATED, LogDirState.STALLED
    with capture_logs() as events:
        await node.heartbeat(epochs[ONE], impaired={"a": full, "b": stalled})
        figures = node.metrics.snapshot()
        await node.heartbeat(epochs[ONE], impaired={})
    logged = [event["event"] for event in events]
    assert logged == ["broker_log_dirs_impaired", "broker_log_dirs_well_again"]
    assert figures["SaturatedLogDirectoryCount"] == figures["StalledLogDirectoryCount"] == 1
    assert figures["LastResortLeaderCount"] == 1
    assert node.metrics.snapshot()["LastResortLeaderCount"] == 0
    await node.controller.stop()
    node.log_dir.close()
