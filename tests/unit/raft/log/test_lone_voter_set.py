"""``append_lone_voter_set`` reduces a log to one voter, also when a crash interrupts it."""

from __future__ import annotations

import pytest

from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.raft.log.log_store import RaftLogStore
from kraftjbod.raft.log.lone_voter_set import append_lone_voter_set
from kraftjbod.raft.machine.messages import Entry, EntryKind, HardState, node
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet
from kraftjbod.testing.simulation.memory_vfs import MemVfs

NAMED = VoterSet.of_keys(
    ReplicaKey(BrokerId(i), DirectoryId(bytes(15) + bytes([i]))) for i in (1, 2, 3)
)
ALONE = VoterSet(NAMED.voters[:1])


@pytest.mark.parametrize("crashed_between", [False, True])
def test_lone_voter_set_appends_the_single_voter_once(crashed_between: bool) -> None:
    vfs = MemVfs()

    def opened() -> RaftLogStore:
        return RaftLogStore(vfs=vfs, directory="/log", segment_bytes=500, retained_entries=0)

    store = opened()
    store.open()
    store.write_hard_state(HardState(term=4, voted_for=NAMED.voters[1].key))
    store.append_entries([Entry(0, 3, b"a"), Entry(1, 4, NAMED.encode(), EntryKind.VOTERS)], 0)
    if crashed_between:
        store.write_hard_state(HardState(term=5))
    store.close()
    store = opened()
    done = append_lone_voter_set(store, store.open(), NAMED, ALONE, 0)
    assert done.entries[-1].payload == ALONE.encode()
    assert done.hard_state == HardState(term=done.entries[-1].term)
    assert done.hard_state.term == 5 + crashed_between, "no replica can have led this term"
    store.close()
    store = opened()
    again = store.open()
    assert (again.hard_state, again.entries) == (done.hard_state, done.entries)
    assert append_lone_voter_set(store, again, ALONE, ALONE, 0) is again
    static = VoterSet.of_keys(map(node, (1, 2)))
    assert append_lone_voter_set(store, again, static, ALONE, 0) is again, (
        "its configuration says who votes"
    )
