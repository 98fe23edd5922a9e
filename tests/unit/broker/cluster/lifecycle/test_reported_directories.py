"""What is reported of directories; when it is reported is shown by the tests of
``lifecycle_state.py``."""

from __future__ import annotations

import pytest

from kraftjbod.broker.cluster.lifecycle.reported_directories import (
    DirectoryChanges,
    ReportedDirectories,
)
from kraftjbod.core.ids import BrokerEpoch, DirectoryId
from kraftjbod.core.log_dir_state import LogDirState

A, B, C = (DirectoryId(letter * 16) for letter in (b"A", b"B", b"C"))
EPOCH = BrokerEpoch(5)


def registered() -> ReportedDirectories:
    """A and B are known to the controller; B is cordoned."""
    dirs = ReportedDirectories(online=[B, A], cordoned=[B, C], impaired={}, paths={A: "/a"})
    dirs.registration_sent()
    assert dirs.registration_answered(EPOCH) == DirectoryChanges()
    return dirs


def test_a_registration_lists_what_is_online_and_a_heartbeat_what_is_wrong_with_it() -> None:
    dirs = registered()
    assert (dirs.asked, dirs.asked_paths, dirs.asked_cordoned) == ((A, B), ("/a", ""), (B,))
    dirs.failed(A)
    dirs.became_impaired(B, LogDirState.STALLED)
    assert (dirs.offline, dirs.cordoned) == ((A,), (B,))
    assert [(d.directory_id, d.state) for d in dirs.impaired] == [(B, LogDirState.STALLED)]
    assert not dirs.needs_amendment, "a heartbeat says all of that"


def test_only_a_registration_makes_a_dir_count_again() -> None:
    dirs = registered()
    dirs.failed(A)
    dirs.heartbeat_sent()
    dirs.attached(A, "/elsewhere")
    assert dirs.needs_amendment and dirs.offline == ()
    dirs.registration_sent()
    assert dirs.asked_paths == ("/elsewhere", "")
    assert dirs.registration_answered(EPOCH) == DirectoryChanges(attached=(A,))
    assert not dirs.needs_amendment


def test_an_impaired_dir_that_was_reported_as_offline_needs_one_too() -> None:
    dirs = registered()
    dirs.can_report_impaired = False
    dirs.became_impaired(A, LogDirState.SATURATED)
    assert (dirs.offline, dirs.impaired) == ((A,), ())
    dirs.recovered(A)
    assert not dirs.needs_amendment, "nothing was reported"
    dirs.became_impaired(A, LogDirState.SATURATED)
    dirs.heartbeat_sent()
    dirs.recovered(A)
    assert dirs.needs_amendment


def test_a_dir_that_is_attached_and_dies_at_once_asks_for_nothing() -> None:
    dirs = registered()
    dirs.attached(C, "/c")
    assert dirs.needs_amendment
    dirs.failed(C)
    assert not dirs.needs_amendment and not dirs.is_online(C)


def test_a_refusal_gives_up_the_forgetting_first() -> None:
    dirs = registered()
    dirs.attached(C, "/c")
    dirs.forgotten(A)
    dirs.registration_sent()
    assert (dirs.asked, dirs.asked_forgotten) == ((B, C), (A,))
    assert dirs.registration_refused() == DirectoryChanges(forgotten=(A,))
    assert dirs.offline == (A,) and dirs.is_online(C)
    dirs.registration_sent()
    assert dirs.registration_refused() == DirectoryChanges(attached=(C,))
    assert not dirs.is_online(C) and not dirs.needs_amendment
    dirs.registration_sent()
    assert not dirs.registration_refused(), "nothing was asked for that could be given up"


@pytest.mark.parametrize("state", [LogDirState.ONLINE, LogDirState.OFFLINE])
def test_only_impaired_states_are_impairments(state: LogDirState) -> None:
    with pytest.raises(AssertionError):
        registered().became_impaired(A, state)
