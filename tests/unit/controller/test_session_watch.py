"""When brokers are fenced: by silence, by a closed connection, by nobody at their address."""

from __future__ import annotations

import asyncio

from structlog.testing import capture_logs

from kraftjbod.core.ids import ConnectionId
from tests.unit.controller.conftest import ONE, Node


async def test_a_silent_broker_is_fenced_by_the_sweep(node: Node) -> None:
    await node.heartbeat(await node.register())
    with capture_logs() as events:
        await node.pass_time_until(lambda: node.managers.state.brokers[ONE].fenced)
    assert {"broker_session_expired", "broker_fenced"} <= {event["event"] for event in events}
    assert node.metrics.snapshot()["TimedOutBrokerHeartbeatCount"] == 1


async def test_a_broker_whose_connection_closed_is_fenced_long_before_its_session_ends(
    node: Node,
) -> None:
    await node.heartbeat(await node.register(), connection=5)
    node.controller.connection_closed(ConnectionId(4))
    began_ms = node.clock.ms
    with capture_logs() as events:
        node.controller.connection_closed(ConnectionId(5))
        await node.pass_time_until(lambda: node.managers.state.brokers[ONE].fenced)
    assert [event["event"] for event in events] == ["broker_gone", "broker_fenced"]
    assert node.clock.ms - began_ms < 9000
    await node.register(incarnation=b"\1")


async def test_a_suspect_is_fenced_at_once_if_nobody_listens_at_its_address(node: Node) -> None:
    node.nobody_listens = True
    await node.heartbeat(await node.register(), connection=5)
    await asyncio.sleep(0)
    assert not node.managers.state.brokers[ONE].fenced, "no suspect"
    began_ms = node.clock.ms
    with capture_logs() as events:
        node.controller.connection_closed(ConnectionId(5))
        while not node.managers.state.brokers[ONE].fenced:
            await asyncio.sleep(0)
    assert [event["event"] for event in events] == ["broker_gone", "broker_fenced"]
    assert node.clock.ms == began_ms


async def test_a_controller_that_stood_still_blames_nobody(node: Node) -> None:
    await node.heartbeat(await node.register(), connection=5)
    node.controller.connection_closed(ConnectionId(5))
    with capture_logs() as events:
        node.clock.ms += 60_000
        while not events:
            await asyncio.sleep(0.01)
    assert [event["event"] for event in events] == ["controller_was_paused"]
    assert not node.managers.state.brokers[ONE].fenced
