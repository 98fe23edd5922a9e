"""``Deadline``, ``ExponentialBackoff`` and ``TokenBucket``."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.loop.timing import Deadline, ExponentialBackoff, TokenBucket


def test_deadline_counts_down_to_zero() -> None:
    deadline = Deadline.after(1000, 50)
    assert deadline.remaining_ms(1010) == 40
    assert not deadline.has_passed(1049)
    assert deadline.has_passed(1050)
    assert deadline.remaining_ms(2000) == 0


def test_backoff_doubles_wait_up_to_the_limit() -> None:
    backoff = ExponentialBackoff(initial_ms=100, max_ms=1000, random_unit=lambda: 0.5)
    assert [backoff.wait_ms(n) for n in (1, 2, 3, 4, 5, 500)] == [100, 200, 400, 800, 1000, 1000]


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_backoff_jitter_stays_within_its_share(failures: int, unit: float) -> None:
    backoff = ExponentialBackoff(
        initial_ms=100, max_ms=10_000, random_unit=lambda: unit, jitter=0.2
    )
    plain = min(10_000, 100 * 2 ** min(failures - 1, 32))
    assert 0.8 * plain - 1 <= backoff.wait_ms(failures) <= 1.2 * plain + 1


def test_token_bucket_allows_burst_of_one_second_then_the_rate() -> None:
    bucket = TokenBucket(1_000, now_ms=0)
    bucket.spend(1_000, 0)
    assert bucket.wait_ms(0) == 0
    bucket.spend(500, 0)
    assert bucket.wait_ms(0) == 500
    assert bucket.wait_ms(200) == 300
    assert bucket.wait_ms(10_000) == 0


def test_token_bucket_saves_tokens_of_one_second_at_most() -> None:
    bucket = TokenBucket(1_000, now_ms=0)
    bucket.spend(1_500, 60_000)
    assert bucket.wait_ms(60_000) == 500


def test_token_bucket_set_rate_keeps_the_debt() -> None:
    bucket = TokenBucket(1_000, now_ms=0)
    bucket.spend(3_000, 0)
    bucket.set_rate(4_000, 1_000)
    assert bucket.wait_ms(1_000) == 250
    bucket.set_rate(10, 60_000)
    bucket.spend(11, 60_000)
    assert bucket.wait_ms(60_000) == 100
