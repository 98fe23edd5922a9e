"""``Ready``, the output of a Raft machine."""

from __future__ import annotations

import pytest

from kraftjbod.raft.machine.messages import Entry, HardState, Ready, TimeoutNow, node


@pytest.mark.parametrize(
    "ready",
    [
        Ready(hard_state=HardState()),
        Ready(entries=(Entry(0, 1, b""),)),
        Ready(messages=(TimeoutNow(sender=node(1), to=node(2), term=3),)),
        Ready(committed_offset=4, has_committed=True),
    ],
)
def test_ready_with_work_is_true(ready: Ready) -> None:
    assert ready


def test_ready_without_new_work_is_false() -> None:
    assert not Ready(committed_offset=4)
