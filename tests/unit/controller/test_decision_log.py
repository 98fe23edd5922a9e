"""What an operator hears of decisions."""

from __future__ import annotations

from structlog.testing import capture_logs

from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.protocol import rpc_messages as m
from tests.faults.vfs_fault import FaultVfs
from tests.unit.controller.conftest import ONE, TWO, Node


async def test_failed_directories_and_fencing_are_reported(node: Node) -> None:
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


async def test_impaired_directories_are_reported_and_counted(vfs: FaultVfs) -> None:
    node = Node(vfs, level=30)
    await node.controller.start()
    epochs = {ONE: await node.register("ab"), TWO: await node.register("cd", TWO)}
    for broker_id, epoch in epochs.items():
        await node.heartbeat(epoch, broker_id=broker_id)
    replicated = m.NewTopic(name="t", assignments={0: (ONE, TWO)})
    single = m.NewTopic(name="s", assignments={0: (ONE,)})
    await node.controller.handle(m.CreateTopicsRequest(topics=(replicated, single)))
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
