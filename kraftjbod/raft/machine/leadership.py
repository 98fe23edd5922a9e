"""PURE. ``Leadership``: a leader's state for each peer, and the messages to the peers.

An object exists for one term. Each peer is in one of three states, as in etcd:

* PROBE: the leader searches for the end of the common prefix, one message at a time.
* REPLICATE: entries are sent as they are appended, before earlier ones are acknowledged.
* SNAPSHOT: entries that the peer needs were removed, so a snapshot is sent slice by slice.

An entry is committed once a majority of the voters in force has it durably and it is of this term
(Raft, 5.4.2). Observers receive everything and never count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Final

from kraftjbod.core.errors import RequestTimedOutError
from kraftjbod.raft.machine.entry_log import EntryLog
from kraftjbod.raft.machine.messages import (
    Append,
    AppendRejected,
    AppendReply,
    Entry,
    Message,
    ReadEntries,
    ReadSnapshot,
    SnapshotId,
    SnapshotReply,
    SnapshotSlice,
)
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet

#: Maximum number of unanswered messages with entries per peer.
MAX_IN_FLIGHT: Final = 16
#: Limits of one message.
MAX_APPEND_BYTES: Final = 256 * 1024
MAX_APPEND_ENTRIES: Final = 500
#: An observer that is silent for this many election timeouts is sent nothing any more.
OBSERVER_TIMEOUTS: Final = 10
#: Assumed age in ticks of a message whose answer has no tick, as older versions send it: the time
#: between two heartbeats.
_UNSAID_AGE_TICKS: Final = 4


class Pace(Enum):
    """How the leader sends the log to a peer; the names are those of etcd's raft."""

    PROBE = "probe"
    """One message at a time, until the peer's log is known to match."""
    REPLICATE = "replicate"
    """Several messages in flight."""
    SNAPSHOT = "snapshot"
    """Slices of a snapshot, one at a time: the peer needs entries that the log no longer has."""


@dataclass(slots=True)
class Progress:
    """State of one peer, as the leader knows it: how far its log matches, and when its last
    messages arrived. Times are ticks of the leadership.
    """

    #: First entry that was not sent yet.
    next_offset: int
    #: Up to this offset the peer has acknowledged durable entries; -1 if unknown.
    durable_offset: int = -1
    #: When ``durable_offset`` was last raised.
    durable_tick: int = 0
    pace: Pace = Pace.PROBE
    #: A probe, a slice or a read is in flight; the next heartbeat repeats it.
    is_waiting: bool = False
    #: Entries for this peer are being read from the disk.
    is_reading: bool = False
    #: Last offset of each message in flight.
    in_flight: list[int] | None = None
    #: The snapshot that is being sent, and the position of its next slice in bytes.
    snapshot: SnapshotId | None = None
    position: int = 0
    #: Tick at which its last message arrived.
    heard_tick: int = 0
    #: Tick at which the latest message was *sent* that it answered as a follower.
    followed_tick: int = 0
    #: Tick at which it last held the whole log, or the log as it was one acknowledgement before.
    caught_up_tick: int | None = None
    #: Tick of its last acknowledgement, and the end of the log at that time.
    acked_tick: int = 0
    end_at_ack: int | None = None


