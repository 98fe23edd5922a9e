"""Fencing of brokers: expired sessions, closed connections and refused probes."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from kraftjbod.controller.control_managers import ControlManagers
from kraftjbod.controller.result import ControllerResult
from kraftjbod.controller.session_watch import sweep_interval_ms
from kraftjbod.core.config import DynamicControllerConfig
from kraftjbod.core.ids import BrokerEpoch, ConnectionId, Uuid
from kraftjbod.metadata.records import RegisterBrokerRecord
from kraftjbod.protocol.rpc_messages import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from tests.unit.controller.conftest import ONE, Node


async def test_broker_without_heartbeats_is_fenced_by_the_sweep(node: Node) -> None:
    await node.heartbeat(await node.register())
    with capture_logs() as events:
        await node.pass_time_until(lambda: node.managers.state.brokers[ONE].fenced)
    assert {"broker_session_expired", "broker_fenced"} <= {event["event"] for event in events}
    assert node.metrics.snapshot()["TimedOutBrokerHeartbeatCount"] == 1


async def test_broker_with_closed_connection_is_fenced_before_its_session_ends(
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


async def test_suspect_is_fenced_at_once_if_its_address_refuses_connections(node: Node) -> None:
    node.has_no_listener = True
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


async def test_controller_after_a_pause_fences_no_broker(node: Node) -> None:
    await node.heartbeat(await node.register(), connection=5)
    node.controller.connection_closed(ConnectionId(5))
    with capture_logs() as events:
        node.clock.ms += 60_000
        while not events:
            await asyncio.sleep(0.01)
    assert [event["event"] for event in events] == ["controller_was_paused"]
    assert not node.managers.state.brokers[ONE].fenced


@pytest.mark.parametrize(
    ("session_ms", "grace_ms", "interval_ms"),
    [
        (9_000, 1_000, 500),
        (9_000, 0, 500),
        (60_000, 5_000, 500),
        (4_500, 1_000, 250),
        (9_000, 600, 300),
        (1_000, 100, 200),
    ],
)
def test_sweep_interval_is_long_unless_session_or_grace_is_short(
    session_ms: int, grace_ms: int, interval_ms: int
) -> None:
    settings = DynamicControllerConfig(
        broker_session_timeout_ms=session_ms, broker_reconnect_grace_ms=grace_ms
    )
    assert sweep_interval_ms(settings) == interval_ms


# --- sessions that other controllers announced ----------------------------------------------------

ELECTION_MS = 1_000


class _Controller:
    """The managers of a controller, with the log of ``follows`` replayed."""

    def __init__(self, session_timeout_ms: int, follows: _Controller | None = None) -> None:
        self.managers = ControlManagers(
            cluster_id="c",
            in_file=DynamicControllerConfig(broker_session_timeout_ms=session_timeout_ms),
            election_timeout_ms=ELECTION_MS,
            random_bytes=bytes,
            draw_below=lambda _: 0,
        )
        if follows is not None:
            state = follows.managers.state
            for record in state.snapshot_records():
                self.managers.replay_part([record], offset=state.offset)
            self.managers.replay((), offset=state.offset, epoch=state.epoch)

    def apply(self, result: ControllerResult[None]) -> int:
        """Replay the records of a result, and return their number."""
        offset = self.managers.state.offset + 1
        self.managers.replay(result.records, offset=offset, epoch=1)
        return len(result.records)

    def lead(self, now_ms: int) -> None:
        self.managers.take_leadership(now_ms)
        self.apply(self.managers.bootstrap({"metadata.version": 30}))

    def register(self) -> None:
        record = RegisterBrokerRecord(
            broker_id=ONE,
            broker_epoch=BrokerEpoch(1),
            incarnation_id=Uuid(bytes(16)),
            listeners=(),
            rack=None,
            fenced=False,
            in_controlled_shutdown=False,
        )
        self.managers.replay([record], offset=self.managers.state.offset + 1, epoch=1)

    def announced_ms(self, now_ms: int) -> int:
        request = BrokerHeartbeatRequest(
            broker_id=ONE,
            broker_epoch=BrokerEpoch(1),
            current_metadata_offset=1,
            want_fence=False,
            want_shut_down=False,
        )
        response = self.managers.decide(request, now_ms=now_ms).response
        assert isinstance(response, BrokerHeartbeatResponse)
        return response.session_timeout_ms

    def adjust(self, now_ms: int) -> int:
        return self.apply(self.managers.adjust_session_limit(now_ms))


def test_announced_session_does_not_exceed_session_limit_in_the_log() -> None:
    first = _Controller(3_000)
    first.lead(0)
    first.register()
    assert first.managers.state.session_limit_ms == 3_000 + ELECTION_MS
    assert first.announced_ms(0) == 3_000
    assert first.adjust(0) == 0
    second = _Controller(18_000, first)
    second.managers.take_leadership(0)
    assert second.announced_ms(0) == 3_000, "the log has no higher limit yet"
    second.apply(second.managers.bootstrap({}))
    assert second.announced_ms(0) == 18_000


def test_inherited_broker_is_fenced_after_longest_announced_session() -> None:
    """The timeout was lowered in the configuration files, one controller after the other."""
    first = _Controller(18_000)
    first.lead(0)
    first.register()
    # A third controller takes over before the sessions announced by the first one have ended.
    second = _Controller(3_000, first)
    second.lead(1_000)
    assert second.adjust(2_000) == 0
    third = _Controller(3_000, second)
    third.lead(3_000)
    assert third.managers.find_stale_broker(3_000 + 18_999) is None
    assert third.managers.find_stale_broker(3_000 + 19_000) == ONE


def test_session_limit_is_lowered_once_all_longer_sessions_are_over() -> None:
    first = _Controller(18_000)
    first.lead(0)
    first.register()
    second = _Controller(3_000, first)
    second.lead(0)
    for now_ms in range(0, 16_000, 1_000):
        assert second.announced_ms(now_ms) == 3_000
        assert second.adjust(now_ms) == 0
    assert second.adjust(16_000) == 1
    assert second.managers.state.session_limit_ms == 3_000 + ELECTION_MS
