"""What a soak does to its cluster: rounds of strikes, drawn from a seed.

A round breaks things, alone or overlapping, mends them, and ends when every replica is in sync.
The law of a plan is the promise that the cluster makes with RF 3 and ``min.insync.replicas`` 2:
of one round at most one broker may lose records or return without a clean stop. Everything else
that strikes meanwhile costs time, and no records: controllers, an orderly stop, a pause, a disk
that hangs or is full, moves between directories.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """How something breaks."""

    KILL = "kill -9"
    STOP = "SIGTERM"
    EIO = "EIO"
    POWER_CUT = "power cut"
    """EIO on every disk of a broker, and kill -9: what was not flushed is lost."""
    UNHEARD_EIO = "EIO unheard"
    """While the controller is down; the directory is reattached before that is back."""
    FREEZE = "freeze"
    FULL = "full"
    FULL_KILL = "full, kill -9"
    UNMOUNT = "unmount"
    WIPE = "wipe"
    """An empty disk in the place of the old one: forgotten, and added."""
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
        Kind.UNHEARD_EIO,
        Kind.FREEZE,
        Kind.FULL_KILL,
        Kind.UNMOUNT,
        Kind.WIPE,
    }
)
#: Kinds that may strike beside any other; a freeze is one as long as it is short.
COMPANIONS: Final = (
    *(Kind.CONTROLLER_KILL, Kind.CONTROLLER_PAUSE, Kind.MOVES),
    *(Kind.STOP, Kind.PAUSE, Kind.FULL, Kind.FREEZE),
)
#: Kinds that strike a controller; of several, the one with the number of the strike's broker.
OF_CONTROLLERS: Final = frozenset({Kind.CONTROLLER_KILL, Kind.CONTROLLER_PAUSE})
#: A disk that hangs for less is not given up.
SHORT_FREEZE_S: Final = 6.0
LONGEST_FREEZE_S: Final = 40.0
_LONGEST_S: Final = 5.0
_LATEST_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Strike:
    """``after_s`` into its round something breaks, and is mended ``for_s`` later."""

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
    """Rounds without end; the same seed gives the same ones.

    Every kind comes once, in an order of the seed's, before any comes again.
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
        if companion is kind or (kind is Kind.UNHEARD_EIO and companion in OF_CONTROLLERS):
            continue
        # Moves are best where it burns; two brokers that are struck are not the same.
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
        # Half of them are short, whatever the rest may be.
        is_short = is_companion or rng.random() < 0.5
        for_s = rng.uniform(1.0, SHORT_FREEZE_S if is_short else LONGEST_FREEZE_S)
    return Strike(
        kind=kind,
        broker=broker,
        dir=rng.randrange(dirs),
        after_s=rng.uniform(0.0, _LATEST_S),
        for_s=for_s,
    )
