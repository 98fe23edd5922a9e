"""DescribeQuorum, asked of a controller that leads alone."""

from __future__ import annotations

from kraftjbod.core.ids import BrokerId
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.protocol.rpc_quorum_messages import DescribeQuorumRequest, DescribeQuorumResponse
from tests.unit.controller.conftest import Node


async def test_a_leader_knows_its_log_and_who_fetches_it(node: Node) -> None:
    controller = node.controller
    end = controller.driver.committed_offset + 1
    await controller.handle(
        m.FetchMetadataRequest(broker_id=BrokerId(1), fetch_offset=0, max_wait_ms=0, max_bytes=1000)
    )
    found = await controller.handle(DescribeQuorumRequest())
    assert isinstance(found, DescribeQuorumResponse)
    assert (found.leader_id, found.node_id, found.high_watermark) == (9, 9, end)
    (voter,), (observer,) = found.voters, found.observers
    assert (voter.node_id, voter.log_end_offset) == (9, end)
    assert voter.last_fetch_ms == voter.last_caught_up_ms > 0
    assert (observer.node_id, observer.log_end_offset) == (1, 0)
    assert observer.last_caught_up_ms == -1
