"""``ReportedDirectories``: the directory states in registrations and heartbeats."""

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
    """The controller knows A and B; B is cordoned."""
    dirs = ReportedDirectories(online=[B, A], cordoned=[B, C], impaired={}, paths={A: "/a"})
    dirs.registration_sent()
    assert dirs.registration_answered(EPOCH) == DirectoryChanges()
    return dirs


def test_registration_lists_online_directories_and_heartbeat_lists_offline_and_impaired_ones() -> (
    None
):
    dirs = registered()
    assert (dirs.asked, dirs.reported_paths, dirs.reported_cordoned) == ((A, B), ("/a", ""), (B,))
    dirs.failed(A)
    dirs.became_impaired(B, LogDirState.STALLED)
    assert (dirs.offline, dirs.cordoned) == ((A,), (B,))
    assert [(d.directory_id, d.state) for d in dirs.impaired] == [(B, LogDirState.STALLED)]
    assert not dirs.needs_amendment, "a heartbeat is sufficient"


def test_returned_directory_needs_a_registration() -> None:
    dirs = registered()
    dirs.failed(A)
    dirs.heartbeat_sent()
    dirs.attached(A, "/elsewhere")
    assert dirs.needs_amendment and dirs.offline == ()
    dirs.registration_sent()
    assert dirs.reported_paths == ("/elsewhere", "")
    assert dirs.registration_answered(EPOCH) == DirectoryChanges(attached=(A,))
    assert not dirs.needs_amendment


def test_impaired_directory_reported_as_offline_needs_a_registration_to_recover() -> None:
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


def test_attached_directory_that_fails_before_its_registration_needs_no_amendment() -> None:
    dirs = registered()
    dirs.attached(C, "/c")
    assert dirs.needs_amendment
    dirs.failed(C)
    assert not dirs.needs_amendment and not dirs.is_online(C)


def test_registration_refused_drops_forgotten_directories_before_attached_ones() -> None:
    dirs = registered()
    dirs.attached(C, "/c")
    dirs.forgotten(A)
    dirs.registration_sent()
    assert (dirs.asked, dirs.reported_forgotten) == ((B, C), (A,))
    assert dirs.registration_refused() == DirectoryChanges(forgotten=(A,))
    assert dirs.offline == (A,) and dirs.is_online(C)
    dirs.registration_sent()
    assert dirs.registration_refused() == DirectoryChanges(attached=(C,))
    assert not dirs.is_online(C) and not dirs.needs_amendment
    dirs.registration_sent()
    assert not dirs.registration_refused(), "no change is left that could be dropped"


@pytest.mark.parametrize("state", [LogDirState.ONLINE, LogDirState.OFFLINE])
def test_became_impaired_accepts_only_impaired_states(state: LogDirState) -> None:
    with pytest.raises(AssertionError):
        registered().became_impaired(A, state)
