"""A snapshot that comes slice by slice; the search (test_quorum_search.py) shows the rest."""

from __future__ import annotations

from dataclasses import replace

from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.messages import (
    Append,
    AppendReply,
    Entry,
    HardState,
    SnapshotId,
    SnapshotReply,
    SnapshotSlice,
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


def test_a_leader_without_what_is_committed_gets_no_answer_and_adds_nothing() -> None:
    """A majority lost its disks and elected it: two histories would be one log."""
    core = RaftCore(
        key=node(1),
        voters=VoterSet.of(map(node, (1, 2, 3))),
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


def test_slices_are_taken_in_their_order_and_acknowledged_when_they_are_written() -> None:
    voters = VoterSet.of(map(node, (1, 2)))
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
