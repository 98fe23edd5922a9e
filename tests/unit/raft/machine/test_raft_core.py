"""``RaftCore`` beyond the transcripts in ``tests/golden/raft`` and ``test_quorum_search.py``."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import NotControllerError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.raft.machine.core import RaftCore, Role
from kraftjbod.raft.machine.following import MAX_UNSENT_MESSAGES, NOTHING
from kraftjbod.raft.machine.messages import (
    Append,
    AppendReply,
    Entry,
    EntryKind,
    HardState,
    Observe,
    PreVote,
    PreVoteReply,
    SnapshotId,
    TimeoutNow,
    Vote,
    VoteReply,
    node,
)
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet

NO_OP = b"no-op"


def _core(
    *,
    voters: tuple[int, ...] = (1,),
    term: int = 0,
    snapshot: SnapshotId = NOTHING,
    entries: tuple[Entry, ...] = (),
) -> RaftCore:
    return RaftCore(
        key=node(1),
        voters=VoterSet.of_keys(map(node, voters)),
        hard_state=HardState(term=term),
        first_payload_of_term=NO_OP,
        draw_below=lambda _: 0,
        snapshot=snapshot,
        entries=entries,
    )


def _elect(core: RaftCore) -> None:
    core.campaign()
    hard_state = core.ready().hard_state
    assert hard_state is not None
    core.hard_state_persisted(hard_state)


def test_raft_core_single_voter_elects_itself_once_its_vote_is_durable() -> None:
    core = _core(term=4)
    core.campaign()
    with pytest.raises(NotControllerError):
        core.propose(b"too early")
    ready = core.ready()
    assert ready.hard_state == HardState(term=5, voted_for=node(1))
    core.hard_state_persisted(HardState(term=5, voted_for=node(1)))
    assert core.role is Role.LEADER


def test_late_persistence_of_an_earlier_terms_vote_elects_no_leader() -> None:
    core = _core()
    core.campaign()
    earlier = core.ready().hard_state
    assert earlier is not None
    core.campaign()
    core.hard_state_persisted(earlier)
    assert core.role is Role.CANDIDATE


def test_raft_core_first_entry_of_a_term_commits_earlier_entries() -> None:
    core = _core(term=1, entries=(Entry(0, 1, b"a"), Entry(1, 1, b"b")))
    _elect(core)
    ready = core.ready()
    assert ready.entries == (Entry(2, 2, NO_OP),)
    assert ready.committed_offset == -1
    core.entries_persisted(ready.entries[-1], ready.generation)
    assert core.committed_offset == core.applicable_offset == 2


def test_raft_core_commits_durable_entries_only() -> None:
    core = _core()
    _elect(core)
    assert core.propose(b"a") == Entry(1, 1, b"a")
    assert core.propose(b"b").offset == 2
    ready = core.ready()
    assert [entry.offset for entry in ready.entries] == [0, 1, 2]
    assert not core.ready()
    core.entries_persisted(ready.entries[1], ready.generation)
    assert core.committed_offset == 1
    core.entries_persisted(ready.entries[2], ready.generation)
    assert core.ready().has_committed
    assert core.committed_offset == 2


def test_raft_core_entries_in_a_snapshot_stay_committed() -> None:
    core = _core(term=3, snapshot=SnapshotId(9, 3))
    _elect(core)
    assert (core.committed_offset, core.last_offset) == (9, 10)


def test_raft_core_does_not_acknowledge_an_entry_overwritten_during_its_write() -> None:
    core = _core(voters=(1, 2, 3), term=1)
    core.step(_append(2, 1, Entry(0, 1, b"old")))
    written = core.ready()
    core.step(_append(3, 2, Entry(0, 2, b"new")))
    core.entries_persisted(written.entries[-1], written.generation)
    ready = core.ready()
    assert ready.entries == (Entry(0, 2, b"new"),)
    replies = [message for message in ready.messages if isinstance(message, AppendReply)]
    assert all(reply.durable_offset == -1 for reply in replies)
    core.entries_persisted(ready.entries[-1], ready.generation)
    [reply] = core.ready().messages
    assert reply == AppendReply(sender=node(1), to=node(3), term=2, durable_offset=0)


def test_raft_core_entries_of_an_older_term_are_not_committed_by_counting() -> None:
    """The state of figure 8 in the Raft paper before the wrong step."""
    core = _core(voters=(1, 2, 3), term=2, entries=(Entry(0, 2, b"of an older term"),))
    core.step(VoteReply(sender=node(2), to=node(1), term=3, granted=True))
    core.campaign()
    core.ready()
    core.step(PreVoteReply(sender=node(2), to=node(1), term=2, granted=True))
    hard_state = core.ready().hard_state
    assert hard_state is not None
    core.hard_state_persisted(hard_state)
    core.step(VoteReply(sender=node(2), to=node(1), term=core.term, granted=True))
    assert core.role is Role.LEADER
    ready = core.ready()
    core.entries_persisted(ready.entries[-1], ready.generation)
    core.step(AppendReply(sender=node(2), to=node(1), term=core.term, durable_offset=0))
    assert core.committed_offset == -1
    core.step(AppendReply(sender=node(2), to=node(1), term=core.term, durable_offset=1))
    assert core.committed_offset == 1


def test_raft_core_sends_a_vote_together_with_its_hard_state() -> None:
    core = _core(voters=(1, 2, 3))
    core.step(Vote(sender=node(2), to=node(1), term=7, last_offset=-1, last_term=0))
    ready = core.ready()
    assert ready.hard_state == HardState(term=7, voted_for=node(2))
    assert ready.messages == (VoteReply(sender=node(1), to=node(2), term=7, granted=True),)


def _append(leader: int, term: int, *entries: Entry) -> Append:
    return Append(
        sender=node(leader),
        to=node(1),
        term=term,
        previous_offset=-1,
        previous_term=0,
        entries=entries,
    )


def test_raft_core_refused_candidate_retries_without_waiting_for_absent_voters() -> None:
    """With one of three voters down, two simultaneous candidates waited a whole timeout."""
    core = _core(voters=(1, 2, 3), term=1)
    core.campaign()
    core.step(PreVoteReply(sender=node(2), to=node(1), term=1, granted=True))
    hard_state = core.ready().hard_state
    assert hard_state is not None
    core.hard_state_persisted(hard_state)
    core.step(VoteReply(sender=node(2), to=node(1), term=2, granted=False))
    core.ready()
    core.tick()
    assert core.role is Role.PROSPECTIVE, "it asks again"


def test_raft_core_hesitating_voter_ignores_timeout_now_and_campaigns_late() -> None:
    core = _core(voters=(1, 2, 3))
    core.hesitates = True
    core.step(TimeoutNow(sender=node(2), to=node(1), term=core.term))
    for _ in range(20):
        core.tick()
    assert core.role is Role.FOLLOWER, "two election time-outs"
    for _ in range(60):
        core.tick()
    assert core.role is Role.PROSPECTIVE


def _leader_of_three() -> RaftCore:
    core = _core(voters=(1, 2, 3))
    core.campaign()
    core.step(PreVoteReply(sender=node(2), to=node(1), term=0, granted=True))
    hard_state = core.ready().hard_state
    assert hard_state is not None
    core.hard_state_persisted(hard_state)
    core.step(VoteReply(sender=node(2), to=node(1), term=1, granted=True))
    assert core.role is Role.LEADER
    return core


def test_raft_core_removed_leader_of_static_voters_stands_until_it_is_committed() -> None:
    """It has the longest log of two voters. Its key has a directory, those of the set have none."""
    removal = Entry(0, 1, VoterSet.of_keys([node(2)]).encode(), EntryKind.VOTERS)
    core = RaftCore(
        key=ReplicaKey(BrokerId(1), DirectoryId(bytes(16))),
        voters=VoterSet.of_keys([node(1), node(2)]),
        hard_state=HardState(term=1),
        first_payload_of_term=NO_OP,
        draw_below=lambda _: 0,
        entries=(removal,),
    )
    core.campaign()
    assert core.role is Role.PROSPECTIVE


def test_raft_core_leader_resigns_despite_log_requests_of_a_later_term() -> None:
    core = _leader_of_three()
    for _ in range(11):
        core.step(Observe(sender=node(2), to=node(1), term=5))
        core.tick()
    assert core.role is Role.FOLLOWER


def test_raft_core_leader_resigns_when_answers_are_older_than_an_election_timeout() -> None:
    """Messages that node 2 received at the start of the term do not confirm its vote now."""
    core = _leader_of_three()
    late = AppendReply(sender=node(2), to=node(1), term=1, durable_offset=-1, sent_tick=0)
    for _ in range(11):
        core.step(late)
        core.tick()
    assert core.role is Role.FOLLOWER


def test_raft_core_unsent_messages_are_bounded_and_the_newest_are_kept() -> None:
    """While the vote is not durable, no message is sent, and peers keep sending for hours."""
    core = _core(voters=(1, 2, 3))
    for term in range(2 * MAX_UNSENT_MESSAGES):
        core.step(PreVote(sender=node(2), to=node(1), term=term, last_offset=-1, last_term=0))
    core.step(PreVote(sender=node(3), to=node(1), term=1, last_offset=-1, last_term=0))
    messages = core.ready().messages
    assert len(messages) == MAX_UNSENT_MESSAGES
    assert {message.to for message in messages[:-1]} == {node(2)}
    assert messages[-1].to == node(3)
    assert core.ready().messages == ()
