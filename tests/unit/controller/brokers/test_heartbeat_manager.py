"""The broker state table row by row, and sessions."""

from __future__ import annotations

import pytest

from kraftjbod.controller.brokers.heartbeat_manager import (
    BrokerControlState,
    BrokerHeartbeatManager,
    BrokerWish,
    next_state,
)
from kraftjbod.core.ids import BrokerEpoch, BrokerId

FENCED, UNFENCED = BrokerControlState.FENCED, BrokerControlState.UNFENCED
LEAVING, GONE = BrokerControlState.CONTROLLED_SHUTDOWN, BrokerControlState.SHUTDOWN_NOW
ONE, TWO = BrokerId(1), BrokerId(2)
EPOCH = BrokerEpoch(7)


@pytest.mark.parametrize(
    ("current", "wishes", "expected"),
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
def test_next_state(current: BrokerControlState, wishes: str, expected: BrokerControlState) -> None:
    names = BrokerWish.__dataclass_fields__
    assert set(wishes.split()) <= set(names)
    assert next_state(current, BrokerWish(**{n: n in wishes.split() for n in names})) is expected


@pytest.fixture
def heartbeats() -> BrokerHeartbeatManager:
    return BrokerHeartbeatManager(session_timeout_ms=9000)


def test_a_session_ends_a_timeout_after_the_last_contact(
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


def test_the_longest_silent_broker_is_found_first(heartbeats: BrokerHeartbeatManager) -> None:
    heartbeats.touch(ONE, EPOCH, 200)
    heartbeats.touch(TWO, EPOCH, 100)
    assert heartbeats.find_stale([ONE, TWO], 9000) is None
    assert heartbeats.find_stale([ONE, TWO], 9500) == TWO
    assert heartbeats.find_stale([ONE], 9500) == ONE
    assert heartbeats.find_stale([ONE, BrokerId(3)], 9500) == BrokerId(3), "never heard"


def test_a_shutdown_is_known_when_all_active_brokers_have_replayed_it(
    heartbeats: BrokerHeartbeatManager,
) -> None:
    heartbeats.touch(ONE, EPOCH, 0, 5)
    heartbeats.touch(TWO, EPOCH, 0, 5)
    assert not heartbeats.is_shutdown_known(ONE, [TWO])
    heartbeats.note_shutdown_offset(ONE, 6)
    heartbeats.note_shutdown_offset(ONE, 60)
    assert not heartbeats.is_shutdown_known(ONE, [TWO])
    heartbeats.touch(TWO, EPOCH, 0, 6)
    assert heartbeats.is_shutdown_known(ONE, [TWO])
    assert not heartbeats.is_shutdown_known(ONE, [TWO, BrokerId(3)]), "3 was never heard"


def test_a_new_incarnation_starts_from_nothing(heartbeats: BrokerHeartbeatManager) -> None:
    heartbeats.touch(ONE, EPOCH, 0, 5)
    heartbeats.note_shutdown_offset(ONE, 6)
    heartbeats.touch(ONE, BrokerEpoch(8), 0, 1)
    assert not heartbeats.is_shutdown_known(ONE, [])
