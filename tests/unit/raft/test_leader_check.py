"""``is_followed``: an isolated leader detects its isolation before its election timeout."""

from __future__ import annotations

from kraftjbod.raft.leader_check import is_followed
from tests.unit.raft.quorum_rig import Net, until


async def test_is_followed_is_true_until_the_leader_is_isolated(net: Net) -> None:
    leader = await net.leader()
    follower = next(n for n in net.nodes.values() if n is not leader)
    assert not await is_followed(follower.driver.core)
    await leader.propose(b"a")
    # A new leader may have been too slow for the others, and have been replaced.
    while not await is_followed(leader.driver.core):
        leader = await net.leader()
    net.cut.add(leader.node_id)
    assert not await is_followed(leader.driver.core)
    net.cut.clear()
    again = await net.leader()
    await until(lambda: all(n.payloads == [b"a"] for n in net.nodes.values()))
    assert again.driver.core.leadership is not None
