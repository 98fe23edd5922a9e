"""For how long nobody can lead what a broker leads."""

from __future__ import annotations

from kraftjbod.broker.cluster.lifecycle.broker_session import BrokerSession


def test_there_is_none_before_the_first_answer() -> None:
    session = BrokerSession(timeout_ms=9_000)
    session.sent(0)
    session.lost()
    assert not session.is_over(10**9) and not session.is_in_doubt(10**9, -1)


def test_it_lasts_from_when_what_was_answered_was_sent() -> None:
    session = BrokerSession(timeout_ms=9_000)
    session.sent(1_000)
    session.answered(5)
    assert (session.is_over(9_999), session.is_over(10_000)) == (False, True)
    assert (session.is_in_doubt(9_999, 5), session.is_in_doubt(10_000, 5)) == (False, True)
    session.sent(11_000)
    session.answered(7)
    assert not session.is_over(11_001)
    assert session.is_in_doubt(11_001, 6), "it may not know yet what the end has meant"
    assert not session.is_in_doubt(11_001, 7)


def test_it_lasts_as_long_as_the_controller_says() -> None:
    """Whose file, or whose settings of now, may say something else than the broker's."""
    session = BrokerSession(timeout_ms=9_000)
    session.sent(0)
    session.answered(-1, 3_000)
    assert (session.is_over(2_999), session.is_over(3_000)) == (False, True)
    session.sent(4_000)
    session.answered(-1)  # By a registration, which says nothing of it.
    assert (session.is_over(6_999), session.is_over(7_000)) == (False, True)


def test_after_a_loss_the_answer_to_a_later_request_counts() -> None:
    session = BrokerSession(timeout_ms=9_000)
    session.sent(0)
    session.answered(-1)
    session.sent(500)
    session.lost()
    assert session.is_in_doubt(500, 0)
    session.answered(-1)
    assert session.is_in_doubt(500, 0), "that may have been answered before the loss"
    session.sent(500)
    session.answered(-1)
    assert not session.is_in_doubt(500, 0)
