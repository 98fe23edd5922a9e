"""What a machine hands out."""

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
def test_there_is_something_to_do(ready: Ready) -> None:
    assert ready


def test_what_was_handed_out_before_is_nothing_to_do() -> None:
    assert not Ready(committed_offset=4)
