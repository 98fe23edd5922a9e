"""``AppendGate``: appends wait in order, up to a limit."""

from __future__ import annotations

import pytest

from kraftjbod.broker.partitions.append_gate import MAX_APPENDS_AT_GATE, AppendGate
from kraftjbod.core.errors import OverloadedError


def test_append_gate_releases_waiting_appends_in_order() -> None:
    gate, reported = AppendGate(), list[int]()
    gate.close()
    for n in range(5):
        gate.hold(lambda n=n: reported.append(n))  # type: ignore[misc]  # the default binds n
    assert reported == [] and gate.is_closed and "5" in repr(gate)
    gate.open()
    assert reported == [0, 1, 2, 3, 4] and not gate.is_closed
    gate.close()
    gate.open()
    assert reported == [0, 1, 2, 3, 4]


def test_append_gate_rejects_appends_above_its_limit() -> None:
    gate = AppendGate()
    gate.close()
    for _ in range(MAX_APPENDS_AT_GATE):
        gate.hold(lambda: None)
    with pytest.raises(OverloadedError, match="changes its directory"):
        gate.hold(lambda: None)
