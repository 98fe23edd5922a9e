"""WIRE. Which applications run in a simulation, drawn from its seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Final

from kraftjbod.testing.simulation.search.applications.application import (
    Application,
    Surroundings,
)
from kraftjbod.testing.simulation.search.applications.classic_members import ClassicMembers
from kraftjbod.testing.simulation.search.applications.consumer_members import ConsumerMembers
from kraftjbod.testing.simulation.search.applications.copier import Copier
from kraftjbod.testing.simulation.search.applications.transactors import Transactors

#: So often each of them runs.
_CHANCE: Final = 0.35
#: Of groups, so often the protocol is the newer one.
_NEWER: Final = 1 / 3


class Kind(StrEnum):
    """What users run."""

    GROUP = "group"
    TRANSACTIONS = "transactions"
    COPIES = "copies"


def draw_applications(seed: int) -> frozenset[Kind]:
    rng = random.Random(f"applications {seed}")
    return frozenset(kind for kind in Kind if rng.random() < _CHANCE)


def make_applications(
    kinds: Collection[Kind],
    seed: int,
    surroundings: Callable[[], Surroundings],
    source: tuple[str, int],
    end_of: Callable[[int], int],
) -> list[Application]:
    """
    :param source: what is copied: a topic and its partitions.
    :param end_of: after the last record of a partition that has to be copied.
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
                return Copier(rng, around, source, end_of)

    return [make(kind) for kind in Kind if kind in kinds]
