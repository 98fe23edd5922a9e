"""Limits for the time between a partition's acknowledgements, by the faults meanwhile.

* A fault may stop a partition until the cluster has noticed it and elected another leader:
  a second for a dead directory, three for a hung disk, the session timeout for a dead host.
* Overlapping faults of one broker may take the sum of their times: each may strike the directory
  to which the last one has moved the partition.
* Faults of two brokers, or of a broker and the controller, may leave fewer in-sync replicas than
  ``min.insync.replicas``, or no controller. That lasts as long as the faults, and is not judged.
  Gaps from configuration changes and reassignments are not judged either.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from tests.sim.search.faults.schedule import (
    OF_THE_CLUSTER,
    OF_THE_CONTROLLER,
    OF_THE_VOTERS,
    Kind,
    Struck,
)

#: Allowed gap without a fault: leadership moves to the preferred replica, a client asks for the
#: leader, and hosts with a high cost of computing are slow.
USUAL_MS: Final = 2_500
#: Time after a fault in which replicas rejoin the in-sync set and preferred leaders return.
SETTLED_MS: Final = 6_000
_DIR_MS: Final = 1_000
_HUNG_MS: Final = 3_000
#: The session expires, and clients of the dead host time out.
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
        Kind.REPLICA_REMOVED: _HOST_MS,
        Kind.REMOVED: _HOST_MS,
        Kind.SWAPPED: _HOST_MS,
        # A link may be cut or slow meanwhile, which delays the return as much.
        Kind.WIPE: _HOST_MS,
        Kind.STOP: _DIR_MS,
        Kind.HANG: _HUNG_MS,
        Kind.MOVE_HANG: _HUNG_MS,
        Kind.SLOW: _HUNG_MS,
    }
)
#: Kinds without a limit. A cut or slow link, for example, delays while no process is dead.
_WITHOUT_LIMIT: Final = (
    OF_THE_CLUSTER
    | OF_THE_CONTROLLER
    | OF_THE_VOTERS
    | {
        Kind.UNREPORTED_EIO,
        Kind.PARTITION,
        Kind.ONE_WAY,
        Kind.HALF_OPEN,
        Kind.SLOW_LINK,
        Kind.CLOCK_JUMP,
    }
)


def allowed_ms(history: Iterable[Struck], since_ms: int, until_ms: int) -> int | None:
    """Return the allowed gap of a partition in that time; None if it is not judged."""
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
    """Return the violations in the times of a partition's acknowledgements, one sentence each.

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
