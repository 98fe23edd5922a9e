"""What a quorum of several writes and reads beside its messages."""

from __future__ import annotations

from tests.unit.raft.quorum_rig import Net, until


async def test_whoever_was_away_is_given_a_snapshot_and_a_restart_forgets_nothing(
    net: Net,
) -> None:
    leader = await net.leader()
    away = next(n for n in net.nodes.values() if n is not leader)
    await leader.propose(b"a")
    await until(lambda: away.payloads == [b"a"])
    await away.stop()
    await leader.propose(*(b"%d" % number for number in range(60)))
    await leader.snapshot()
    await leader.propose(b"after")
    back = await net.start(away.node_id, away.vfs)
    await until(lambda: back.payloads == leader.payloads)
    assert back.resets == 1
    await back.stop()
    again = await net.start(away.node_id, away.vfs)
    await until(lambda: again.payloads == leader.payloads)
    assert again.resets == 0