class Leadership:
    """State of a replica while it leads in one term: the progress of each peer, and the messages to
    the peers.
    """

    def __init__(
        self, *, key: ReplicaKey, term: int, log: EntryLog, send: Callable[[Message], None]
    ) -> None:
        self._key = key
        self.term = term
        self._log = log
        self._send = send
        self.start_offset = log.last_offset + 1
        self.committed_offset = -1
        self.peers: dict[ReplicaKey, Progress] = {}
        self.reads: list[ReadEntries | ReadSnapshot] = []
        self.now = 0
        self.follow_voters()

    # --- peers -----------------------------------------------------------------------------------

    def follow_voters(self) -> None:
        """Start to send the log to the voters in force that are not peers yet."""
        for key in self._log.voters:
            self.observe(key)

    def observe(self, key: ReplicaKey) -> None:
        """Start to send the log to ``key``. No effect for the leader itself and for a known peer.

        A removed voter learns of its removal from the log.
        """
        if key != self._key and key not in self.peers:
            self.peers[key] = Progress(
                self._log.last_offset + 1, heard_tick=self.now, followed_tick=self.now
            )

    def rename(self, known_as: Callable[[ReplicaKey], ReplicaKey]) -> None:
        """Replace the keys of all replicas by ``known_as(key)``, the names that the voter set in
        force gives them.
        """
        self._key = known_as(self._key)
        self.peers = {known_as(key): peer for key, peer in self.peers.items()}

    def _peer(self, key: ReplicaKey) -> Progress | None:
        """Return the state of a peer; None if it is no peer.

        ``key`` may be an earlier name of the replica.
        """
        return self.peers.get(self._log.voters.known_as(key))

    def require_may_change(self, then: VoterSet, within_ticks: int) -> None:
        """Raise an error unless the voter set ``then`` may follow the one in force.

        :param then: has at least one voter, and differs by one at most; a violation is a bug.
        :param within_ticks: an added replica must have been caught up within this time.
        :raises RequestTimedOutError: not possible now; the message has the reason.
        """
        # A static quorum knows no directories, so adding them to the keys is not a change of
        # voters.
        now = set(map(then.known_as, self._log.voters))
        assert len(now ^ set(then)) <= 1, (now, then)
        assert len(then), "at least one voter remains"
        if self.committed_offset < self.start_offset:
            raise RequestTimedOutError("this controller has only just begun to lead")
        if self._log.voters_offset > self.committed_offset:
            raise RequestTimedOutError("another change of the voters is under way")
        for key in set(then) - now:
            peer = self.peers.get(key)
            caught_up = None if peer is None else peer.caught_up_tick
            if caught_up is None or self.now - caught_up > within_ticks:
                raise RequestTimedOutError(f"replica {key} does not observe, or is not caught up")
        # Remaining voters may be mute: they wait for this change, and the change for them.
        sound = [k for k in (self._key, *self.peers) if self._durable_at(k) >= self.start_offset]
        if not then.is_majority(map(then.known_as, sound)):
            raise RequestTimedOutError("too few of the voters that would be left are caught up")

    def forget_silent(self, after_ticks: int) -> None:
        """Remove observers that sent nothing for ``after_ticks``."""
        for key, peer in list(self.peers.items()):
            if key not in self._log.voters and self.now - peer.heard_tick > after_ticks:
                del self.peers[key]

    def has_majority(self, within_ticks: int) -> bool:
        """Return whether a majority of the voters answered messages of the last
        ``within_ticks``.
        """
        return self.now - self.followed_tick <= within_ticks

    @property
    def followed_tick(self) -> int:
        """Latest tick whose messages a majority of the voters has answered.

        None of these voters had voted for another candidate when the messages were sent. This
        replica, if it is a voter, counts as answering at once.
        """
        ticks = sorted(map(self._followed_at, self._log.voters), reverse=True)
        return ticks[len(ticks) // 2]

    def _followed_at(self, key: ReplicaKey) -> int:
        return self.now if key == self._key else self.peers[key].followed_tick

    def best_successor(self) -> ReplicaKey | None:
        voters = [key for key in self._log.voters if key in self.peers]
        return max(voters, key=lambda key: self.peers[key].durable_offset, default=None)

    # --- commit ----------------------------------------------------------------------------------

    def advance_commit(self) -> None:
        voters = self._log.voters
        held = sorted(map(self._durable_at, voters), reverse=True)
        by_majority = held[len(voters) // 2]
        if self._may_commit(by_majority):
            self.committed_offset = max(self.committed_offset, by_majority)

    def _may_commit(self, offset: int) -> bool:
        """Return whether ``offset`` is an entry of this term, so that a majority commits all
        entries up to and including ``offset``.
        """
        return offset >= self.start_offset

    def _durable_at(self, key: ReplicaKey) -> int:
        return self._log.durable_offset if key == self._key else self.peers[key].durable_offset

    # --- sending ---------------------------------------------------------------------------------

    def send_news(self) -> None:
        """Send the entries that each peer lacks, within the limits."""
        for key, peer in self.peers.items():
            self._send_entries(key, peer)

    def heartbeat(self) -> None:
        """Send a heartbeat to each peer, and repeat requests that were not answered."""
        for key, peer in self.peers.items():
            peer.is_waiting = False
            if peer.pace is not Pace.SNAPSHOT and self._send_entries(key, peer):
                continue
            previous = peer.next_offset - 1
            if peer.pace is not Pace.SNAPSHOT and self._log.term_at(previous) is None:
                self._begin_snapshot(key, peer)
            if peer.pace is Pace.SNAPSHOT:
                self._send_append(key, SnapshotId(-1, 0), ())
                self._ask_for_slice(key, peer)
            else:
                self._send_append(key, SnapshotId(previous, self._term_at(previous)), ())

    def spread_commit(self) -> None:
        """Send the new committed offset at once to all peers in state REPLICATE."""
        for key, peer in self.peers.items():
            if peer.pace is Pace.REPLICATE and not self._send_entries(key, peer):
                previous = peer.next_offset - 1
                term = self._log.term_at(previous)
                if term is not None:
                    self._send_append(key, SnapshotId(previous, term), ())

    def _send_entries(self, key: ReplicaKey, peer: Progress) -> bool:
        """Send entries to a peer. Return whether at least one message was sent."""
        is_sent = False
        while peer.pace is not Pace.SNAPSHOT and self._may_send(peer):
            previous = peer.next_offset - 1
            if self._log.term_at(previous) is None:
                self._begin_snapshot(key, peer)
                break
            found = self._log.entries_from(peer.next_offset, MAX_APPEND_BYTES, MAX_APPEND_ENTRIES)
            if found is None:
                self._ask_for_entries(key, peer)
                break
            if not found and peer.pace is Pace.REPLICATE:
                break
            self._send_found(key, peer, found)
            is_sent = True
        return is_sent

    def _may_send(self, peer: Progress) -> bool:
        if peer.pace is Pace.REPLICATE:
            return not peer.is_waiting and len(peer.in_flight or ()) < MAX_IN_FLIGHT
        return not peer.is_waiting

    def _send_found(self, key: ReplicaKey, peer: Progress, entries: list[Entry]) -> None:
        previous = peer.next_offset - 1
        self._send_append(key, SnapshotId(previous, self._term_at(previous)), tuple(entries))
        if peer.pace is Pace.PROBE:
            peer.is_waiting = True
            return
        peer.next_offset += len(entries)
        if peer.in_flight is None:
            peer.in_flight = []
        peer.in_flight.append(peer.next_offset - 1)

    def _ask_for_entries(self, key: ReplicaKey, peer: Progress) -> None:
        peer.is_waiting = True
        if not peer.is_reading:
            peer.is_reading = True
            self.reads.append(ReadEntries(key, self.term, peer.next_offset))

    def entries_read(self, read: ReadEntries, entries: Sequence[Entry]) -> None:
        """Send the entries that :class:`ReadEntries` requested.

        ``entries`` is empty if the log starts later now. Entries that this log has replaced are
        left out: the disk may still hold them.
        """
        peer = self._peer(read.peer)
        if read.term != self.term or peer is None or not peer.is_reading:
            return
        peer.is_reading = False
        if peer.pace is Pace.SNAPSHOT or peer.next_offset != read.from_offset:
            return  # The peer's position changed; the next heartbeat continues there.
        if self._log.term_at(read.from_offset - 1) is None:
            self._begin_snapshot(read.peer, peer)
            return
        found = list(takewhile(lambda entry: self._log.holds(entry.offset, entry.term), entries))
        if not found:
            return  # The entries were just removed; the next heartbeat tries again.
        peer.is_waiting = False
        self._send_found(read.peer, peer, found)
        self._send_entries(read.peer, peer)

    def _send_append(
        self, key: ReplicaKey, previous: SnapshotId, entries: tuple[Entry, ...]
    ) -> None:
        self._send(
            Append(
                sender=self._key,
                to=key,
                term=self.term,
                previous_offset=previous.last_offset,
                previous_term=previous.term,
                entries=entries,
                committed_offset=self.committed_offset,
                sent_tick=self.now,
            )
        )

    def _term_at(self, offset: int) -> int:
        term = self._log.term_at(offset)
        assert term is not None, offset
        return term

    # --- snapshots -------------------------------------------------------------------------------

    def _begin_snapshot(self, key: ReplicaKey, peer: Progress) -> None:
        peer.pace = Pace.SNAPSHOT
        peer.snapshot = self._log.snapshot
        peer.position = 0
        peer.is_waiting = False
        self._ask_for_slice(key, peer)

    def _ask_for_slice(self, key: ReplicaKey, peer: Progress) -> None:
        assert peer.snapshot is not None
        if peer.is_waiting:
            return
        peer.is_waiting = True
        self.reads.append(ReadSnapshot(key, self.term, peer.snapshot, peer.position))

    def slice_read(
        self,
        read: ReadSnapshot,
        data: bytes | None,
        is_last: bool,
        voters: bytes = b"",
        crc: int | None = None,
    ) -> None:
        """Send the slice that :class:`ReadSnapshot` requested.

        :param data: None if the snapshot does not exist any more. If it was damaged and is still
            the newest, there is no replacement yet: the next heartbeat tries again.
        :param crc: CRC of the whole snapshot.
        """
        peer = self._peer(read.peer)
        if read.term != self.term or peer is None or peer.pace is not Pace.SNAPSHOT:
            return
        if (peer.snapshot, peer.position) != (read.snapshot, read.position):
            return
        if data is None:
            if read.snapshot != self._log.snapshot:
                self._begin_snapshot(read.peer, peer)
            return
        self._send(
            SnapshotSlice(
                sender=self._key,
                to=read.peer,
                term=self.term,
                snapshot=read.snapshot,
                position=read.position,
                data=data,
                is_last=is_last,
                voters=voters,
                terms=self._log.terms,
                crc=crc if is_last else None,
            )
        )

    # --- answers ---------------------------------------------------------------------------------

    def note_message(self, message: Message) -> None:
        """Record that the sender is alive.

        If the message answers an ``Append``, record that it follows.
        """
        peer = self.peers.get(message.sender)
        if peer is None:
            return
        peer.heard_tick = self.now
        if isinstance(message, AppendReply | AppendRejected):
            is_said = message.sent_tick >= 0
            sent_tick = message.sent_tick if is_said else self.now - _UNSAID_AGE_TICKS
            peer.followed_tick = max(peer.followed_tick, min(sent_tick, self.now))

    def acknowledged(self, reply: AppendReply) -> None:
        peer = self.peers.get(reply.sender)
        if peer is None:
            return
        if reply.durable_offset > self._log.last_offset:
            return  # The sender has another history: see Following.contradicted_by.
        if reply.durable_offset > peer.durable_offset:
            peer.durable_offset, peer.durable_tick = reply.durable_offset, self.now
        self._note_caught_up(peer)
        if peer.in_flight:
            peer.in_flight = [last for last in peer.in_flight if last > peer.durable_offset]
        if peer.pace is Pace.SNAPSHOT:
            assert peer.snapshot is not None
            if peer.durable_offset < peer.snapshot.last_offset:
                return
        elif peer.pace is Pace.PROBE and reply.durable_offset < peer.next_offset - 1:
            return  # Answers an earlier message; the probe is still in flight.
        if peer.pace is not Pace.REPLICATE:
            self._probe(peer, peer.durable_offset + 1)
            peer.pace = Pace.REPLICATE
        peer.next_offset = max(peer.next_offset, peer.durable_offset + 1)
        self._send_entries(reply.sender, peer)

    def _note_caught_up(self, peer: Progress) -> None:
        """Update the time at which the peer was last caught up.

        Kafka's rule is used, which ignores a constant small lag under load.
        """
        if peer.durable_offset >= self._log.last_offset:
            peer.caught_up_tick = self.now
        elif peer.end_at_ack is not None and peer.durable_offset >= peer.end_at_ack:
            peer.caught_up_tick = peer.acked_tick
        peer.acked_tick, peer.end_at_ack = self.now, self._log.last_offset

    def rejected(self, reply: AppendRejected) -> None:
        peer = self.peers.get(reply.sender)
        if peer is None or peer.pace is Pace.SNAPSHOT:
            return
        if reply.previous_offset <= peer.durable_offset:
            if reply.sent_tick <= peer.durable_tick:
                return  # The rejection may be older than the acknowledgement.
            # The peer rejects a message that was sent after its acknowledgement arrived: its disk
            # lost entries. Kafka's leader accepts a lower fetch offset, too.
            peer.durable_offset, peer.caught_up_tick, peer.end_at_ack = -1, None, None
            self._probe(peer, reply.previous_offset + 1)
        if peer.pace is Pace.REPLICATE:
            self._probe(peer, peer.durable_offset + 1)
        elif reply.previous_offset == peer.next_offset - 1:
            hint = self._log.last_up_to(*reply.hint)
            best = min(hint.last_offset + 1, reply.previous_offset)
            self._probe(peer, max(best, peer.durable_offset + 1))
        else:
            return
        self._send_entries(reply.sender, peer)

    def _probe(self, peer: Progress, next_offset: int) -> None:
        peer.pace = Pace.PROBE
        peer.next_offset = next_offset
        peer.is_waiting = False
        peer.snapshot = None
        peer.in_flight = []

    def slice_taken(self, reply: SnapshotReply) -> None:
        peer = self.peers.get(reply.sender)
        if peer is None or peer.pace is not Pace.SNAPSHOT or peer.snapshot != reply.snapshot:
            return
        peer.position = reply.next_position
        peer.is_waiting = False
        self._ask_for_slice(reply.sender, peer)
