"""DISK. A log whose other voters are gone for good goes on with one voter: an operator said so.

What only the others held is lost, and may have been committed; so this is no election, but another
log that begins with what is here (``kraftjbod-storage fork-metadata``).
"""

from __future__ import annotations

from dataclasses import replace

from kraftjbod.raft.log.log_store import RaftLogStore, StoredLog
from kraftjbod.raft.machine.messages import Entry, EntryKind, HardState
from kraftjbod.raft.machine.voter_set import VoterSet


def left_alone(
    store: RaftLogStore, stored: StoredLog, voters: VoterSet, alone: VoterSet, wall_ms: int
) -> StoredLog:
    """Name ``alone`` in an entry of a new term, unless it votes alone already.

    After a crash in between the same is done again, or nothing more.

    :param voters: in force at the end of ``stored``; of a static quorum its configuration decides.
    """
    if voters.is_static or set(voters) == set(alone):
        if not stored.hard_state.mute_before_term:
            return stored
        # Nobody is left who could give back what it gave up.
        hard_state = replace(stored.hard_state, mute_before_term=0)
        store.write_hard_state(hard_state)
        return replace(stored, hard_state=hard_state)
    hard_state = HardState(term=stored.hard_state.term + 1)
    store.write_hard_state(hard_state)
    entry = Entry(stored.last_offset + 1, hard_state.term, alone.encode(), EntryKind.VOTERS)
    store.append([entry], wall_ms)
    return replace(
        stored,
        hard_state=hard_state,
        entries=(*stored.entries, entry),
        last_offset=entry.offset,
    )
