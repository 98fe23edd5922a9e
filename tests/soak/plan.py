"""The plan of a soak: rounds of faults ("strikes"), drawn from a seed.

A round injects faults, which may overlap, repairs them, and ends when every replica is in sync.
With replication factor 3 and ``min.insync.replicas`` 2 a cluster tolerates one lost replica.
Therefore at most one broker per round may lose records or stop uncleanly. The other faults of a
round cost time but no records: faults of controllers, orderly stops, pauses, disks that hang or are
full, and moves between directories.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """Kind of a fault."""

    KILL = "kill -9"
    STOP = "SIGTERM"
    EIO = "EIO"
    POWER_CUT = "power cut"
    """EIO on every disk of a broker, and kill -9: unflushed data is lost."""
    UNREPORTED_EIO = "EIO unreported"
    """EIO while all controllers are down. The directory is reattached before they return."""
    FREEZE = "freeze"
    FULL = "full"
    FULL_KILL = "full, kill -9"
    UNMOUNT = "unmount"
    WIPE = "wipe"
    """An empty disk replaces the old one: its directory is forgotten and added again."""
    PAUSE = "SIGSTOP"
    CONTROLLER_KILL = "controller kill"
    CONTROLLER_PAUSE = "controller SIGSTOP"
    MOVES = "moves"


#: Kinds after which a broker may have lost records, or cannot prove that it has not.
UNCLEAN: Final = frozenset(
    {
        Kind.KILL,
        Kind.EIO,
        Kind.POWER_CUT,
        Kind.UNREPORTED_EIO,
        Kind.FREEZE,
        Kind.FULL_KILL,
        Kind.UNMOUNT,
        Kind.WIPE,
    }
)
#: Kinds that may accompany any other kind. A freeze is short then.
COMPANIONS: Final = (
    *(Kind.CONTROLLER_KILL, Kind.CONTROLLER_PAUSE, Kind.MOVES),
    *(Kind.STOP, Kind.PAUSE, Kind.FULL, Kind.FREEZE),
)
#: Kinds that affect a controller. ``Strike.broker`` selects the controller, modulo their number.
OF_CONTROLLERS: Final = frozenset({Kind.CONTROLLER_KILL, Kind.CONTROLLER_PAUSE})
#: A directory whose disk hangs for less does not go OFFLINE (log.dir.io.timeout.ms is 10 s).
SHORT_FREEZE_S: Final = 6.0
LONGEST_FREEZE_S: Final = 40.0
_LONGEST_S: Final = 5.0
_LATEST_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """A fault that begins ``after_s`` into its round and is repaired ``for_s`` later."""

    kind: Kind
    broker: int
    dir: int
    after_s: float
    for_s: float

    def __str__(self) -> str:
        where = {
            Kind.CONTROLLER_KILL: f" {self.broker}",
            Kind.CONTROLLER_PAUSE: f" {self.broker}",
            Kind.PAUSE: f" of broker {self.broker}",
            Kind.KILL: f" of broker {self.broker}",
            Kind.STOP: f" of broker {self.broker}",
            Kind.POWER_CUT: f" of broker {self.broker}",
            Kind.MOVES: f" on broker {self.broker}",
        }.get(self.kind, f" of disk {self.dir} of broker {self.broker}")
        return f"{self.kind}{where} at {self.after_s:.1f} s for {self.for_s:.1f} s"


Round = tuple[Strike, ...]


def plan(seed: int, *, brokers: int, dirs: int) -> Iterator[Round]:
    """Yield rounds endlessly. The same seed gives the same rounds.

    Each kind is the main fault once, in random order, before a kind repeats.
    """
    rng = random.Random(seed)
    while True:
        kinds = list(Kind)
        rng.shuffle(kinds)
        for kind in kinds:
            yield _round(rng, kind, brokers, dirs)


def _round(rng: random.Random, kind: Kind, brokers: int, dirs: int) -> Round:
    main = _strike(rng, kind, rng.randint(1, brokers), dirs)
    companions = rng.sample(COMPANIONS, rng.choice((0, 0, 1, 1, 2)))
    others = [broker for broker in range(1, brokers + 1) if broker != main.broker]
    strikes = [main]
    for companion in companions:
        if companion is kind or (kind is Kind.UNREPORTED_EIO and companion in OF_CONTROLLERS):
            continue
        # Moves go on the broker of the main fault. Other companions get different brokers.
        broker = main.broker if companion is Kind.MOVES else rng.choice(others)
        if companion is not Kind.MOVES and companion not in OF_CONTROLLERS:
            others = [other for other in others if other != broker] or others
        strikes.append(_strike(rng, companion, broker, dirs, is_companion=True))
    return tuple(sorted(strikes, key=lambda strike: strike.after_s))


def _strike(
    rng: random.Random, kind: Kind, broker: int, dirs: int, *, is_companion: bool = False
) -> Strike:
    for_s = rng.uniform(0.1, _LONGEST_S)
    if kind is Kind.FREEZE:
        # A companion is always short, a main fault in half of the cases.
        is_short = is_companion or rng.random() < 0.5
        for_s = rng.uniform(1.0, SHORT_FREEZE_S if is_short else LONGEST_FREEZE_S)
    return Strike(
        kind=kind,
        broker=broker,
        dir=rng.randrange(dirs),
        after_s=rng.uniform(0.0, _LATEST_S),
        for_s=for_s,
    )
