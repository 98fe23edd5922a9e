"""PURE. ``RaftCore``: Raft as a state machine without I/O, with the method names of etcd's raft.

Contract with the driver:

1. ``step``, ``tick``, ``propose`` and similar methods change the machine. ``ready`` returns, once,
   the work that results.
2. The driver persists term and vote first and then calls ``hard_state_persisted``. Only then may
   it send the messages of the same ``Ready``.
3. The driver persists entries in the order of their ``Ready`` and then calls ``entries_persisted``.
   Snapshot slices are handled alike.
4. Entries up to and including ``Ready.committed_offset`` may be applied and answered.

A vote counts once it is durable, including the own vote. So does an entry, also on the leader. Only
durable entries are applied, so a machine never knows less after a restart than it has applied
(ADR 86).

A replica that receives messages of a leader ignores votes for other candidates (pre-vote, and the
same for votes). A leader resigns if no majority answered messages that it sent within the last
election timeout (check-quorum).

A replica that dropped a damaged end of its log is mute: it grants no vote and does not stand. It
stops being mute when its log holds an entry of ``mute_before_term`` or later. That proves that it
has all entries again that it may have acknowledged, for two reasons:

* The term is above every term in which it promised anything, so old promises do not count in it.
* Its leader was elected without this replica and thus had all entries committed before.

Time is counted in ticks. With a single voter no message is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from kraftjbod.core.errors import NotControllerError
from kraftjbod.raft.machine.entry_log import EntryLog
from kraftjbod.raft.machine.following import NOTHING, Following
from kraftjbod.raft.machine.leadership import OBSERVER_TIMEOUTS, Leadership
from kraftjbod.raft.machine.messages import (
    Append,
    AppendRejected,
    AppendReply,
    Entry,
    EntryKind,
    HardState,
    Message,
    Observe,
    PreVote,
    PreVoteReply,
    ReadEntries,
    ReadSnapshot,
    Ready,
    SnapshotId,
    SnapshotReply,
    SnapshotSlice,
    TermStart,
    TimeoutNow,
    Vote,
    VoteReply,
)
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet

#: A hesitating replica waits this many times longer than others before it stands.
_PATIENCE: Final = 4


class Role(Enum):
    FOLLOWER = "follower"
    """Also an observer, which is in no set of voters."""
    PROSPECTIVE = "prospective"
    """Asks the voters whether it could win an election (pre-vote)."""
    CANDIDATE = "candidate"
    LEADER = "leader"


class RaftCore(Following):
    """One replica of the quorum as a Raft state machine without I/O: elections, leadership and
    replication.

    The driver passes messages and ticks to it and carries out the work in :meth:`ready`.
    """

    def __init__(
        self,
        *,
        key: ReplicaKey,
        voters: VoterSet,
        hard_state: HardState,
        first_payload_of_term: bytes,
        draw_below: Callable[[int], int],
        snapshot: SnapshotId = NOTHING,
        entries: Iterable[Entry] = (),
        committed_offset: int = -1,
        terms: Iterable[TermStart] = (),
        election_ticks: int = 10,
        heartbeat_ticks: int = 1,
    ) -> None:
        """Create a follower with the state that was on its disk.

        :param voters: in force after ``snapshot``, or initially; later entries may replace them.
        :param first_payload_of_term: payload of an entry without effect, which a new leader appends
            first.
        :param draw_below: returns a random number from 0 to below the argument.
        :param entries: the durable log after ``snapshot``.
        :param committed_offset: a lower bound of the committed offset.
        :param terms: term starts of the log up to ``snapshot``, if they are known.
        :param election_ticks: a follower that receives no message of a leader for this long stands
            for election; a leader that no majority answers for this long resigns. Followers wait up
            to twice as long, by a random number that is drawn each time.
        """
        log = EntryLog(base=snapshot, voters=voters, entries=entries, terms=terms)
        super().__init__(key=key, log=log, hard_state=hard_state, committed_offset=committed_offset)
        self._first_payload_of_term = first_payload_of_term
        self._draw_below = draw_below
        self._election_ticks = election_ticks
        self._heartbeat_ticks = heartbeat_ticks
        self.role = Role.FOLLOWER
        self._leadership: Leadership | None = None
        #: Voters that granted the request of a prospective or candidate; itself once its vote is
        #: durable.
        self._granted: set[ReplicaKey] = set()
        self._refused: set[ReplicaKey] = set()
        self._ticks_since_leader = 0
        self._timeout_ticks = 0
        #: Set by the driver if this replica could not lead at once, so that others should. It still
        #: votes. It stands if no other replica does, for only its log may have all committed
        #: entries.
        self.hesitates = False
        self._restart_timer()
        self._unmute_if_sound()

    def __repr__(self) -> str:
        return (
            f"<RaftCore {self.key} {self.role.value} term={self.term} "
            f"last={self.log.last_offset} committed={self.committed_offset}>"
        )

    @property
    def is_voter(self) -> bool:
        return self.key in self.log.voters

    @property
    def _may_stand(self) -> bool:
        """Whether this replica may be elected.

        A leader whose own removal is uncommitted may be: only it may have the latest entries.
        """
        if self.is_mute:
            return False
        former = self.log.former_voters
        is_removed = former.known_as(self.key) in former
        if is_removed and self.log.voters_offset > self.committed_offset:
            return True
        return self.is_voter

    @property
    def applicable_offset(self) -> int:
        """Last offset that is committed and also durable on this replica."""
        return min(self.committed_offset, self.log.durable_offset)

    @property
    def leadership(self) -> Leadership | None:
        """State of this replica as the leader; None unless it leads."""
        return self._leadership

    # --- input: time -----------------------------------------------------------------------------

    def tick(self) -> None:
        self._ticks_since_leader += 1
        if self._leadership is not None:
            self._tick_leading(self._leadership)
            return
        patience = _PATIENCE if self.hesitates else 1
        if self._ticks_since_leader >= self._timeout_ticks * patience:
            self.campaign()

    def _tick_leading(self, leadership: Leadership) -> None:
        leadership.now += 1
        leadership.forget_silent(OBSERVER_TIMEOUTS * self._election_ticks)
        if not leadership.has_majority(within_ticks=self._election_ticks):
            self._follow(self.term, None)
        elif leadership.now % self._heartbeat_ticks == 0:
            leadership.heartbeat()

    def campaign(self) -> None:
        """Start a pre-vote. If it succeeds, the replica stands for election.

        An observer or a mute replica requests the log from the known voters instead.
        """
        self._restart_timer()
        self.leader = None
        if not self._may_stand:
            self.role = Role.FOLLOWER
            self._to_voters(Observe)
            return
        if self._leadership is not None:
            return
        self.role = Role.PROSPECTIVE
        self._granted, self._refused = {self.key}, set()
        self._to_voters(PreVote, **self._last_entry())
        self._count_votes()

    def note_leader_gone(self) -> None:
        """Start an election soon, without the full wait, because the connection to the leader was
        closed or refused. No effect unless this replica follows a leader.

        If the leader still runs, other voters receive its messages and refuse the pre-vote.
        """
        if self.role is Role.FOLLOWER and self.leader is not None:
            self.leader = None
            self.stand_soon()

    def ask_for_log(self, of: Iterable[ReplicaKey]) -> None:
        """Request the log from replicas that the own log, which may be empty, does not name.

        No effect if a leader is known.
        """
        if self.leader is None:
            self._messages += [
                Observe(sender=self.key, to=key, term=self.term) for key in of if key != self.key
            ]

    def _rename(self, known_as: Callable[[ReplicaKey], ReplicaKey]) -> None:
        super()._rename(known_as)
        self._granted = set(map(known_as, self._granted))
        self._refused = set(map(known_as, self._refused))
        if self._leadership is not None:
            self._leadership.rename(known_as)

    def stand_soon(self) -> None:
        """Replace the present wait of a replica without a leader by a random one of at most a
        quarter of the election timeout.
        """
        self._timeout_ticks = 1 + self._draw_below(max(1, self._election_ticks // 4))
        self._ticks_since_leader = 0

    def resign(self) -> None:
        """Become a follower if this replica leads.

        The voter with the longest durable log is asked to take over.
        """
        if self._leadership is None:
            return
        successor = self._leadership.best_successor()
        if successor is not None:
            self._messages.append(TimeoutNow(sender=self.key, to=successor, term=self.term))
        self._follow(self.term, None)

    # --- input: proposals ------------------------------------------------------------------------

    def propose(self, payload: bytes) -> Entry:
        """Append an entry with ``payload`` and return it. The entry is not committed yet.

        :raises NotControllerError: this replica does not lead.
        """
        return self._propose(payload, EntryKind.DATA)

    def _propose(self, payload: bytes, kind: EntryKind) -> Entry:
        leadership = self._required_leadership()
        entry = Entry(self.log.last_offset + 1, self.term, payload, kind)
        self.log.append_entries([entry])
        if kind is EntryKind.VOTERS:
            self._follow_voter_names()
            leadership.follow_voters()
        leadership.send_news()
        return entry

    def _required_leadership(self) -> Leadership:
        if self._leadership is None:
            raise NotControllerError(f"node {self.key.node_id} is not the active controller")
        return self._leadership

    def change_voters(self, voters: VoterSet) -> Entry:
        """Add, remove or name one voter: in force at once, permanent when the entry is committed.

        :raises NotControllerError: this replica does not lead.
        :raises RequestTimedOutError: not possible now: another change is pending, this term has
            committed no entry yet, or the added replica is absent or lags (Kafka's error code).
        """
        leadership = self._required_leadership()
        leadership.require_may_change(voters, within_ticks=self._election_ticks)
        return self._propose(voters.encode(), EntryKind.VOTERS)

    # --- input: what the driver has done ---------------------------------------------------------

    def hard_state_persisted(self, hard_state: HardState) -> None:
        """Count the own vote in ``hard_state``, which is durable now. No effect if this replica is
        no candidate, or has another term or vote by now."""
        if self.role is Role.CANDIDATE and hard_state == self._hard_state:
            self._granted.add(self.key)
            self._count_votes()

    def entries_persisted(self, last: Entry, generation: int) -> None:
        """Record that entries up to and including ``last`` are durable.

        ``generation`` is the one of their ``Ready``. No effect if the entries were replaced since.
        """
        if not self.log.note_durable(last.offset, generation):
            return
        self._unmute_if_sound()
        if self._leadership is not None:
            self._advance_commit(self._leadership)
        elif self.leader is not None:
            self._acknowledge()

    def entries_read(self, read: ReadEntries, entries: Sequence[Entry]) -> None:
        if self._leadership is not None:
            self._leadership.entries_read(read, entries)

    def slice_read(
        self,
        read: ReadSnapshot,
        data: bytes | None,
        *,
        is_last: bool,
        voters: bytes = b"",
        crc: int | None = None,
    ) -> None:
        if self._leadership is not None:
            self._leadership.slice_read(read, data, is_last, voters, crc)

    def compact(self, snapshot: SnapshotId, start_offset: int) -> None:
        """Record a durable snapshot of applied entries. No effect if it is not newer than the
        recorded one.

        The disk holds entries from ``start_offset`` on.
        """
        self.log.compact(snapshot, start_offset)

    # --- output ----------------------------------------------------------------------------------

    def ready(self) -> Ready:
        """Return the work since the last call. The result is false if there is no work."""
        if self._leadership is not None:
            reads, self._leadership.reads = tuple(self._leadership.reads), []
        else:
            reads = ()
        committed_offset = self.applicable_offset
        ready = Ready(
            hard_state=self._unwritten_state,
            messages=tuple(self._messages),
            entries=self.log.take_unwritten(),
            generation=self.log.generation,
            slices=tuple(self._slices),
            reads=reads,
            committed_offset=committed_offset,
            has_committed=committed_offset > self._handed_commit,
        )
        self._handed_commit = max(committed_offset, self._handed_commit)
        self._unwritten_state = None
        self._messages.clear()
        self._slices.clear()
        return ready

    # --- input: messages -------------------------------------------------------------------------

    def step(self, message: Message) -> None:
        """Process a message of another replica. Outdated messages are ignored."""
        match message:
            case PreVote():
                return self._on_pre_vote(message)
            case Observe():
                return self._on_observe(message)
            case Append() | SnapshotSlice() if message.term >= self.term and self._lacks_committed(
                message
            ):
                # Neither its term nor its leader is adopted: the committed entries stay eligible.
                return None
            case Vote() if self._has_recent_leader and not message.is_transfer:
                return None  # The sender was isolated. Its vote must not depose a working leader.
        if message.term > self.term and not (isinstance(message, PreVoteReply) and message.granted):
            self._follow(message.term, None)
        if message.term < self.term and not isinstance(message, PreVoteReply):
            self._on_old_term(message)
        else:
            self._on_current(message)

    def _on_old_term(self, message: Message) -> None:
        """Reply with the present term, so that an old leader or candidate becomes a follower."""
        match message:
            case Append() | SnapshotSlice():
                previous = message.previous_offset if isinstance(message, Append) else -1
                self._reply(AppendRejected, message, previous_offset=previous, hint=NOTHING)
            case Vote():
                self._reply(VoteReply, message, granted=False)

    def _on_current(self, message: Message) -> None:
        leadership = self._leadership
        if leadership is not None and message.term == self.term:
            leadership.note_message(message)
        match message:
            case Vote():
                self._on_vote(message)
            case Append() | SnapshotSlice():
                self._follow_leader(message.sender)
                if isinstance(message, Append):
                    self._on_append(message)
                else:
                    self._on_slice(message)
            case PreVoteReply() | VoteReply():
                asked = Role.CANDIDATE if isinstance(message, VoteReply) else Role.PROSPECTIVE
                if self.role is asked:
                    (self._granted if message.granted else self._refused).add(message.sender)
                    self._count_votes()
            case TimeoutNow():
                if self._may_stand and not self.hesitates and leadership is None:
                    self._stand(is_transfer=True)
            case AppendReply() if leadership is not None:
                leadership.acknowledged(message)
                self._advance_commit(leadership)
            case AppendRejected() if leadership is not None:
                leadership.rejected(message)
            case SnapshotReply() if leadership is not None:
                leadership.slice_taken(message)

    # --- elections -------------------------------------------------------------------------------

    @property
    def _has_recent_leader(self) -> bool:
        """Whether this replica leads, or received a leader's message within the last election
        timeout.
        """
        is_fresh = self._ticks_since_leader < self._election_ticks
        return self._leadership is not None or (self.leader is not None and is_fresh)

    @property
    def keeps_up(self) -> bool:
        """Whether this replica follows a leader that it heard recently and that has all entries
        committed here.
        """
        return self._leadership is None and self._has_recent_leader and self.contradicted_by is None

    def _on_pre_vote(self, message: PreVote) -> None:
        """Reply to a pre-vote of any term. The own term and vote do not change."""
        if self._leadership is not None:
            # The sender may be a removed voter that was away. The log shows it the removal.
            self._leadership.observe(message.sender)
        granted = (
            not self.is_mute
            and message.term >= self.term
            and not self._has_recent_leader
            and self._is_up_to_date(message.last_term, message.last_offset)
        )
        self._reply(PreVoteReply, message, granted=granted)

    def _on_vote(self, message: Vote) -> None:
        granted = self._may_vote_for(message.sender) and self._is_up_to_date(
            message.last_term, message.last_offset
        )
        if granted:
            self._restart_timer()
            if self._hard_state.voted_for is None:
                self._set_hard_state(HardState(term=self.term, voted_for=message.sender))
        self._reply(VoteReply, message, granted=granted)

    def _may_vote_for(self, candidate: ReplicaKey) -> bool:
        """Return whether this replica may vote for ``candidate`` in the present term.

        A replica grants one vote per term. The same candidate gets the vote again, because the
        reply may have been lost.
        """
        if self.is_mute:
            return False
        voted_for = self._hard_state.voted_for
        if voted_for is None:
            return self.leader is None
        # Votes from before a dynamic quorum were recorded with the node id only.
        return self.log.voters.known_as(voted_for) == candidate

    def _count_votes(self) -> None:
        voters = self.log.voters
        if voters.is_majority(self._granted):
            if self.role is Role.PROSPECTIVE:
                self._stand(is_transfer=False)
            else:
                self._lead()
        elif voters.is_majority(self._refused):
            was_candidate = self.role is Role.CANDIDATE
            self.role = Role.FOLLOWER
            if was_candidate:
                # The votes were split: try again soon, but not all at the same moment.
                self._timeout_ticks = 1 + self._draw_below(self._election_ticks)
                self._ticks_since_leader = 0
        elif self.role is Role.CANDIDATE and self._refused:
            # Another candidate exists and other voters may be away, so a shorter wait suffices.
            soon = self._ticks_since_leader + 1 + self._draw_below(self._election_ticks)
            self._timeout_ticks = min(self._timeout_ticks, soon)

    def _stand(self, *, is_transfer: bool) -> None:
        self._follow(self.term + 1, None)
        self.role = Role.CANDIDATE
        self._set_hard_state(HardState(term=self.term, voted_for=self.key))
        self._granted, self._refused = set(), set()
        self._to_voters(Vote, is_transfer=is_transfer, **self._last_entry())

    def _lead(self) -> None:
        self.role = Role.LEADER
        self.leader = self.key
        self._leadership = Leadership(
            key=self.key, term=self.term, log=self.log, send=self._messages.append
        )
        self._ticks_since_leader = 0
        self._propose(self._first_payload_of_term, EntryKind.DATA)

    def _follow(self, term: int, leader: ReplicaKey | None) -> None:
        """Become a follower of ``term`` and discard all state of a leadership or candidacy."""
        if term > self.term:
            self._set_hard_state(replace(self._hard_state, term=term, voted_for=None))
        self.role = Role.FOLLOWER
        self.leader = leader
        self._leadership = None
        self._matched_offset = self._heard_tick = -1
        if not self._is_installing:
            self._receiving = (NOTHING, 0)
        self._restart_timer()

    def _follow_leader(self, leader: ReplicaKey) -> None:
        assert self._leadership is None, f"{self.key} and {leader} lead term {self.term}"
        if self.leader != leader or self.role is not Role.FOLLOWER:
            matched = self._matched_offset
            self._follow(self.term, leader)
            self._matched_offset = matched
        self._restart_timer()

    def _restart_timer(self) -> None:
        self._ticks_since_leader = 0
        self._timeout_ticks = self._election_ticks + self._draw_below(self._election_ticks)

    # --- leading ---------------------------------------------------------------------------------

    def _on_observe(self, message: Observe) -> None:
        if self._leadership is not None:
            self._leadership.observe(message.sender)
            self._leadership.note_message(message)
            self._leadership.send_news()

    def _advance_commit(self, leadership: Leadership) -> None:
        leadership.advance_commit()
        if leadership.committed_offset > self.committed_offset:
            self.committed_offset = leadership.committed_offset
            leadership.spread_commit()
        if not self.is_voter and self.log.voters_offset <= self.applicable_offset:
            # A removed leader leads until its removal is committed, so that it can answer the
            # request.
            self.resign()

    # --- sending ---------------------------------------------------------------------------------

    def _last_entry(self) -> dict[str, int]:
        return {"last_offset": self.log.last_offset, "last_term": self.log.last_term}

    def _to_voters(self, kind: Callable[..., Message], **fields: object) -> None:
        self._messages += [
            kind(sender=self.key, to=key, term=self.term, **fields)
            for key in self.log.voters
            if key != self.key
        ]
