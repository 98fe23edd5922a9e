"""A broker with more metadata than the controller: metadata was lost, or another controller
leads."""

from __future__ import annotations

from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ForeignMetadataError, NotControllerError, OperatingError
from kraftjbod.core.ids import BrokerId
from kraftjbod.protocol.rpc_quorum_messages import FetchMetadataRequest
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir
from tests.faults.vfs_fault import FaultVfs
from tests.unit.controller.conftest import Node
from tests.unit.raft.quorum_rig import Net, until
from tests.unit.raft.quorum_rig import Node as Voter


def a_disk() -> FaultVfs:
    inner = MemVfs()
    format_dir(inner, "/d1", 1)
    return FaultVfs(inner)


async def test_leader_with_shorter_log_reports_foreign_metadata_only_with_majority() -> None:
    net = Net()
    node = Node(a_disk(), quorum=net)
    net.nodes[1] = node  # type: ignore[assignment]  #  The network uses only its driver.
    others = [Voter(net, i, a_disk(), election_timeout_ms=60_000) for i in (2, 3)]
    for other in others:
        net.nodes[other.node_id] = other
        await other.driver.start(other)
    await node.controller.start()
    await until(lambda: node.controller.is_active)
    fetch = FetchMetadataRequest(
        broker_id=BrokerId(7),
        broker_epoch=-1,
        fetch_offset=node.controller.state.offset + 3,
        max_wait_ms=0,
        max_bytes=100,
        metadata_log_id=node.controller.state.metadata_log_id,
    )
    with capture_logs() as said, pytest.raises(ForeignMetadataError):
        while True:
            # A loaded machine may delay the acknowledgements of the followers.
            with suppress(NotControllerError):
                await node.controller.handle(fetch)
    assert [e["event"] for e in said] == ["broker_knows_other_metadata"]
    net.cut.add(1)
    with capture_logs() as said, pytest.raises(NotControllerError, match="another may lead"):
        await node.controller.handle(fetch)
    assert not [e for e in said if e["event"] == "broker_knows_other_metadata"]
    for stop in (node.controller.stop, *(other.driver.stop for other in others)):
        with suppress(OperatingError):
            await stop()
    for log_dir in (node.log_dir, *(other.log_dir for other in others)):
        log_dir.close()
