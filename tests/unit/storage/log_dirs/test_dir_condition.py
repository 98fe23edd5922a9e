"""``DirCondition``: errors of each state, and the event of each transition."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError
from kraftjbod.core.log_dir_state import LogDirEvent, LogDirState
from kraftjbod.storage.log_dirs.dir_condition import DirCondition
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.vfs import Space
from tests.faults.rig import directory_id


def make() -> DirCondition:
    condition = DirCondition("/d1", directory_id(1))
    condition.space = Space(total_bytes=100, usable_bytes=7, free_inodes=3)
    return condition


@pytest.mark.parametrize(
    ("steps", "event", "state"),
    [
        ([LogDirEvent.FILLED_UP], "log_dir_saturated", LogDirState.SATURATED),
        (
            [LogDirEvent.FILLED_UP, LogDirEvent.HAS_SPACE],
            "log_dir_has_space_again",
            LogDirState.ONLINE,
        ),
        ([LogDirEvent.SUSPECTED], "log_dir_stalled", LogDirState.STALLED),
        (
            [LogDirEvent.SUSPECTED, LogDirEvent.ANSWERED],
            "log_dir_answers_again",
            LogDirState.ONLINE,
        ),
        (
            [LogDirEvent.SUSPECTED, LogDirEvent.ANSWERED_FULL],
            "log_dir_answers_again",
            LogDirState.SATURATED,
        ),
    ],
)
def test_dir_condition_logs_transitions_with_reason_and_free_space(
    steps: list[LogDirEvent], event: str, state: LogDirState
) -> None:
    condition = make()
    with capture_logs() as logged:
        for step in steps:
            assert condition.step(step, f"because of {step.name}")
    assert condition.state is state
    assert condition.is_impaired == state.is_impaired
    last = logged[-1]
    assert last["event"] == event
    assert last["directory_id"] == str(directory_id(1))
    assert last["reason"] == f"because of {steps[-1].name}"
    assert (last["free_bytes"], last["free_inodes"]) == (7, 3)


def test_dir_condition_ignored_event_is_not_logged() -> None:
    condition = make()
    with capture_logs() as logged:
        assert not condition.step(LogDirEvent.HAS_SPACE, "")
        assert condition.step(LogDirEvent.FAILED, "gone")
        assert not condition.step(LogDirEvent.FAILED, "gone again")
    assert [line["event"] for line in logged] == ["log_dir_offline"]
    assert condition.offline_reason == "gone"


def test_dir_condition_reasons_belong_to_the_current_state() -> None:
    condition = make()
    condition.step(LogDirEvent.FILLED_UP, "full")
    assert (condition.impaired_reason, condition.offline_reason) == ("full", "")
    condition.step(LogDirEvent.SUSPECTED, "slow")
    assert condition.impaired_reason == "slow"
    condition.step(LogDirEvent.FAILED, "dead")
    assert (condition.impaired_reason, condition.offline_reason) == ("", "dead")


def test_require_allowed_names_state_and_reason() -> None:
    condition = make()
    condition.require_allowed(OpKind.APPEND)
    condition.step(LogDirEvent.FILLED_UP, "full")
    condition.require_allowed(OpKind.READ)
    with pytest.raises(LogDirImpairedError, match="log dir /d1 is saturated: full") as refused:
        condition.require_allowed(OpKind.APPEND)
    assert (refused.value.state, refused.value.directory_id) == ("saturated", directory_id(1))
    condition.step(LogDirEvent.FAILED, "dead")
    with pytest.raises(KafkaStorageError, match="log dir /d1 is offline: dead"):
        condition.require_allowed(OpKind.READ)
