"""PURE. The scenarios of a game day: their names, how long they last, and which gaps are normal.

The limits of the gaps are well above what a cluster on two slow cores showed; what a gap is made
of stands beside each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Scenario = Literal["dead-disk", "full-disk", "hung-disk", "slow-disk", "broker-kill"]
SCENARIOS: Final[tuple[Scenario, ...]] = get_args(Scenario)
OBSERVE: Final = "observe"
#: Whatever else goes wrong, a broker or the cluster has to report it.
MAY_PASS_UNNOTICED: Final = frozenset({"slow-disk"})

MAX_GAP_MS: Final[dict[str, int]] = {
    # A check every half second finds it, or the next write does; then an election.
    "dead-disk": 1_000,
    # The write that finds no space says so at once; then an election.
    "full-disk": 1_000,
    # Two seconds of doubt (log.dir.io.suspect.ms), then an election.
    "hung-disk": 4_000,
    # Nothing fails and nobody leaves: writes wait for the slow disk, one after the other.
    "slow-disk": 10_000,
    # A second in which it could come back (broker.reconnect.grace.ms), then an election, of which
    # some clients hear when they ask the next time, once a second.
    "broker-kill": 4_000,
    # Only who watches knows what to expect.
    OBSERVE: 10_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Seconds of steady load before the fault, with it at least, and after all is well again."""

    before_s: float
    fault_s: float
    after_s: float
