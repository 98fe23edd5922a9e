"""PURE. The scenarios of a game day: names, durations, and the limits of gaps.

The limits are well above the gaps of a cluster on two slow cores. The comments say what a gap
consists of.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, get_args

from kraftjbod.testing.faults import DiskFault, Fault, ProcessFault

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
    "successive-failures",
    "cold-reader",
]
SCENARIOS: Final[tuple[Scenario, ...]] = get_args(Scenario)
#: What each scenario injects; ``cold-reader`` injects nothing.
FAULTS: Final[dict[Scenario, Fault]] = {
    "dead-disk": DiskFault.CHMOD,
    "full-disk": DiskFault.FULL,
    "hung-disk": DiskFault.HANG,
    "slow-disk": DiskFault.SLOW,
    "broker-kill": ProcessFault.KILL,
    "broker-pause": ProcessFault.PAUSE,
    "controller-kill": ProcessFault.KILL,
    "controller-pause": ProcessFault.PAUSE,
    "controller-disk": DiskFault.CHMOD,
    "host-loss": ProcessFault.POWER_CUT,
    "controller-host-loss": ProcessFault.POWER_CUT,
    "rolling-restart": ProcessFault.STOP,
}
OBSERVE: Final = "observe"
#: A broker or the cluster must report the fault of any other scenario.
MAY_PASS_UNNOTICED: Final = frozenset({"slow-disk", "cold-reader"})

MAX_GAP_MS: Final[dict[str, int]] = {
    # A check every half second or the next write detects it, then an election.
    "dead-disk": 1_000,
    # The next write fails at once, then an election.
    "full-disk": 1_000,
    # Two seconds of suspicion (log.dir.io.suspect.ms), then an election.
    "hung-disk": 4_000,
    # No failure and no election: each write waits for the slow disk.
    "slow-disk": 10_000,
    # A tenth of a second until connections are refused, or one second in which the broker may
    # return (broker.reconnect.grace.ms), then an election.
    "broker-kill": 1_500,
    # A paused broker looks like a slow one until its session ends (broker.session.timeout.ms, 9 s).
    # A waiting client asks other brokers once a second for the leader.
    "broker-pause": 12_000,
    # Producers and consumers need no controller.
    "controller-kill": 300,
    "controller-pause": 300,
    "controller-disk": 300,
    # Like a pause: no packet announces the loss of the host.
    "host-loss": 12_000,
    "controller-host-loss": 300,
    # Leaders move before a broker stops, and the former leader redirects clients.
    "rolling-restart": 300,
    # The longest of its failures, a killed broker.
    "successive-failures": 1_500,
    # No failure: reads of cold segments and writes share the disks.
    "cold-reader": 1_000,
    # Only the observer knows the expected gaps.
    OBSERVE: 10_000,
}

#: The longest allowed time without a successful metadata operation, by scenario.
MAX_METADATA_GAP_MS: Final[dict[str, int]] = {
    # The connection closes, and the two others elect a leader.
    "controller-kill": 1_000,
    # Up to two election timeouts (controller.quorum.election.timeout.ms), and the time until a
    # request to the paused controller is sent to another one.
    "controller-pause": 4_000,
    # A check every half second (log.dir.check.interval.ms) or the next write detects it.
    "controller-disk": 1_000,
    "controller-host-loss": 4_000,
    # A stopping controller resigns first.
    "rolling-restart": 1_000,
    # As for a killed controller; the killed broker may hold an operation.
    "successive-failures": 1_500,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The durations of a scenario's phases, in seconds.

    The load runs for ``before_s`` before the fault, for at least ``fault_s`` with it, and for
    ``after_s`` after the recovery.
    """

    before_s: float
    fault_s: float
    after_s: float
