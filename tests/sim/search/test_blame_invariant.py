from __future__ import annotations

import dataclasses

from tests.sim.search.blame_invariant import is_blamed
from tests.sim.search.faults.schedule import Fault, Kind

_EIO = Fault(number=1, at_ms=0, kind=Kind.EIO, broker=2, dir=1, other=3, for_ms=100, choice=7)


def _of(kind: Kind) -> list[Fault]:
    return [dataclasses.replace(_EIO, kind=kind)]


def test_is_blamed_of_struck_directory_is_false() -> None:
    assert not is_blamed(2, 1, [_EIO])
    assert is_blamed(2, 0, [_EIO]), "another directory"
    assert is_blamed(1, 1, [_EIO]), "of another broker"


def test_is_blamed_is_true_for_faults_of_the_process() -> None:
    assert all(is_blamed(2, 1, _of(kind)) for kind in (Kind.DESCRIPTORS, Kind.KILL, Kind.DRAIN))


def test_is_blamed_after_power_cut_is_false_for_all_directories_of_that_broker() -> None:
    assert not any(is_blamed(2, number, _of(Kind.POWER_CUT)) for number in range(3))
    assert is_blamed(3, 0, _of(Kind.POWER_CUT))
