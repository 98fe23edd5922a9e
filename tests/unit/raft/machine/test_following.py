"""A follower's snapshot slices and rejected leaders; ``test_quorum_search.py`` covers the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.messages import (
    Append,
    AppendRejected,
    AppendReply,
    Entry,
    HardState,
    SnapshotId,
    SnapshotReply,
    SnapshotSlice,
    TermStart,
    node,
)
from kraftjbod.raft.machine.voter_set import VoterSet

SNAPSHOT = SnapshotId(9, 1)


def _slice(position: int, data: bytes, *, is_last: bool = False) -> SnapshotSlice:
    return SnapshotSlice(
        sender=node(2),
        to=node(1),
        term=1,
        snapshot=SNAPSHOT,
        position=position,
        data=data,
        is_last=is_last,
    )


def _append(previous: SnapshotId, *terms: int, committed_offset: int = -1) -> Append:
    entries = tuple(Entry(previous.last_offset + i, t, b"") for i, t in enumerate(terms, 1))
    return Append(
        sender=node(2),
        to=node(1),
        term=3,
        previous_offset=previous.last_offset,
        previous_term=previous.term,
        entries=entries,
        committed_offset=committed_offset,
    )


def test_following_rejects_a_leader_without_committed_entries() -> None:
    """A majority lost its disks and elected the leader; two histories would merge in one log."""
    core = RaftCore(
        key=node(1),
        voters=VoterSet.of_keys(map(node, (1, 2, 3))),
        hard_state=HardState(term=1),
        first_payload_of_term=b"",
        draw_below=lambda _: 0,
        entries=[Entry(offset, 1, b"") for offset in range(4)],
    )
    core.step(_append(SnapshotId(2, 1), 1, committed_offset=3))
    assert core.committed_offset == 3
    core.note_leader_gone()
    core.ready()
    for lacking in (_append(SnapshotId(-1, 0), 3), _append(SnapshotId(3, 3), 3)):
        core.step(replace(lacking, term=4))
        assert not core.ready()
        assert core.contradicted_by == node(2)
        assert (core.term, core.leader) == (3, None), "neither its term nor its leader is adopted"
        assert (core.last_offset, core.log.last_term) == (3, 1)
    core.step(_append(SnapshotId(3, 1), 3))
    assert (core.last_offset, core.contradicted_by) == (4, None)


def _voter_with(committed_offset: int, *terms: int) -> RaftCore:
    """Create a voter of three that has just started with entries of ``terms``."""
    return RaftCore(
        key=node(1),
        voters=VoterSet.of_keys(map(node, (1, 2, 3))),
        hard_state=HardState(term=3),
        first_payload_of_term=b"",
        draw_below=lambda _: 0,
        entries=[Entry(offset, term, b"") for offset, term in enumerate(terms)],
        committed_offset=committed_offset,
    )


def _whole_snapshot(snapshot: SnapshotId, *terms: TermStart) -> SnapshotSlice:
    return SnapshotSlice(
        sender=node(2),
        to=node(1),
        term=3,
        snapshot=snapshot,
        position=0,
        data=b"state",
        is_last=True,
        terms=terms,
    )


@pytest.mark.parametrize(
    "lacking",
    [
        pytest.param(
            _whole_snapshot(SnapshotId(9, 3), TermStart(0, 1), TermStart(2, 3)), id="another term"
        ),
        pytest.param(_whole_snapshot(SnapshotId(9, 1)), id="terms never fall"),
        pytest.param(_whole_snapshot(SnapshotId(2, 3)), id="ends at another committed entry"),
    ],
)
def test_following_refuses_snapshot_without_committed_entries(
    lacking: SnapshotSlice,
) -> None:
    """Two of three voters were restored from older copies; their snapshot is ahead of this log."""
    core = _voter_with(3, 1, 1, 2, 2, 2)
    core.step(lacking)
    # A heartbeat compares no entries, and clears nothing.
    core.step(_append(SnapshotId(-1, 0), committed_offset=9))
    ready = core.ready()
    assert (ready.slices, ready.messages) == ((), ())
    assert core.contradicted_by == node(2)
    assert (core.last_offset, core.committed_offset) == (4, 3)


@pytest.mark.parametrize(
    "terms",
    [
        pytest.param((TermStart(0, 1), TermStart(2, 2), TermStart(5, 3)), id="agree"),
        pytest.param((TermStart(5, 3),), id="do not reach back"),
        pytest.param((), id="older software"),
    ],
)
def test_following_accepts_snapshot_that_contains_committed_entries(
    terms: tuple[TermStart, ...],
) -> None:
    core = _voter_with(3, 1, 1, 2, 2, 2)
    core.step(_whole_snapshot(SnapshotId(9, 3), *terms))
    assert [taken.data for taken in core.ready().slices] == [b"state"]
    core.snapshot_installed(SnapshotId(9, 3), core.log.voters)
    assert core.log.terms == terms, "it can be checked against by the next follower"


def test_following_ignores_committed_bound_beyond_the_log() -> None:
    """The tail of the log was damaged and dropped."""
    assert _voter_with(7, 1, 1).committed_offset == 1


def test_follower_answers_leader_that_lacked_committed_entries_in_its_next_term() -> None:
    """The leader received the entries meanwhile; its first message proves nothing yet."""
    core = _voter_with(3, 1, 1, 2, 2, 2)
    core.step(_whole_snapshot(SnapshotId(9, 1)))
    assert core.contradicted_by == node(2)
    probe = replace(_append(SnapshotId(20, 4)), term=4)
    core.step(probe)
    assert core.contradicted_by is None
    assert any(isinstance(message, AppendRejected) for message in core.ready().messages)


def test_following_takes_snapshot_slices_in_order_and_acknowledges_the_installed_snapshot() -> None:
    voters = VoterSet.of_keys(map(node, (1, 2)))
    core = RaftCore(
        key=node(1),
        voters=voters,
        hard_state=HardState(term=1),
        first_payload_of_term=b"",
        draw_below=lambda _: 0,
    )
    core.step(_slice(0, b"ab"))
    core.step(_slice(4, b"too early"))
    ready = core.ready()
    assert [taken.data for taken in ready.slices] == [b"ab"]
    assert [m.next_position for m in ready.messages if isinstance(m, SnapshotReply)] == [2]
    core.step(_slice(2, b"c", is_last=True))
    (last,) = core.ready().slices
    core.step(_slice(2, b"c", is_last=True))
    assert not core.ready().slices, "it is being written"
    core.snapshot_installed(last.snapshot, voters)
    (reply,) = core.ready().messages
    assert isinstance(reply, AppendReply)
    assert reply.durable_offset == core.committed_offset == 9
