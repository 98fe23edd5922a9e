"""Raft as a pure machine: elections, terms, commits."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import NotControllerError
from kraftjbod.core.ids import BrokerId
from kraftjbod.raft.core import Entry, HardState, RaftCore, Role

NO_OP = b"no-op"
ME = BrokerId(1)


def _core(
    *, voters: tuple[int, ...] = (1,), term: int = 0, last: int = -1, committed: int = -1
) -> RaftCore:
    return RaftCore(
        node_id=ME,
        voters=[BrokerId(voter) for voter in voters],
        hard_state=HardState(term=term),
        last_offset=last,
        committed_offset=committed,
        first_payload_of_term=NO_OP,
    )


def _elect(core: RaftCore) -> None:
    core.campaign()
    hard_state = core.ready().hard_state
    assert hard_state is not None
    core.hard_state_persisted(hard_state)


def test_a_single_voter_elects_itself_once_its_vote_is_durable() -> None:
    core = _core(term=4)
    core.campaign()
    with pytest.raises(NotControllerError):
        core.propose(b"too early")
    ready = core.ready()
    assert ready.hard_state == HardState(term=5, voted_for=ME)
    core.hard_state_persisted(HardState(term=5, voted_for=ME))
    assert core.role is Role.LEADER


def test_a_vote_of_an_earlier_term_does_not_count() -> None:
    core = _core()
    core.campaign()
    earlier = core.ready().hard_state
    assert earlier is not None
    core.campaign()
    core.hard_state_persisted(earlier)
    assert core.role is Role.CANDIDATE


def test_a_term_begins_with_an_entry_that_commits_all_earlier_ones() -> None:
    core = _core(term=1, last=7)
    _elect(core)
    ready = core.ready()
    assert ready.entries == (Entry(8, 2, NO_OP),)
    assert ready.committed_offset == -1
    core.entries_persisted(8)
    assert core.committed_offset == 8


def test_entries_are_committed_when_they_are_durable_and_not_before() -> None:
    core = _core()
    _elect(core)
    assert core.propose(b"a") == Entry(1, 1, b"a")
    assert core.propose(b"b").offset == 2
    assert [entry.offset for entry in core.ready().entries] == [0, 1, 2]
    assert not core.ready()
    core.entries_persisted(1)
    assert core.committed_offset == 1
    core.entries_persisted(2)
    assert core.committed_offset == 2


def test_one_of_three_voters_neither_leads_nor_commits_alone() -> None:
    core = _core(voters=(1, 2, 3))
    _elect(core)
    assert core.role is Role.CANDIDATE
    with pytest.raises(NotControllerError):
        core.propose(b"a")
    core.entries_persisted(-1)
    assert core.committed_offset == -1


def test_a_follower_takes_no_proposals() -> None:
    with pytest.raises(NotControllerError):
        _core().propose(b"a")


def test_what_a_snapshot_covers_stays_committed() -> None:
    core = _core(term=3, last=9, committed=9)
    _elect(core)
    core.entries_persisted(9)
    assert core.committed_offset == 9
