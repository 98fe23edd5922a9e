"""PURE. ``Following``: how a replica handles a leader's entries and snapshots.

* If an entry contradicts the leader's entry, the log is truncated there. Committed entries are
  never removed.
* A leader that lacks committed entries was elected by voters that lost them. It gets no answer. The
  replica detects such a leader by comparing terms of entries.
* For a snapshot the replica compares the terms that the snapshot lists. If these do not reach back
  to the committed offset, the snapshot is accepted.
* A snapshot arrives in slices. While the last slice is written, no other message is accepted.

core.py decides which term and leader are valid.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kraftjbod.raft.machine.entry_log import EntryLog, term_in
from kraftjbod.raft.machine.messages import (
    Append,
    AppendRejected,
    AppendReply,
    Entry,
    HardState,
    Message,
    SnapshotId,
    SnapshotReply,
    SnapshotSlice,
    TermStart,
)
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet

#: Stands for no snapshot, and for no entry.
NOTHING: Final = SnapshotId(-1, 0)
#: More messages than one event loop iteration creates. While a disk does not take the hard state,
#: all messages wait. Any message may be lost, and the oldest are the least useful.
MAX_UNSENT_MESSAGES: Final = 1_000


class Following:
    """The part of :class:`RaftCore` that stores the leader's entries and snapshots in the log of
    one replica, and replies to the leader.
    """

    def __init__(
        self, *, key: ReplicaKey, log: EntryLog, hard_state: HardState, committed_offset: int
    ) -> None:
        """Create with the state that was on the replica's disk.

        :param log: a durable log, committed up to its base.
        :param committed_offset: a lower bound of the committed offset.
        """
        #: The replica's own key. :attr:`key` is the name by which the voters in force know it.
        self.own_key = key
        self._named_by = log.voters
        self.key = self._named_by.known_as(key)
        self.log = log
        self._hard_state = hard_state
        #: The leader, possibly this replica; None if no leader is known.
        self.leader: ReplicaKey | None = None
        #: Highest offset known to be committed; never decreases.
        self.committed_offset = max(log.base.last_offset, min(committed_offset, log.last_offset))
        #: A leader that lacks entries that are committed here, and its term.
        self._contradiction: tuple[ReplicaKey, int] | None = None
        #: Up to this offset the log is known to match the present leader's.
        self._matched_offset = -1
        #: The latest ``Append.sent_tick`` of the present leader; -1 before the first.
        self._heard_tick = -1
        self._receiving: tuple[SnapshotId, int] = (NOTHING, 0)
        self._received_terms: tuple[TermStart, ...] = ()
        #: Whether the last slice is being written, after which the snapshot replaces the log.
        self._is_installing = False
        self._unwritten_state: HardState | None = None
        self._messages: deque[Message] = deque(maxlen=MAX_UNSENT_MESSAGES)
        self._slices: list[SnapshotSlice] = []
        self._handed_commit = log.base.last_offset

    @property
    def term(self) -> int:
        return self._hard_state.term

    @property
    def hard_state(self) -> HardState:
        return self._hard_state

    @property
    def is_mute(self) -> bool:
        """Whether the replica must not vote or stand, because it may have lost entries that it
        acknowledged.
        """
        return self._hard_state.mute_before_term > 0

    def _set_hard_state(self, hard_state: HardState) -> None:
        self._hard_state = self._unwritten_state = hard_state

    def _unmute_if_sound(self) -> None:
        """Stop being mute if the durable log has all entries again that the replica may have
        acknowledged.
        """
        term = self.log.term_at(self.log.durable_offset)
        if self.is_mute and term is not None and term >= self._hard_state.mute_before_term:
            self._set_hard_state(replace(self._hard_state, mute_before_term=0))

    @property
    def last_offset(self) -> int:
        """Last offset of the log, durable or not."""
        return self.log.last_offset

    @property
    def _follows(self) -> bool:
        """Whether another replica leads."""
        return self.leader is not None and self.leader != self.key

    def _follow_voter_names(self) -> None:
        """If another voter set is in force, use its names for this replica, the leader and the
        voters.
        """
        if self._named_by is not self.log.voters:
            self._named_by = self.log.voters
            self._rename(self._named_by.known_as)

    def _rename(self, known_as: Callable[[ReplicaKey], ReplicaKey]) -> None:
        self.key = known_as(self.own_key)
        self.leader = None if self.leader is None else known_as(self.leader)

    # --- entries ---------------------------------------------------------------------------------

    def _on_append(self, message: Append) -> None:
        self._heard_tick = max(self._heard_tick, message.sent_tick)
        if self._is_installing:
            return self._acknowledge()
        if not self._fits(message):
            hint = self.log.last_up_to(message.previous_offset, message.previous_term)
            self._reply(
                AppendRejected,
                message,
                previous_offset=message.previous_offset,
                hint=hint,
                sent_tick=self._heard_tick,
            )
            return None
        is_news = self._take(message.entries)
        last = message.previous_offset + len(message.entries)
        self._matched_offset = max(self._matched_offset, last, self.committed_offset)
        # An offset that was not compared with the leader's log may hold a different entry.
        known = min(message.committed_offset, self._matched_offset)
        self.committed_offset = max(self.committed_offset, known)
        if not is_news:  # New entries are acknowledged once they are durable.
            self._acknowledge()
        return None

    def _fits(self, message: Append) -> bool:
        """Return whether both logs are the same up to the entry ``previous`` of ``message``."""
        return message.previous_offset <= self.committed_offset or self.log.holds(
            message.previous_offset, message.previous_term
        )

    @property
    def contradicted_by(self) -> ReplicaKey | None:
        """The leader whose log lacks or contradicts entries that are committed here; None if there
        is none.
        """
        return None if self._contradiction is None else self._contradiction[0]

    def _lacks_committed(self, message: Append | SnapshotSlice) -> bool:
        """Return whether the leader has another entry in place of one that is committed here.

        Some messages prove neither, for example a heartbeat while a snapshot is sent. Then the
        result of the previous message of the same leader and term remains.
        """
        if isinstance(message, Append):
            agrees = self._agrees_with_entries(message)
        else:
            agrees = self._agrees_with_snapshot(message)
        said_by = (message.sender, message.term)
        if agrees is None:
            agrees = self._contradiction != said_by
        self._contradiction = None if agrees else said_by
        return not agrees

    def _agrees_with_entries(self, message: Append) -> bool | None:
        """Return whether the leader has the same committed entries; None if the message proves
        nothing.
        """
        theirs = [(message.previous_offset, message.previous_term)]
        theirs += ((entry.offset, entry.term) for entry in message.entries)
        known = [(offset, term) for offset, term in theirs if offset <= self.committed_offset]
        if any(self.log.term_at(offset) not in (None, term) for offset, term in known):
            return False
        is_proof = any(
            offset >= max(0, self.committed_offset) and self.log.holds(offset, term)
            for offset, term in theirs
        )
        return True if is_proof else None

    def _agrees_with_snapshot(self, message: SnapshotSlice) -> bool | None:
        """Return whether the snapshot has the same term at the committed offset; None if that is
        not known.
        """
        snapshot, at = message.snapshot, min(message.snapshot.last_offset, self.committed_offset)
        mine = self.log.term_at(at)
        if mine is None:
            mine = term_in(self.log.terms, at)
        if mine is None or at < 0:
            return None
        # The leader's log may have grown since it began to send the snapshot.
        terms = [begun for begun in message.terms if begun.offset < snapshot.last_offset]
        theirs = term_in([*terms, TermStart(*snapshot)], at)
        if theirs is None:
            # Terms never decrease from entry to entry.
            return False if mine > snapshot.term else None
        return mine == theirs

    def _take(self, entries: tuple[Entry, ...]) -> bool:
        """Append the new entries of the leader. The log is truncated only where an entry
        contradicts it.

        :returns: whether an entry was new.
        """
        for i, entry in enumerate(entries):
            if entry.offset > self.committed_offset and not self.log.holds(
                entry.offset, entry.term
            ):
                self.log.append_entries(entries[i:])
                self._follow_voter_names()
                return True
        return False

    def _acknowledge(self) -> None:
        assert self.leader is not None
        self._messages.append(
            AppendReply(
                sender=self.key,
                to=self.leader,
                term=self.term,
                durable_offset=min(self._matched_offset, self.log.durable_offset),
                sent_tick=self._heard_tick,
            )
        )

    def _is_up_to_date(self, last_term: int, last_offset: int) -> bool:
        """Return whether a candidate's log is at least as complete: by the last term, then by
        length.
        """
        return (last_term, last_offset) >= (self.log.last_term, self.log.last_offset)

    # --- a snapshot ------------------------------------------------------------------------------

    def _on_slice(self, message: SnapshotSlice) -> None:
        snapshot = message.snapshot
        if self._is_installing:
            return self._acknowledge()
        if snapshot.last_offset <= self.committed_offset or self.log.holds(*snapshot):
            # This replica already has all entries that the snapshot covers.
            self.committed_offset = max(self.committed_offset, snapshot.last_offset)
            self._matched_offset = max(self._matched_offset, snapshot.last_offset)
            return self._acknowledge()
        if snapshot != self._receiving[0]:
            self._receiving = (snapshot, 0)
        if message.position == self._receiving[1]:
            self._receiving = (snapshot, message.position + len(message.data))
            self._received_terms = message.terms
            self._slices.append(message)
            self._is_installing = message.is_last
            return None
        self._report_position(message)
        return None

    def _report_position(self, message: SnapshotSlice) -> None:
        self._reply(
            SnapshotReply,
            message,
            snapshot=message.snapshot,
            next_position=self._receiving[1],
        )

    def slice_persisted(self, taken: SnapshotSlice) -> None:
        """Acknowledge the slice ``taken``, which was written, so that the leader sends the next
        slice. No effect if the term has changed, or another snapshot is being received.
        """
        if taken.snapshot == self._receiving[0] and taken.term == self.term:
            self._report_position(taken)

    def snapshot_installed(self, snapshot: SnapshotId, voters: VoterSet) -> None:
        """Replace the log by ``snapshot``, which is durable.

        :param voters: the voter set in force at the snapshot's end.
        """
        self._is_installing = False
        self._receiving = (NOTHING, 0)
        terms = (begun for begun in self._received_terms if begun.offset <= snapshot.last_offset)
        self.log.reset(snapshot, voters, terms)
        self._unmute_if_sound()
        self._follow_voter_names()
        self.committed_offset = max(self.committed_offset, snapshot.last_offset)
        self._handed_commit = max(self._handed_commit, snapshot.last_offset)
        if self._follows:
            self._matched_offset = max(self._matched_offset, snapshot.last_offset)
            self._acknowledge()

    def snapshot_discarded(self) -> None:
        """Forget the received part of a snapshot, which is damaged or incomplete, so that the
        leader sends the snapshot again.
        """
        self._is_installing = False
        self._receiving = (NOTHING, 0)

    # --- sending ---------------------------------------------------------------------------------

    def _reply(self, kind: Callable[..., Message], to: Message, **fields: object) -> None:
        self._messages.append(kind(sender=self.key, to=to.sender, term=self.term, **fields))
