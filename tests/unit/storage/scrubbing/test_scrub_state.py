"""The state file of a scrub: format, damage, and the time of the next pass."""

from __future__ import annotations

import pytest

from kraftjbod.core.ids import TopicPartition
from kraftjbod.storage.scrubbing.scrub_state import (
    ScrubPosition,
    ScrubState,
    format_scrub_state,
    parse_scrub_state,
)

POSITION = ScrubPosition(TopicPartition("a.b-c", 12), 2**40)
HALF_WAY = ScrubState(began_ms=1_700_000_000_000, completed_ms=5, damages=3, position=POSITION)
DONE = ScrubState(began_ms=1_000, completed_ms=2_000)


@pytest.mark.parametrize("state", [ScrubState(), HALF_WAY, DONE])
def test_scrub_state_is_read_as_written(state: ScrubState) -> None:
    assert parse_scrub_state(format_scrub_state(state)) == state


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"\0" * 100,
        b"[]",
        b"3",
        b"{}",
        b'{"version": 2}',
        format_scrub_state(HALF_WAY)[:-9],
        format_scrub_state(HALF_WAY).replace(b"1700000000000", b'"soon"'),
        format_scrub_state(HALF_WAY).replace(b'"partition"', b'"part"'),
    ],
)
def test_parse_scrub_state_of_a_damaged_file_is_empty(data: bytes | None) -> None:
    assert parse_scrub_state(data) == ScrubState()


@pytest.mark.parametrize(
    ("state", "now_ms", "is_due"),
    [
        (ScrubState(), 0, True),
        (ScrubState(), 10**15, True),
        (DONE, 1_000, False),
        (DONE, 1_099, False),
        (DONE, 1_100, True),
        # The clock was set back, so the time of the last pass is unknown.
        (DONE, 900, True),
        (HALF_WAY, HALF_WAY.began_ms, True),
    ],
)
def test_scrub_state_is_due_an_interval_after_the_start_of_the_last_pass(
    state: ScrubState, now_ms: int, is_due: bool
) -> None:
    assert state.is_due(now_ms, 100) is is_due
