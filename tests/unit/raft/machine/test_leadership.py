"""Messages of a leader to one peer: in flight limit, entries from memory or disk, snapshots."""

from __future__ import annotations

from kraftjbod.raft.machine.entry_log import EntryLog
from kraftjbod.raft.machine.following import NOTHING
from kraftjbod.raft.machine.leadership import MAX_IN_FLIGHT, OBSERVER_TIMEOUTS, Leadership, Pace
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
    node,
)
from kraftjbod.raft.machine.voter_set import VoterSet

ME, PEER, OTHER, OBSERVER = map(node, range(1, 5))


class Leader:
    """A leader with ten entries, the first three of an earlier term."""

    def __init__(self, base: SnapshotId = NOTHING) -> None:
        terms = [1, 1, 1] + [2] * 7
        entries = [Entry(i, term, b"%d" % i) for i, term in enumerate(terms)]
        self.log = EntryLog(
            base=base,
            voters=VoterSet.of_keys([ME, PEER, OTHER]),
            entries=entries[base.last_offset + 1 :],
        )
        self.sent: list[Message] = []
        self.leadership = Leadership(key=ME, term=3, log=self.log, send=self.sent.append)
        self.peer = self.leadership.peers[PEER]

    def propose(self, payload: bytes = b"new") -> None:
        self.log.append_entries([Entry(self.log.last_offset + 1, 3, payload)])
        self.leadership.send_news()

    def to_peer(self) -> list[Message]:
        taken = [message for message in self.sent if message.to == PEER]
        self.sent.clear()
        return taken

    def acknowledge(self, offset: int) -> None:
        self.leadership.acknowledged(AppendReply(sender=PEER, to=ME, term=3, durable_offset=offset))

    def reject(self, previous: int, hint: SnapshotId, *, sent_tick: int = -1) -> None:
        self.leadership.rejected(
            AppendRejected(
                sender=PEER,
                to=ME,
                term=3,
                previous_offset=previous,
                hint=hint,
                sent_tick=sent_tick,
            )
        )


def test_leadership_limits_messages_in_flight() -> None:
    leader = Leader()
    leader.propose()
    leader.acknowledge(10)
    assert leader.peer.pace is Pace.REPLICATE
    leader.to_peer()
    for _ in range(MAX_IN_FLIGHT + 5):
        leader.propose()
    assert len(leader.to_peer()) == MAX_IN_FLIGHT
    leader.acknowledge(12)
    [both] = leader.to_peer()
    assert isinstance(both, Append)
    assert len(both.entries) == 5


def test_leadership_ignores_a_late_rejection() -> None:
    leader = Leader()
    leader.propose()
    leader.acknowledge(10)
    leader.to_peer()
    leader.reject(9, SnapshotId(2, 1))
    assert (leader.peer.pace, leader.to_peer()) == (Pace.REPLICATE, [])


def test_leadership_peer_that_lost_acknowledged_entries_gets_them_again() -> None:
    """The lost tail looked like an unfinished write to the peer, so it is not mute."""
    leader = Leader()
    leader.propose()
    leader.leadership.now = 5
    leader.acknowledge(10)
    leader.to_peer()
    leader.reject(10, SnapshotId(6, 2), sent_tick=5)
    assert leader.to_peer() == [], "the rejection may be older than the acknowledgement"
    leader.leadership.now = 6
    leader.reject(10, SnapshotId(6, 2), sent_tick=6)
    [probe] = leader.to_peer()
    assert isinstance(probe, Append)
    assert (probe.previous_offset, [entry.offset for entry in probe.entries]) == (6, [7, 8, 9, 10])
    assert leader.peer.durable_offset == -1, "entries that it lost do not count any more"
    leader.acknowledge(10)
    assert (leader.peer.pace, leader.peer.durable_offset) == (Pace.REPLICATE, 10)


def test_leadership_peer_with_a_longer_log_is_probed_without_reads() -> None:
    """The leader requested a missing snapshot repeatedly, in an endless loop."""
    leader = Leader()
    leader.acknowledge(110)
    leader.leadership.heartbeat()
    assert not leader.leadership.reads
    assert (leader.peer.durable_offset, leader.peer.pace) == (-1, Pace.PROBE)


def test_leadership_probe_skips_a_whole_term_after_a_mismatch() -> None:
    leader = Leader()
    leader.propose()
    leader.to_peer()
    leader.reject(9, SnapshotId(8, 1))
    [probe] = leader.to_peer()
    assert isinstance(probe, Append)
    assert (probe.previous_offset, probe.previous_term) == (2, 1)


