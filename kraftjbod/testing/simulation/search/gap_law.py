"""PURE. How long a partition may go without an acknowledgement, by what was broken meanwhile.

* A fault costs a partition as long as it takes the cluster to notice it and to have another leader:
  a second for a dead directory, three for a disk that does not answer, the session for a dead host.
* Faults of one broker that overlap may cost the sum of that: each may strike what the last one has
  just been recovered from, such as a directory that was moved to.
* Faults of two brokers, or of a broker and the controller, may leave fewer in sync than
  ``min.insync.replicas`` asks for, or nobody to decide: that lasts as long as they do, and is not
  judged here. Nor is what a configuration asks for, or a reassignment copies.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from kraftjbod.testing.simulation.search.faults.schedule import (
    OF_THE_CLUSTER,
    OF_THE_CONTROLLER,
    OF_THE_VOTERS,
    Kind,
    Struck,
)

#: Allowed gap without a fault: leadership moves to the preferred replica, a client asks for the
#: leader, and hosts with a high cost of computing are slow.
USUAL_MS: Final = 2_500
#: After a fault is over its replicas come back into the in-sync set, and leaders to their places.
SETTLED_MS: Final = 6_000
_DIR_MS: Final = 1_000
_HUNG_MS: Final = 3_000
#: The session ends, and whoever waits for the dead host gives up its request.
_HOST_MS: Final = 5_000
_LIMITS_MS: Final[Mapping[Kind, int]] = MappingProxyType(
    {
        Kind.KILL: _HOST_MS,
        Kind.UNREGISTER: _HOST_MS,
        Kind.POWER_CUT: _HOST_MS,
        Kind.STAND_STILL: _HOST_MS,
        Kind.LATE_LOOP: _HOST_MS,
        Kind.ROT_BESIDE: _HOST_MS,
        Kind.LOST_END: _HOST_MS,
        Kind.REMOVED: _HOST_MS,
        Kind.SWAPPED: _HOST_MS,
        # A link may be cut meanwhile, and late by as much.
        Kind.WIPE: _HOST_MS,
        Kind.STOP: _DIR_MS,
        Kind.HANG: _HUNG_MS,
        Kind.MOVE_HANG: _HUNG_MS,
        Kind.SLOW: _HUNG_MS,
    }
)
#: It is not said how long: a link that is cut or slow delays, and nobody is dead.
_WITHOUT_LIMIT: Final = (
    OF_THE_CLUSTER
    | OF_THE_CONTROLLER
    | OF_THE_VOTERS
    | {
        Kind.UNHEARD_EIO,
        Kind.PARTITION,
        Kind.ONE_WAY,
        Kind.HALF_OPEN,
        Kind.SLOW_LINK,
        Kind.CLOCK_JUMP,
    }
)


def allowed_ms(history: Iterable[Struck], since_ms: int, until_ms: int) -> int | None:
    """How long a partition may be silent in that time; None: it is not judged."""
    about = [
        one.fault
        for one in history
        if one.began_ms <= until_ms and one.ended_ms + SETTLED_MS >= since_ms
    ]
    if any(fault.kind in _WITHOUT_LIMIT for fault in about):
        return None
    if len({fault.broker for fault in about}) > 1:
        return None
    return USUAL_MS + sum(_LIMITS_MS.get(fault.kind, _DIR_MS) for fault in about)


def silences(
    name: str, acked_ms: Sequence[int], history: Sequence[Struck], *, pause_ms: int
) -> list[str]:
    """What is wrong with the times of a partition's acknowledgements, one sentence each.

    :param acked_ms: in order; the producer sends the next record ``pause_ms`` after each.
    """
    findings = []
    for since_ms, until_ms in itertools.pairwise(acked_ms):
        took_ms = until_ms - since_ms - pause_ms
        if took_ms <= USUAL_MS:
            continue
        may_ms = allowed_ms(history, since_ms, until_ms)
        if may_ms is not None and took_ms > may_ms:
            findings.append(
                f"{name} was silent for {took_ms / 1000:.3f} s until {until_ms / 1000:.3f} s, "
                f"where {may_ms / 1000:.3f} s are allowed"
            )
    return findings
