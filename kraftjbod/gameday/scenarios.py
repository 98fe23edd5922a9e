"""PURE. The scenarios of a game day: their names, how long they last, and which gaps are normal.

The limits of the gaps are well above what a cluster on two slow cores showed; what a gap is made
of stands beside each.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

Scenario = Literal[
    "dead-disk",
    "full-disk",
    "hung-disk",
    "slow-disk",
    "broker-kill",
    "broker-pause",
    "controller-kill",
    "controller-pause",
    "controller-disk",
    "host-loss",
    "controller-host-loss",
    "rolling-restart",
    "cold-reader",
]
SCENARIOS: Final[tuple[Scenario, ...]] = get_args(Scenario)
OBSERVE: Final = "observe"
#: Whatever else goes wrong, a broker or the cluster has to report it.
MAY_PASS_UNNOTICED: Final = frozenset({"slow-disk", "cold-reader"})

MAX_GAP_MS: Final[dict[str, int]] = {
    # A check every half second finds it, or the next write does; then an election.
    "dead-disk": 1_000,
    # The write that finds no space says so at once; then an election.
    "full-disk": 1_000,
    # Two seconds of doubt (log.dir.io.suspect.ms), then an election.
    "hung-disk": 4_000,
    # Nothing fails and nobody leaves: writes wait for the slow disk, one after the other.
    "slow-disk": 10_000,
    # A tenth of a second until nobody is found at its address, or the second in which it could
    # come back (broker.reconnect.grace.ms), then an election.
    "broker-kill": 1_500,
    # Nobody can tell it from a slow one before its session ends (broker.session.timeout.ms, 9 s);
    # who waits for its answer asks others once a second whether it still leads.
    "broker-pause": 12_000,
    # Whoever produces and consumes needs no controller.
    "controller-kill": 300,
    "controller-pause": 300,
    "controller-disk": 300,
    # As a pause: nothing says that it is gone.
    "host-loss": 12_000,
    "controller-host-loss": 300,
    # Leaders have moved before a broker ends; a client is told by who led before.
    "rolling-restart": 300,
    # Nothing fails: reads of cold segments and writes share the disks.
    "cold-reader": 1_000,
    # Only who watches knows what to expect.
    OBSERVE: 10_000,
}

#: The longest time in which no controller does what it is asked for, where that is in question.
MAX_METADATA_GAP_MS: Final[dict[str, int]] = {
    # The connection closes, two others elect.
    "controller-kill": 1_000,
    # An election time-out of silence (controller.quorum.election.timeout.ms) and up to as long
    # again, and whoever waits for the one that stands still asks another.
    "controller-pause": 4_000,
    # A check every half second (log.dir.check.interval.ms) finds it, or the next write does.
    "controller-disk": 1_000,
    "controller-host-loss": 4_000,
    # The one that stops hands over first.
    "rolling-restart": 1_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Seconds of steady load before the fault, with it at least, and after all is well again."""

    before_s: float
    fault_s: float
    after_s: float
