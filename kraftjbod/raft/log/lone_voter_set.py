"""DISK. Continuation of a log with one voter, after an operator declared all other voters lost.

Entries that only the others had are lost, even if they were committed. So this is not an election
but a fork: another log that begins with the entries of this one (``kraftjbod-storage
fork-metadata``).
"""

from __future__ import annotations

from dataclasses import replace

from kraftjbod.raft.log.log_store import RaftLogStore, StoredLog
from kraftjbod.raft.machine.messages import Entry, EntryKind, HardState
from kraftjbod.raft.machine.voter_set import VoterSet


def append_lone_voter_set(
    store: RaftLogStore, stored: StoredLog, voters: VoterSet, alone: VoterSet, wall_ms: int
) -> StoredLog:
    """Make ``alone`` the voters of the log: append an entry of a new term that names them.

    No entry is appended if ``alone`` is in force already, or in a static quorum, whose log names no
    voters; then the replica only stops being mute. After a crash in between, the next call
    completes the work.

    :param voters: in force at the end of ``stored``; for a static quorum the configured ones.
    :returns: the content of the log after the change.
    """
    if voters.is_static or set(voters) == set(alone):
        if not stored.hard_state.mute_before_term:
            return stored
        # No voter is left that could restore the dropped entries, so being mute has no use.
        hard_state = replace(stored.hard_state, mute_before_term=0)
        store.write_hard_state(hard_state)
        return replace(stored, hard_state=hard_state)
    hard_state = HardState(term=stored.hard_state.term + 1)
    store.write_hard_state(hard_state)
    entry = Entry(stored.last_offset + 1, hard_state.term, alone.encode(), EntryKind.VOTERS)
    store.append_entries([entry], wall_ms)
    return replace(
        stored,
        hard_state=hard_state,
        entries=(*stored.entries, entry),
        last_offset=entry.offset,
    )
