"""``StaticQuorum``: controllers introduce themselves, and report errors that end this."""

from __future__ import annotations

import asyncio
from typing import Any

from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.daemon.wiring.static_quorum import StaticQuorum
from kraftjbod.raft.log.known_voters import KnownVoters
from kraftjbod.raft.machine.voter_set import ReplicaKey, Voter, VoterSet
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir, open_dir


def voters() -> VoterSet:
    keys = [ReplicaKey(BrokerId(node), None) for node in (1, 2)]
    return VoterSet(tuple(Voter(key, (f"CONTROLLER://c{key.node_id}:9093",)) for key in keys))


async def test_unexpected_error_of_introductions_reaches_the_event_loop() -> None:
    async def introduce(_: ReplicaKey) -> bool:
        raise ZeroDivisionError

    async def ask(_: ReplicaKey) -> dict[BrokerId, DirectoryId]:
        return {}

    vfs = MemVfs()
    format_dir(vfs, "/d1", 1)
    seen: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.put_nowait(context))
    quorum = StaticQuorum(
        node_id=BrokerId(1),
        known=KnownVoters(log_dir=open_dir(vfs), directory="__cluster_metadata-0"),
        backoff=ExponentialBackoff(initial_ms=1, max_ms=1, random_unit=lambda: 0.5),
        introduce=introduce,
        ask=ask,
    )
    quorum.begin_introduction(voters)
    async with asyncio.timeout(10):
        assert isinstance((await seen.get())["exception"], ZeroDivisionError)
    await quorum.stop()
