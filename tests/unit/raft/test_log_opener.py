"""``LogOpener``: voters at start come from the log, its snapshot, or else the configuration."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.telemetry import get_logger
from kraftjbod.raft.election_ticks import no_draw
from kraftjbod.raft.log.log_store import RaftLogStore
from kraftjbod.raft.log_opener import LogOpener
from kraftjbod.raft.machine.messages import node
from kraftjbod.raft.machine.voter_set import ReplicaKey, VoterSet
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import ManualClock, open_dir
from tests.unit.raft.driver_rig import DIRECTORY, PATH
from tests.unit.raft.quorum_rig import directory_of

KEYS = {i: ReplicaKey(BrokerId(i), directory_of(i)) for i in (1, 2)}
NAMED = VoterSet.of_keys(KEYS.values())
ONE, THREE = VoterSet.of_keys([node(1)]), VoterSet.of_keys(map(node, (1, 2, 3)))


async def _opened(memory: MemVfs, voters: VoterSet, *, named: VoterSet | None = None) -> VoterSet:
    """Open the log and return its voters.

    :param named: voters of a snapshot that is made afterwards.
    """
    log_dir, clock = open_dir(memory, PATH, clock=ManualClock()), ManualClock()
    store = RaftLogStore(vfs=memory, directory=DIRECTORY, segment_bytes=500, retained_entries=0)
    opener = LogOpener(
        log_dir=log_dir,
        store=store,
        clock=clock,
        key=KEYS[1],
        voters=voters,
        first_payload_of_term=b"",
        draw_below=no_draw,
        retry_interval_ms=1,
        log=get_logger(),
    )
    try:
        found = opener.machine(await opener.open(None)).log.voters
        if named is not None:
            part = store.begin_snapshot(5, 0, named.encode())
            store.install_snapshot(part.finish(), replaces_log=True)
        return found
    finally:
        await opener.stop()
        log_dir.close()


async def test_log_opener_prefers_the_voters_of_a_snapshot_to_the_configuration(
    memory: MemVfs,
) -> None:
    assert await _opened(memory, THREE, named=NAMED) == THREE
    assert set(await _opened(memory, ONE)) == set(NAMED), "even if the files name others now"


async def test_log_opener_refuses_other_voters_of_a_static_quorum(memory: MemVfs) -> None:
    assert await _opened(memory, THREE) == THREE
    with pytest.raises(StartupError, match="another set of voters"):
        await _opened(memory, ONE)
