"""The applications of a simulation, drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import replace
from enum import StrEnum
from functools import partial
from typing import Final

from tests.sim.search.applications.application import (
    Application,
    Surroundings,
)
from tests.sim.search.applications.classic_members import ClassicMembers
from tests.sim.search.applications.consumer_members import ConsumerMembers
from tests.sim.search.applications.copier import Copier
from tests.sim.search.applications.expiring import Expiring
from tests.sim.search.applications.fleeting import Fleeting
from tests.sim.search.applications.transactors import HASTY, Transactors
from tests.sim.search.ledgers.ledger import Ledger
from tests.sim.search.ledgers.topic_ledger import TopicLedger

#: Probability of each application but ``HASTY``.
_CHANCE: Final = 0.35
#: Probability of ``HASTY``, with which a seed takes several times as long.
_HASTY_CHANCE: Final = 0.03
#: Numbers of transactions without a pause, one of which is drawn. With 100 a seed is short.
_HASTY_COUNTS: Final = (100, 500)
#: Share of the groups with the newer protocol.
_NEWER: Final = 1 / 2


class Kind(StrEnum):
    """A kind of application."""

    GROUP = "group"
    TRANSACTIONS = "transactions"
    COPIES = "copies"
    FLEETING = "fleeting"
    EXPIRING = "expiring"
    HASTY = "hasty"


def draw_applications(seed: int) -> frozenset[Kind]:
    rng = random.Random(f"applications {seed}")
    return frozenset(
        kind for kind in Kind if rng.random() < (_HASTY_CHANCE if kind is Kind.HASTY else _CHANCE)
    )


def make_applications(
    kinds: Collection[Kind],
    seed: int,
    surroundings: Callable[[], Surroundings],
    source: tuple[str, int],
    ledger: Ledger,
    topics: TopicLedger,
) -> list[Application]:
    """
    :param source: a topic and its number of partitions, to be copied.
    :param ledger: has the acknowledged ends of the source, and records other topics.
    """

    def make(kind: Kind) -> Application:
        rng, around = random.Random(f"{kind} {seed}"), surroundings()
        match kind:
            case Kind.GROUP:
                is_newer = rng.random() < _NEWER
                return (ConsumerMembers if is_newer else ClassicMembers)(rng, around)
            case Kind.TRANSACTIONS:
                return Transactors(rng, around)
            case Kind.COPIES:
                return Copier(rng, around, source, partial(ledger.acked_end, source[0]))
            case Kind.FLEETING:
                return Fleeting(rng, around, ledger, topics)
            case Kind.EXPIRING:
                return Expiring(rng, around, ledger)
            case Kind.HASTY:
                return Transactors(rng, around, replace(HASTY, hasty=rng.choice(_HASTY_COUNTS)))

    return [make(kind) for kind in Kind if kind in kinds]
