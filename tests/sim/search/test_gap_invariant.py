from __future__ import annotations

import dataclasses

from tests.sim.search.faults.schedule import Fault, Kind, Struck
from tests.sim.search.gap_invariant import silences

_EIO = Fault(number=1, at_ms=0, kind=Kind.EIO, broker=1, dir=0, other=2, for_ms=100, choice=7)


def _struck(kind: Kind, began_ms: int, ended_ms: int, *, broker: int = 1) -> Struck:
    return Struck(dataclasses.replace(_EIO, kind=kind, broker=broker), began_ms, ended_ms)


def _silences(acked_ms: list[int], *history: Struck) -> list[str]:
    return silences("safe-0", acked_ms, history, pause_ms=100)


def test_silences_beyond_the_limit_of_the_fault_are_found() -> None:
    dead, hung = _struck(Kind.EIO, 10_000, 10_500), _struck(Kind.HANG, 10_400, 10_900)
    assert _silences([9_000, 10_500, 12_000]) == []
    assert _silences([10_000, 12_500], dead) == []
    (found,) = _silences([10_000, 14_000], dead)
    assert found == "safe-0 was silent for 3.900 s until 14.000 s, where 3.500 s are allowed"
    assert _silences([10_000, 14_000], hung) == []
    assert _silences([10_000, 16_500], dead, hung) == [], "one after the other"
    assert len(_silences([10_000, 16_700], dead, hung)) == 1
    assert len(_silences([30_000, 33_000], dead)) == 1, "the fault ended long before"


def test_silences_are_not_judged_with_two_struck_brokers_or_no_controller() -> None:
    dead, other = _struck(Kind.EIO, 0, 500), _struck(Kind.STOP, 400, 900, broker=2)
    away = _struck(Kind.CONTROLLER_KILL, 0, 500)
    for history in ((dead, other), (dead, away)):
        assert _silences([100, 60_000], *history) == []