def test_leadership_reads_entries_that_are_not_in_memory_from_the_disk() -> None:
    leader = Leader()
    leader.log.release(8)
    leader.propose()
    leader.reject(9, SnapshotId(4, 2))
    leader.to_peer()
    [read] = leader.leadership.reads
    assert read == ReadEntries(PEER, 3, 5)
    leader.leadership.entries_read(read, [Entry(5, 2, b"5"), Entry(6, 2, b"6")])
    leader.leadership.entries_read(read, [Entry(5, 2, b"5"), Entry(6, 2, b"6")])
    [append] = leader.to_peer()
    assert isinstance(append, Append)
    assert [entry.offset for entry in append.entries] == [5, 6]


def test_leadership_entries_read_sends_no_entry_that_the_log_has_replaced() -> None:
    """The disk may have an entry of an earlier term whose replacement is not written yet."""
    leader = Leader()
    leader.log.release(8)
    leader.propose()
    leader.reject(9, SnapshotId(4, 2))
    leader.to_peer()
    [read] = leader.leadership.reads
    leader.leadership.entries_read(read, [Entry(5, 2, b"5"), Entry(6, 1, b"replaced")])
    [append] = leader.to_peer()
    assert isinstance(append, Append)
    assert append.entries == (Entry(5, 2, b"5"),)


def test_leadership_sends_a_snapshot_in_slices_if_entries_are_gone() -> None:
    base = SnapshotId(4, 2)
    leader = Leader(base)
    leader.propose()
    leader.reject(9, SnapshotId(1, 1))
    assert leader.peer.pace is Pace.SNAPSHOT
    leader.to_peer()
    read = ReadSnapshot(PEER, 3, base, 0)
    assert leader.leadership.reads == [read]
    leader.leadership.slice_read(read, b"first", False)
    [first] = leader.to_peer()
    assert isinstance(first, SnapshotSlice)
    leader.leadership.slice_taken(
        SnapshotReply(sender=PEER, to=ME, term=3, snapshot=base, next_position=5)
    )
    assert leader.leadership.reads[1:] == [ReadSnapshot(PEER, 3, base, 5)]
    # The snapshot was removed meanwhile: the newest one is sent from its start.
    newest = SnapshotId(6, 2)
    leader.log.compact(newest, 7)
    leader.leadership.slice_read(ReadSnapshot(PEER, 3, base, 5), None, False)
    assert leader.leadership.reads[2:] == [ReadSnapshot(PEER, 3, newest, 0)]
    leader.acknowledge(6)
    assert leader.peer.pace is Pace.REPLICATE
    [append] = leader.to_peer()
    assert isinstance(append, Append)
    assert append.previous_offset == 6


def test_leadership_peer_behind_the_newest_snapshot_gets_entries_that_the_disk_holds() -> None:
    """Snapshots may be made faster than they are sent: the peer would never catch up."""
    leader = Leader(SnapshotId(4, 2))
    leader.log.compact(SnapshotId(8, 2), 6)
    leader.log.release(9)
    leader.reject(9, SnapshotId(6, 2))
    assert leader.leadership.reads == [ReadEntries(PEER, 3, 7)]
    leader.reject(6, SnapshotId(4, 2))
    assert leader.leadership.reads[1:] == [ReadSnapshot(PEER, 3, SnapshotId(8, 2), 0)]


def test_leadership_replicates_to_observers_without_counting_them() -> None:
    leader = Leader()
    leader.leadership.observe(OBSERVER)
    leader.propose()
    assert {message.to for message in leader.sent} == {PEER, OTHER, OBSERVER}
    leader.log.note_durable(10, leader.log.generation)
    leader.leadership.acknowledged(AppendReply(sender=OBSERVER, to=ME, term=3, durable_offset=10))
    leader.leadership.advance_commit()
    assert leader.leadership.committed_offset == -1
    leader.leadership.now = OBSERVER_TIMEOUTS + 1
    leader.leadership.forget_silent(OBSERVER_TIMEOUTS)
    assert set(leader.leadership.peers) == {PEER, OTHER}
    assert not leader.leadership.has_majority(within_ticks=OBSERVER_TIMEOUTS)
    leader.leadership.note_message(AppendReply(sender=PEER, to=ME, term=3, durable_offset=10))
    assert leader.leadership.has_majority(within_ticks=OBSERVER_TIMEOUTS)
