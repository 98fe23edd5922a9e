"""``BrokerSession``: how long the controller elects no other leader for a broker's partitions."""

from __future__ import annotations

from kraftjbod.broker.cluster.lifecycle.broker_session import BrokerSession


def test_broker_session_before_the_first_response_is_neither_over_nor_in_doubt() -> None:
    session = BrokerSession(timeout_ms=9_000)
    session.sent(0)
    session.lost()
    assert not session.is_over(10**9) and not session.is_in_doubt(10**9, -1)


def test_broker_session_lasts_from_the_send_time_of_the_answered_heartbeat() -> None:
    session = BrokerSession(timeout_ms=9_000)
    session.sent(1_000)
    session.answered(5)
    assert (session.is_over(9_999), session.is_over(10_000)) == (False, True)
    assert (session.is_in_doubt(9_999, 5), session.is_in_doubt(10_000, 5)) == (False, True)
    session.sent(11_000)
    session.answered(7)
    assert not session.is_over(11_001)
    assert session.is_in_doubt(11_001, 6), "metadata may lack the changes of the expired session"
    assert not session.is_in_doubt(11_001, 7)


def test_broker_session_uses_the_timeout_of_the_controller() -> None:
    """The timeout of the controller may differ from the timeout of the broker."""
    session = BrokerSession(timeout_ms=9_000)
    session.sent(0)
    session.answered(-1, 3_000)
    assert (session.is_over(2_999), session.is_over(3_000)) == (False, True)
    session.sent(4_000)
    session.answered(-1)  # A registration has no timeout.
    assert (session.is_over(6_999), session.is_over(7_000)) == (False, True)


def test_broker_session_after_a_failed_request_is_in_doubt_until_a_later_answer() -> None:
    session = BrokerSession(timeout_ms=9_000)
    session.sent(0)
    session.answered(-1)
    session.sent(500)
    session.lost()
    assert session.is_in_doubt(500, 0)
    session.answered(-1)
    assert session.is_in_doubt(500, 0), "the response may be older than the loss"
    session.sent(500)
    session.answered(-1)
    assert not session.is_in_doubt(500, 0)
