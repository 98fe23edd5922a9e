"""A leader that is cut off knows that it may be none any more, before its time-out says so."""

from __future__ import annotations

from kraftjbod.raft.leader_check import is_followed
from tests.unit.raft.quorum_rig import Net, until


async def test_a_leader_is_followed_until_it_is_cut_off(net: Net) -> None:
    leader = await net.leader()
    follower = next(n for n in net.nodes.values() if n is not leader)
    assert not await is_followed(follower.driver.core)
    await leader.propose(b"a")
    # Whoever has just begun to lead may have been slow to be heard.
    while not await is_followed(leader.driver.core):
        leader = await net.leader()
    net.cut.add(leader.node_id)
    assert not await is_followed(leader.driver.core)
    net.cut.clear()
    again = await net.leader()
    await until(lambda: all(n.payloads == [b"a"] for n in net.nodes.values()))
    assert again.driver.core.leadership is not None
