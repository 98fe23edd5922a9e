"""A controller that was paused decides nothing until its followers answer, and keeps its
decisions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import NotControllerError, OperatingError
from tests.unit.controller.conftest import ONE, TWO, Node
from tests.unit.controller.quorum.test_leader_that_is_behind import a_disk
from tests.unit.raft.quorum_rig import Net, until
from tests.unit.raft.quorum_rig import Node as Voter

# Longer than the election timeout of the controllers.
_PAUSE_MS = 5_000


class Quorum:
    """A controller and two voters that may be cut off, and never start an election."""

    def __init__(self) -> None:
        self.net = Net()
        self.node = Node(a_disk(), quorum=self.net)
        self.net.nodes[1] = self.node  # type: ignore[assignment]  # It has a driver.
        for i in (2, 3):
            self.net.nodes[i] = Voter(self.net, i, a_disk(), election_timeout_ms=60_000)

    async def start(self) -> None:
        for i in (2, 3):
            await self.net.nodes[i].driver.start(self.net.nodes[i])
        await self.node.controller.start()

    async def stop(self) -> None:
        for stop in (self.node.controller.stop, *(self.net.nodes[i].driver.stop for i in (2, 3))):
            with suppress(OperatingError):
                await stop()
        for one in self.net.nodes.values():
            one.log_dir.close()


@pytest.fixture
async def quorum() -> AsyncIterator[Quorum]:
    made = Quorum()
    yield made
    await made.stop()


async def test_paused_leader_keeps_decisions_once_followers_answer(quorum: Quorum) -> None:
    await quorum.start()
    node = quorum.node
    await until(lambda: node.controller.is_active)
    term = node.driver.term
    quorum.net.cut |= {2, 3}
    with capture_logs() as events:
        registering = asyncio.create_task(node.register("ab"))
        await until(lambda: ONE in node.controller.state.brokers)
        node.clock.ms += _PAUSE_MS
        await until(lambda: "raft_leader_stood_still" in {e["event"] for e in events})
        assert not node.controller.is_active
        with pytest.raises(NotControllerError):
            await node.register("cd", TWO)
        quorum.net.cut.clear()
        await registering
        await until(lambda: node.controller.is_active)
    assert await node.register("cd", TWO) > 0
    assert node.driver.term == term
    assert not {"raft_leadership_lost", "metadata_reloaded"} & {e["event"] for e in events}


async def test_leader_paused_while_taking_over_becomes_active(
    quorum: Quorum,
) -> None:
    """Before, the refused first entry of its log was never retried."""
    node, led = quorum.node, []
    on_leader = node.controller.on_leader

    def lead_after_a_pause(term: int) -> None:
        led.append(term)
        node.clock.ms += _PAUSE_MS
        on_leader(term)

    node.controller.on_leader = lead_after_a_pause  # type: ignore[method-assign]
    with capture_logs():
        await quorum.start()
        await until(lambda: node.controller.is_active)
    assert len(led) == 1
