"""A snapshot that comes slice by slice; the search (test_quorum_search.py) shows the rest."""

from __future__ import annotations

from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.messages import (
    AppendReply,
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
