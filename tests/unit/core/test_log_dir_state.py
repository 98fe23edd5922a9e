"""``core/log_dir_state.py``: every state with every event."""

from __future__ import annotations

import itertools

import pytest

from kraftjbod.core.log_dir_state import IMPAIRED, LogDirEvent, LogDirState, next_state

S, E = LogDirState, LogDirEvent
MOVES = {
    (S.ONLINE, E.FILLED_UP): S.SATURATED,
    (S.ONLINE, E.SUSPECTED): S.STALLED,
    (S.ONLINE, E.FAILED): S.OFFLINE,
    (S.SATURATED, E.HAS_SPACE): S.ONLINE,
    (S.SATURATED, E.SUSPECTED): S.STALLED,
    (S.SATURATED, E.FAILED): S.OFFLINE,
    (S.STALLED, E.ANSWERED): S.ONLINE,
    (S.STALLED, E.ANSWERED_FULL): S.SATURATED,
    (S.STALLED, E.FAILED): S.OFFLINE,
    (S.OFFLINE, E.REATTACHED): S.ONLINE,
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(S, E)))
def test_next_state_follows_the_table_for_every_state_and_event(state: S, event: E) -> None:
    assert next_state(state, event) is MOVES.get((state, event), state)


def test_impaired_states_are_saturated_and_stalled() -> None:
    assert {state for state in S if state.is_impaired} == IMPAIRED == {S.SATURATED, S.STALLED}
