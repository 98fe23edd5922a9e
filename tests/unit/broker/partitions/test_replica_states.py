"""The transitions of ``ReplicaState``, and the effect of directory states."""

from __future__ import annotations

import pytest

from kraftjbod.broker.partitions.replica_states import (
    EVENT_OF_DIR,
    TRANSITIONS,
    ReplicaEvent,
    ReplicaState,
    next_state,
)
from kraftjbod.core import log_dir_state
from kraftjbod.core.log_dir_state import LogDirEvent, LogDirState

S, E = ReplicaState, ReplicaEvent
WITH_A_LOG = (S.ONLINE, S.SATURATED, S.STALLED)


@pytest.mark.parametrize("state", S)
@pytest.mark.parametrize("event", E)
def test_next_state_follows_the_table_and_ignores_other_events(
    state: ReplicaState, event: ReplicaEvent
) -> None:
    after = next_state(state, event)
    assert after is TRANSITIONS.get((state, event), state)
    assert next_state(after, event) is after, "a repeated event has no effect"


@pytest.mark.parametrize("event", E)
def test_next_state_of_a_gone_replica_is_gone(event: ReplicaEvent) -> None:
    assert next_state(S.GONE, event) is S.GONE


@pytest.mark.parametrize("state", [s for s in S if s is not S.GONE])
def test_next_state_after_left_is_gone(state: ReplicaState) -> None:
    assert next_state(state, E.LEFT) is S.GONE


def test_directory_events_do_not_impair_a_replica_without_a_log() -> None:
    for state in (S.MAKING, S.HELD_BACK, S.OFFLINE):
        for event in (E.FILLED_UP, E.STALLED, E.RECOVERED):
            assert next_state(state, event) is state


@pytest.mark.parametrize(("before", "event"), log_dir_state.TRANSITIONS)
def test_replica_with_a_log_has_the_state_of_its_directory_except_after_its_return(
    before: LogDirState, event: LogDirEvent
) -> None:
    """A returning directory is the exception: its log must be opened first."""
    after = log_dir_state.next_state(before, event)
    here = next_state(S.ONLINE, EVENT_OF_DIR[before])
    if before is not LogDirState.OFFLINE:
        assert next_state(here, EVENT_OF_DIR[after]).value == after.value
    else:
        assert next_state(here, EVENT_OF_DIR[after]) is S.OFFLINE
        assert next_state(here, E.OPENED) is S.ONLINE


def test_impaired_replica_states_recover_to_online() -> None:
    assert [state for state in S if state.is_impaired] == [S.SATURATED, S.STALLED]
    assert all(next_state(state, E.RECOVERED) is S.ONLINE for state in WITH_A_LOG)
