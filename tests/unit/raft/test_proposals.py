"""Pending proposals: their limit, and their end at a stop."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.core.errors import (
    NotControllerError,
    OverloadedError,
)
from tests.faults.vfs_fault import FaultVfs
from tests.unit.raft.driver_rig import (
    Node,
)


async def test_propose_beyond_max_pending_proposals_is_refused(vfs: FaultVfs) -> None:
    node = Node(vfs, max_pending_proposals=2)
    await node.start()
    proposals = [node.driver.propose(b"a"), node.driver.propose(b"b")]
    with pytest.raises(OverloadedError):
        node.driver.propose(b"c")
    await asyncio.gather(*(proposal.committed for proposal in proposals))
    await node.stop()


async def test_propose_fails_when_the_node_stops(node: Node) -> None:
    proposal = node.driver.propose(b"a")
    await node.stop()
    with pytest.raises(NotControllerError, match="is stopping"):
        await proposal.committed
