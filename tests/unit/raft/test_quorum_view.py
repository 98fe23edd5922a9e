"""``view_of``: offsets and times of the voters as the leader knows them."""

from __future__ import annotations

from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.messages import (
    Append,
    AppendReply,
    HardState,
    PreVoteReply,
    VoteReply,
    node,
)
from kraftjbod.raft.machine.voter_set import Voter, VoterSet
from kraftjbod.raft.quorum_view import view_of, why_lost

N1, N2, N3 = map(node, (1, 2, 3))
VOTERS = VoterSet((Voter(N1, ("C://h:1",)), Voter(N2), Voter(N3)))
WALL_MS, TICK_MS = 100_000, 50.0


def persist(core: RaftCore) -> None:
    while ready := core.ready():
        if ready.hard_state is not None:
            core.hard_state_persisted(ready.hard_state)
        if ready.entries:
            core.entries_persisted(ready.entries[-1], ready.generation)


def leader(*, election_ticks: int = 10, heartbeat_ticks: int = 1) -> RaftCore:
    core = RaftCore(
        key=N1,
        voters=VOTERS,
        hard_state=HardState(),
        first_payload_of_term=b"",
        draw_below=lambda _: 0,
        election_ticks=election_ticks,
        heartbeat_ticks=heartbeat_ticks,
    )
    core.campaign()
    core.step(PreVoteReply(sender=N2, to=N1, term=0, granted=True))
    persist(core)
    core.step(VoteReply(sender=N2, to=N1, term=1, granted=True))
    persist(core)
    return core


def test_quorum_view_shows_when_a_follower_was_last_caught_up() -> None:
    core = leader()
    seen = view_of(core, wall_ms=WALL_MS, tick_ms=TICK_MS)
    assert (seen.leader, seen.term, seen.high_watermark) == (1, 1, -1)
    assert [v.last_caught_up_ms for v in seen.voters] == [WALL_MS, -1, -1]
    assert seen.voters[0].endpoints == ("C://h:1",)
    core.step(AppendReply(sender=N2, to=N1, term=1, durable_offset=0))
    core.tick()
    core.propose(b"x")
    core.tick()
    # The follower has the entries up to its last answer, but not the later ones.
    core.step(AppendReply(sender=N2, to=N1, term=1, durable_offset=0))
    seen = view_of(core, wall_ms=WALL_MS, tick_ms=TICK_MS)
    assert seen.high_watermark == 1
    leads, follows, silent = seen.voters
    assert (leads.log_end_offset, follows.log_end_offset, silent.log_end_offset) == (2, 1, -1)
    assert (follows.last_heard_ms, follows.last_caught_up_ms) == (WALL_MS, WALL_MS - 100)
    assert (silent.last_heard_ms, silent.last_caught_up_ms) == (-1, -1)


def test_why_lost_names_the_reason_of_a_lost_leadership() -> None:
    core = leader()
    core.resign()
    assert why_lost(core, 1) == "it resigned, or a majority did not answer"
    core.step(Append(sender=N2, to=N1, term=2, previous_offset=-1, previous_term=0))
    assert why_lost(core, 1) == "there is a later term"
    core = leader()
    for key in (N2, N3):
        core.step(AppendReply(sender=key, to=N1, term=1, durable_offset=0))
    core.change_voters(VOTERS.without(N1))
    persist(core)
    core.step(AppendReply(sender=N2, to=N1, term=1, durable_offset=1))
    assert core.leadership is not None
    core.step(AppendReply(sender=N3, to=N1, term=1, durable_offset=1))
    assert core.leadership is None
    assert why_lost(core, 1) == "it was removed from the voters"
