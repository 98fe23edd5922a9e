"""``BrokerHeartbeatManager``: the table of broker states, sessions and closed connections."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from kraftjbod.controller.brokers.heartbeat_manager import (
    BrokerControlState,
    BrokerHeartbeatManager,
    HeartbeatRequests,
    next_state,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId, ConnectionId, Uuid
from kraftjbod.metadata.records import RegisterBrokerRecord
from kraftjbod.metadata.registrations import BrokerRegistration
from tests.each_case import each_case

FENCED, UNFENCED = BrokerControlState.FENCED, BrokerControlState.UNFENCED
LEAVING, GONE = BrokerControlState.CONTROLLED_SHUTDOWN, BrokerControlState.SHUTDOWN_NOW
ONE, TWO = BrokerId(1), BrokerId(2)
EPOCH = BrokerEpoch(7)


@pytest.mark.parametrize(
    ("current", "requests", "expected"),
    [
        (FENCED, "may_unfence", UNFENCED),
        (FENCED, "", FENCED),
        (FENCED, "may_unfence want_fence", FENCED),
        (FENCED, "may_unfence want_shut_down", GONE),
        (UNFENCED, "", UNFENCED),
        (UNFENCED, "leads_something", UNFENCED),
        (UNFENCED, "want_fence", FENCED),
        (UNFENCED, "want_fence want_shut_down", GONE),
        (UNFENCED, "want_shut_down leads_something", LEAVING),
        (UNFENCED, "want_shut_down", GONE),
        (LEAVING, "want_shut_down leads_something shutdown_is_known", LEAVING),
        (LEAVING, "want_shut_down", LEAVING),
        (LEAVING, "want_shut_down shutdown_is_known", GONE),
        (GONE, "may_unfence", GONE),
    ],
)
def test_next_state_follows_broker_state_table(
    current: BrokerControlState, requests: str, expected: BrokerControlState
) -> None:
    names = HeartbeatRequests.__dataclass_fields__
    assert set(requests.split()) <= set(names)
    requested = HeartbeatRequests(**{n: n in requests.split() for n in names})
    assert next_state(current, requested) is expected


@pytest.fixture
def heartbeats() -> BrokerHeartbeatManager:
    return BrokerHeartbeatManager(session_timeout_ms=9000, reconnect_grace_ms=1000)


def test_session_ends_one_timeout_after_the_last_contact(
    heartbeats: BrokerHeartbeatManager,
) -> None:
    assert not heartbeats.has_valid_session(ONE, 0)
    heartbeats.touch(ONE, EPOCH, 1000)
    assert heartbeats.has_valid_session(ONE, 9999)
    assert not heartbeats.has_valid_session(ONE, 10_000)
    heartbeats.touch(ONE, EPOCH, 5000)
    assert heartbeats.has_valid_session(ONE, 10_000)
    heartbeats.end_session(ONE)
    assert not heartbeats.has_valid_session(ONE, 5000)


def test_find_stale_returns_broker_that_was_silent_longest(
    heartbeats: BrokerHeartbeatManager,
) -> None:
    heartbeats.touch(ONE, EPOCH, 200)
    heartbeats.touch(TWO, EPOCH, 100)
    assert heartbeats.find_stale([ONE, TWO], 9000) is None
    assert heartbeats.find_stale([ONE, TWO], 9500) == TWO
    assert heartbeats.find_stale([ONE], 9500) == ONE
    assert heartbeats.find_stale([ONE, BrokerId(3)], 9500) == BrokerId(3), "no contact ever"


def test_shutdown_is_known_once_all_active_brokers_replayed_it(
    heartbeats: BrokerHeartbeatManager,
) -> None:
    heartbeats.touch(ONE, EPOCH, 0, 5)
    heartbeats.touch(TWO, EPOCH, 0, 5)
    assert not heartbeats.is_shutdown_known(ONE, [TWO])
    heartbeats.note_shutdown_offset(ONE, 6)
    heartbeats.note_shutdown_offset(ONE, 60)
    heartbeats.touch(TWO, EPOCH, 0, 6)
    assert not heartbeats.is_shutdown_known(ONE, [TWO]), "both offsets changed leaders"
    heartbeats.touch(TWO, EPOCH, 0, 60)
    assert heartbeats.is_shutdown_known(ONE, [TWO])
    assert not heartbeats.is_shutdown_known(ONE, [TWO, BrokerId(3)]), "3 sent no heartbeat"


def test_touch_by_new_incarnation_resets_shutdown_offset(
    heartbeats: BrokerHeartbeatManager,
) -> None:
    heartbeats.touch(ONE, EPOCH, 0, 5)
    heartbeats.note_shutdown_offset(ONE, 6)
    heartbeats.touch(ONE, BrokerEpoch(8), 0, 1)
    assert not heartbeats.is_shutdown_known(ONE, [])


# --- closed connections --------------------------------------------------------------------------

SESSION_MS, GRACE_MS = 9000, 1000
# A former controller may have announced longer sessions.
LIMIT_MS = 19_000


def test_broker_with_closed_connection_is_gone_after_the_grace(
    heartbeats: BrokerHeartbeatManager,
) -> None:
    heartbeats.touch(ONE, EPOCH, 100, connection=ConnectionId(1))
    heartbeats.connection_closed(ConnectionId(1), 200)
    assert heartbeats.until_gone_ms(300) == 900
    assert heartbeats.has_valid_session(ONE, 1199)
    assert heartbeats.may_be_replaced(ONE, 200), "its next incarnation need not wait"
    assert heartbeats.is_gone(ONE, 1200)
    assert heartbeats.find_stale([ONE], 1200) == ONE
    heartbeats.discount_pause(500, 1200)
    assert not heartbeats.is_gone(ONE, 1200), "it may have come back meanwhile"
    heartbeats.touch(ONE, EPOCH, 1300, connection=ConnectionId(2))
    assert heartbeats.until_gone_ms(1300) is None
    assert not heartbeats.may_be_replaced(ONE, 1300)


def test_session_lasts_as_long_as_announced_after_timeout_was_lowered() -> None:
    """The broker assumes until then that no other broker leads its partitions."""
    heartbeats = BrokerHeartbeatManager(session_timeout_ms=9_000, reconnect_grace_ms=0)
    heartbeats.touch(ONE, EPOCH, 0)
    heartbeats.set_limits(3_000, 0)
    assert heartbeats.session_timeout_ms == 3_000
    # The response with the shorter timeout may be lost.
    heartbeats.touch(ONE, EPOCH, 2_000)
    assert heartbeats.has_valid_session(ONE, 8_999)
    assert heartbeats.find_stale([ONE], 9_000) == ONE
    heartbeats.touch(ONE, EPOCH, 10_000)
    assert heartbeats.find_stale([ONE], 13_000) == ONE


def test_closed_connection_changes_nothing_without_grace() -> None:
    heartbeats = BrokerHeartbeatManager(session_timeout_ms=SESSION_MS, reconnect_grace_ms=0)
    heartbeats.touch(ONE, EPOCH, 0, connection=ConnectionId(1))
    heartbeats.connection_closed(ConnectionId(1), 0)
    assert not heartbeats.may_be_replaced(ONE, SESSION_MS - 1)
    assert heartbeats.find_stale([ONE], SESSION_MS) == ONE


def test_inherited_sessions_last_as_long_as_any_controller_announced() -> None:
    """The former controller answers until its lease ends, and applies its own setting."""
    heartbeats = BrokerHeartbeatManager(session_timeout_ms=SESSION_MS, reconnect_grace_ms=GRACE_MS)
    heartbeats.restart([_registration(ONE, EPOCH)], 0, LIMIT_MS)
    assert heartbeats.has_longer_sessions(LIMIT_MS - SESSION_MS - 1)
    assert not heartbeats.has_longer_sessions(LIMIT_MS - SESSION_MS)
    assert heartbeats.find_stale([ONE], LIMIT_MS - 1) is None
    assert heartbeats.find_stale([ONE], LIMIT_MS) == ONE


def test_broker_without_contact_to_this_controller_is_not_probed() -> None:
    """A single firewall rule can block its heartbeats and refuse connections to it."""
    heartbeats = BrokerHeartbeatManager(session_timeout_ms=SESSION_MS, reconnect_grace_ms=GRACE_MS)
    heartbeats.restart([_registration(ONE, EPOCH)], 0, LIMIT_MS)
    assert heartbeats.may_be_replaced(ONE, GRACE_MS), "a new incarnation shows that it is dead"
    assert heartbeats.take_suspects() == []
    heartbeats.refused(ONE, EPOCH)
    assert heartbeats.has_valid_session(ONE, LIMIT_MS - 1)


@dataclass
class _Process:
    """An incarnation of a broker, and its open connections to the controller."""

    epoch: BrokerEpoch
    connections: list[ConnectionId] = field(default_factory=list)
    last_on: ConnectionId | None = None
    last_request_ms: int = 0
    until_ms: int = 0
    """End of the longest session that any controller announced."""
    cut_off_ms: int | None = None
    """Time at which the connection of its last contact closed."""
    is_reset: bool = False
    """Whether that connection was reset, which the broker may not know."""
    is_known: bool = True
    """Whether the current controller has received a request of it."""
    is_probed: bool = False
    is_refused: bool = False


def _registration(broker_id: BrokerId, epoch: BrokerEpoch) -> BrokerRegistration:
    record = RegisterBrokerRecord(
        broker_id=broker_id,
        broker_epoch=epoch,
        incarnation_id=Uuid(bytes(16)),
        listeners=(),
        rack=None,
        fenced=False,
        in_controlled_shutdown=False,
        log_dirs=(),
    )
    return BrokerRegistration.from_record(record)


class _Brokers:
    """Model of brokers and their connections, compared with the manager under test."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.now_ms = 0
        self.heartbeats = BrokerHeartbeatManager(
            session_timeout_ms=SESSION_MS, reconnect_grace_ms=GRACE_MS
        )
        self.current: dict[BrokerId, _Process] = {}
        # Incarnations replaced by a later registration; their processes may live for a while.
        self.former: list[_Process] = []
        self.last_connection = 0
        self.last_epoch = 0
        # Probes in flight.
        self.probes: list[tuple[BrokerId, BrokerEpoch]] = []

    def step(self) -> None:
        self.rng.choice(
            (
                *(self.wait, self.connect, self.heartbeat, self.heartbeat),
                *(self.close, self.register, self.register, self.restart_controller),
                *(self.probe, self.say_refused),
            )
        )()
        self.check()

    def wait(self) -> None:
        self.now_ms += self.rng.choice((1, 50, 300, GRACE_MS - 1, GRACE_MS, 4000, SESSION_MS))

    def connect(self) -> None:
        """Open another connection; an older one may be dead without a notification."""
        if self.current:
            self.last_connection += 1
            process = self.rng.choice(list(self.current.values()))
            process.connections.append(ConnectionId(self.last_connection))

    def heartbeat(self) -> None:
        """Send a heartbeat on any connection; one sent on an older connection may arrive late."""
        able = [(b, p) for b, p in self.current.items() if p.connections]
        if able:
            broker_id, process = self.rng.choice(able)
            self._touch(broker_id, process, self.rng.choice(process.connections))

    def close(self) -> None:
        """Close one connection of a current or former incarnation."""
        able = [p for p in (*self.current.values(), *self.former) if p.connections]
        if able:
            process = self.rng.choice(able)
            connection = self.rng.choice(process.connections)
            process.connections.remove(connection)
            is_reset = self.rng.random() < 0.3
            self.heartbeats.connection_closed(connection, self.now_ms, is_reset=is_reset)
            if connection == process.last_on:
                process.last_on, process.is_reset = None, is_reset
                process.cut_off_ms = None if is_reset else self.now_ms

    def register(self) -> None:
        """Register another incarnation, which is refused while the previous one may live."""
        broker_id = self.rng.choice((ONE, TWO))
        before = self.current.get(broker_id)
        may = before is None or before.is_refused or self._is_silent(before)
        may = may or self._is_suspect(before)
        assert self.heartbeats.may_be_replaced(broker_id, self.now_ms) is may
        if may:
            if before is not None:
                self.former.append(before)
            self.last_epoch += 1
            self.last_connection += 1
            connection = ConnectionId(self.last_connection)
            process = _Process(BrokerEpoch(self.last_epoch), [connection])
            self.current[broker_id] = process
            self._touch(broker_id, process, connection)

    def _touch(self, broker_id: BrokerId, process: _Process, connection: ConnectionId) -> None:
        self.heartbeats.touch(broker_id, process.epoch, self.now_ms, connection=connection)
        process.last_on, process.cut_off_ms = connection, None
        process.last_request_ms, process.is_known = self.now_ms, True
        process.until_ms = max(process.until_ms, self.now_ms + SESSION_MS)
        process.is_probed = process.is_refused = process.is_reset = False

    def restart_controller(self) -> None:
        """Start a controller with no connections, with all brokers unfenced."""
        for process in self.current.values():
            process.connections, process.last_on, process.cut_off_ms = [], None, None
            process.last_request_ms, process.is_known = self.now_ms, False
            process.until_ms = self.now_ms + LIMIT_MS
            process.is_probed = process.is_refused = process.is_reset = False
        self.former.clear()
        registered = [_registration(b, p.epoch) for b, p in self.current.items()]
        self.heartbeats.restart(registered, self.now_ms, LIMIT_MS)

    def probe(self) -> None:
        suspects = [
            (broker_id, process.epoch)
            for broker_id, process in self.current.items()
            if not process.is_probed and process.cut_off_ms is not None
        ]
        assert sorted(self.heartbeats.take_suspects()) == sorted(suspects)
        for broker_id, _ in suspects:
            self.current[broker_id].is_probed = True
        self.probes += suspects

    def say_refused(self) -> None:
        """Deliver the refusal of a probe, perhaps after the broker reconnected or was replaced."""
        if self.probes:
            broker_id, epoch = self.probes.pop(self.rng.randrange(len(self.probes)))
            self.heartbeats.refused(broker_id, epoch)
            process = self.current[broker_id]
            process.is_refused |= process.epoch == epoch and process.is_probed

    def _is_suspect(self, process: _Process | None) -> bool:
        """Return whether the connection is closed or reset, or never came after a failover."""
        return process is not None and (
            process.cut_off_ms is not None
            or process.is_reset
            or (not process.is_known and self.now_ms - process.last_request_ms >= GRACE_MS)
        )

    def _is_silent(self, process: _Process) -> bool:
        return self.now_ms >= process.until_ms

    def check(self) -> None:
        waits = []
        for broker_id, process in self.current.items():
            cut_off_ms = process.cut_off_ms
            is_gone = cut_off_ms is not None and self.now_ms - cut_off_ms >= GRACE_MS
            if cut_off_ms is not None and not is_gone:
                waits.append(cut_off_ms + GRACE_MS - self.now_ms)
            is_gone |= process.is_refused
            assert self.heartbeats.is_gone(broker_id, self.now_ms) is is_gone
            is_valid = not is_gone and not self._is_silent(process)
            assert self.heartbeats.has_valid_session(broker_id, self.now_ms) is is_valid
        assert self.heartbeats.until_gone_ms(self.now_ms) == min(waits, default=None)


@each_case("seed", range(40))
def test_heartbeat_manager_matches_model_of_brokers_and_connections(seed: int) -> None:
    """Two connections of one broker, late heartbeats, and former incarnations that are still
    alive."""
    brokers = _Brokers(random.Random(seed))
    for _ in range(400):
        brokers.step()
