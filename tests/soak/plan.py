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

from kraftjbod.testing.faults import DiskFault, Fault, ProcessFault


class Target(StrEnum):
    """What a strike breaks."""

    BROKER = "broker"
    DIRECTORY = "directory"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Kind:
    """How something breaks: faults that begin one after the other; without any, ``detail``."""

    target: Target
    faults: tuple[Fault, ...]
    detail: str = ""

    @property
    def strikes_a_broker(self) -> bool:
        return bool(self.faults) and self.target is not Target.CONTROLLER

    def __str__(self) -> str:
        words = [*(str(fault) for fault in self.faults), *([self.detail] if self.detail else [])]
        return f"{' '.join(words)} of {self.target}"


KILL: Final = Kind(Target.BROKER, (ProcessFault.KILL,))
STOP: Final = Kind(Target.BROKER, (ProcessFault.STOP,))
EIO: Final = Kind(Target.DIRECTORY, (DiskFault.EIO,))
#: EIO on every disk of a broker, and SIGKILL: unsynced data is lost.
POWER_CUT: Final = Kind(Target.BROKER, (ProcessFault.POWER_CUT,))
#: EIO while all controllers are down. The directory is reattached before they return.
UNREPORTED_EIO: Final = Kind(Target.DIRECTORY, (DiskFault.EIO,), "without controllers")
HANG: Final = Kind(Target.DIRECTORY, (DiskFault.HANG,))
FULL: Final = Kind(Target.DIRECTORY, (DiskFault.FULL,))
FULL_KILL: Final = Kind(Target.DIRECTORY, (DiskFault.FULL, ProcessFault.KILL))
UNMOUNT: Final = Kind(Target.DIRECTORY, (DiskFault.UNMOUNT,))
#: An empty disk replaces the old one: its directory is forgotten and added again.
WIPE: Final = Kind(Target.DIRECTORY, (DiskFault.WIPE,))
PAUSE: Final = Kind(Target.BROKER, (ProcessFault.PAUSE,))
CONTROLLER_KILL: Final = Kind(Target.CONTROLLER, (ProcessFault.KILL,))
CONTROLLER_PAUSE: Final = Kind(Target.CONTROLLER, (ProcessFault.PAUSE,))
MOVES: Final = Kind(Target.BROKER, (), "moves")
#: In the order from which a seed shuffles them.
KINDS: Final = (
    *(KILL, STOP, EIO, POWER_CUT, UNREPORTED_EIO, HANG, FULL, FULL_KILL, UNMOUNT, WIPE, PAUSE),
    *(CONTROLLER_KILL, CONTROLLER_PAUSE, MOVES),
)
#: The faults of which the kinds consist.
FAULTS: Final = frozenset(fault for kind in KINDS for fault in kind.faults)

#: Kinds after which a broker may have lost records, or cannot prove that it has not.
UNCLEAN: Final = frozenset(
    {KILL, EIO, POWER_CUT, UNREPORTED_EIO, HANG, FULL_KILL, UNMOUNT, WIPE},
)
#: Kinds that may accompany any other kind. A hang is short then.
COMPANIONS: Final = (CONTROLLER_KILL, CONTROLLER_PAUSE, MOVES, STOP, PAUSE, FULL, HANG)
#: A directory whose disk hangs for less does not go OFFLINE (log.dir.io.timeout.ms is 10 s).
SHORT_HANG_S: Final = 6.0
LONGEST_HANG_S: Final = 40.0
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
        where = "" if self.kind.target is not Target.DIRECTORY else f"{self.dir} of broker "
        return f"{self.kind} {where}{self.broker} at {self.after_s:.1f} s for {self.for_s:.1f} s"


Round = tuple[Strike, ...]


def plan(seed: int, *, brokers: int, dirs: int) -> Iterator[Round]:
    """Yield rounds endlessly. The same seed gives the same rounds.

    Each kind is the main fault once, in random order, before a kind repeats.
    """
    rng = random.Random(seed)
    while True:
        kinds = list(KINDS)
        rng.shuffle(kinds)
        for kind in kinds:
            yield _round(rng, kind, brokers, dirs)


def _round(rng: random.Random, kind: Kind, brokers: int, dirs: int) -> Round:
    main = _strike(rng, kind, rng.randint(1, brokers), dirs)
    companions = rng.sample(COMPANIONS, rng.choice((0, 0, 1, 1, 2)))
    others = [broker for broker in range(1, brokers + 1) if broker != main.broker]
    strikes = [main]
    for companion in companions:
        if companion is kind or (kind is UNREPORTED_EIO and companion.target is Target.CONTROLLER):
            continue
        # Moves run on the broker of the main fault. Other companions get different brokers.
        broker = main.broker if companion is MOVES else rng.choice(others)
        if companion is not MOVES and companion.target is not Target.CONTROLLER:
            others = [other for other in others if other != broker] or others
        strikes.append(_strike(rng, companion, broker, dirs, is_companion=True))
    return tuple(sorted(strikes, key=lambda strike: strike.after_s))


def _strike(
    rng: random.Random, kind: Kind, broker: int, dirs: int, *, is_companion: bool = False
) -> Strike:
    for_s = rng.uniform(0.1, _LONGEST_S)
    if kind is HANG:
        # A companion is always short, a main fault in half of the cases.
        is_short = is_companion or rng.random() < 0.5
        for_s = rng.uniform(1.0, SHORT_HANG_S if is_short else LONGEST_HANG_S)
    return Strike(
        kind=kind,
        broker=broker,
        dir=rng.randrange(dirs),
        after_s=rng.uniform(0.0, _LATEST_S),
        for_s=for_s,
    )
