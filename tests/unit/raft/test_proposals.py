"""Who waits for what was proposed."""

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


async def test_too_many_proposals_in_flight_are_refused(vfs: FaultVfs) -> None:
    node = Node(vfs, max_pending_proposals=2)
    await node.start()
    proposals = [node.driver.propose(b"a"), node.driver.propose(b"b")]
    with pytest.raises(OverloadedError):
        node.driver.propose(b"c")
    await asyncio.gather(*(proposal.committed for proposal in proposals))
    await node.stop()


async def test_a_proposer_that_stops_does_not_hear_of_success(node: Node) -> None:
    proposal = node.driver.propose(b"a")
    await node.stop()
    with pytest.raises(NotControllerError, match="is stopping"):
        await proposal.committed
