"""PURE. Time as numbers: the clock protocol, deadlines, back-off, and rates.

This module has no real clock and no randomness; ``daemon/runner.py`` provides both. All times are
milliseconds of a monotonic clock unless a name or a docstring says ``wall``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from kraftjbod.core.loop.wall_guard import PossibleNow


class Clock(Protocol):
    """Source of the time."""

    def now_ms(self) -> int:
        """Return monotonic milliseconds. Only differences are meaningful."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since 1970-01-01 UTC, as in Kafka's record timestamps."""
        ...

    def possible_now(self) -> PossibleNow:
        """Return the range of plausible values of :meth:`wall_ms`, which is wider after the clock
        jumped.
        """
        ...


@dataclass(frozen=True, slots=True)
class Deadline:
    """Time at which a wait ends, in monotonic milliseconds."""

    at_ms: int

    @classmethod
    def after(cls, now_ms: int, timeout_ms: int) -> Deadline:
        return cls(now_ms + timeout_ms)

    def remaining_ms(self, now_ms: int) -> int:
        """Return the milliseconds left, never negative."""
        return max(0, self.at_ms - now_ms)

    def has_passed(self, now_ms: int) -> bool:
        return now_ms >= self.at_ms


class ExponentialBackoff:
    """Computes waits that double from ``initial_ms`` up to ``max_ms``, with a random deviation.

    :param random_unit: returns random numbers in [0, 1).
    :param jitter: largest deviation; 0.2 means plus or minus 20 %, so a wait can exceed ``max_ms``.
    """

    def __init__(
        self,
        *,
        initial_ms: int,
        max_ms: int,
        random_unit: Callable[[], float],
        jitter: float = 0.2,
    ) -> None:
        assert 0 < initial_ms <= max_ms, (initial_ms, max_ms)
        self._initial_ms = initial_ms
        self._max_ms = max_ms
        self._random_unit = random_unit
        self._jitter = jitter

    def wait_ms(self, failures: int) -> int:
        """Return how many ms to wait after the ``failures``-th failure in a row (1, 2, ...)."""
        assert failures >= 1, failures
        doublings = min(failures - 1, 32)
        plain_ms = min(self._max_ms, self._initial_ms << doublings)
        spread = 1.0 + self._jitter * (2.0 * self._random_unit() - 1.0)
        return max(1, round(plain_ms * spread))


class TokenBucket:
    """Shared rate limit, such as of bytes or connections. Its burst is the amount of ``burst_s``
    seconds.

    Spending is never rejected. A bucket can be overdrawn, and :meth:`wait_ms` then returns how long
    its users have to pause until the balance is zero.
    """

    def __init__(self, per_second: float, now_ms: int, *, burst_s: int = 1) -> None:
        assert per_second > 0, per_second
        self._rate = per_second
        self._burst_s = burst_s
        self._balance = float(per_second * burst_s)
        self._as_of_ms = now_ms

    def __repr__(self) -> str:
        return f"<TokenBucket {self._rate}/s balance={self._balance:.0f}>"

    @property
    def per_second(self) -> float:
        return self._rate

    def set_rate(self, per_second: float, now_ms: int) -> None:
        """Change the rate. A debt stays, and a positive balance is cut to the new burst."""
        assert per_second > 0, per_second
        self._refill(now_ms)
        self._rate = per_second
        self._balance = min(self._balance, float(per_second * self._burst_s))

    def spend(self, amount: int, now_ms: int) -> None:
        """Subtract ``amount`` from the balance, which may become negative.

        :param amount: a negative amount is added to the balance.
        """
        self._refill(now_ms)
        self._balance -= amount

    def wait_ms(self, now_ms: int) -> int:
        """Return the milliseconds until the bucket is not overdrawn; 0 if it is not overdrawn."""
        self._refill(now_ms)
        return 0 if self._balance >= 0 else math.ceil(-self._balance * 1000 / self._rate)

    def _refill(self, now_ms: int) -> None:
        earned = (now_ms - self._as_of_ms) * self._rate / 1000
        self._balance = min(self._balance + earned, float(self._rate * self._burst_s))
        self._as_of_ms = now_ms
