"""``ReplicaWork``: snapshots and entries that a quorum transfers in the background."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from kraftjbod.raft.machine.core import RaftCore
from kraftjbod.raft.machine.messages import SnapshotId, SnapshotSlice
from kraftjbod.storage.vfs import OpenMode
from tests.faults.vfs_fault import FaultVfs
from tests.unit.raft.quorum_rig import PATH, Net, Node, until


async def test_replica_work_follower_behind_the_log_gets_a_snapshot_and_keeps_it(
    net: Net,
) -> None:
    leader = await net.leader()
    away = next(n for n in net.nodes.values() if n is not leader)
    await leader.propose(b"a")
    await until(lambda: away.payloads == [b"a"])
    await away.stop()
    await leader.propose(*(b"%d" % number for number in range(60)))
    await leader.compact()
    await leader.propose(b"after")
    back = await net.start(away.node_id, away.vfs)
    await until(lambda: back.payloads == leader.payloads)
    assert back.resets == 1
    await back.stop()
    again = await net.start(away.node_id, away.vfs)
    await until(lambda: again.payloads == leader.payloads)
    assert again.resets == 0


async def test_replica_work_follower_catches_up_while_the_leader_replaces_snapshots(
    net: Net,
) -> None:
    """When a slice arrives, the leader has already dropped the log up to a later snapshot.

    On a busy machine another node may become leader meanwhile. Its log has all entries, so it sends
    no snapshot.
    """
    leader, away = await _leader_and_lagging_node(net)

    async def replace_snapshots() -> None:
        for _ in range(3):
            current = await net.propose(b"later")
            await current.snapshot()

    net.before_slice = replace_snapshots
    back = await net.start(away.node_id, away.vfs)
    await until(lambda: back.payloads == leader.payloads or back.resets > 3)
    assert back.payloads == leader.payloads
    assert back.resets == 1 or leader.lost


async def test_replica_work_follower_that_lags_behind_a_snapshot_gets_entries(net: Net) -> None:
    leader = await net.leader()
    away = next(n for n in net.nodes.values() if n is not leader)
    await leader.snapshot()
    await away.stop()
    await leader.propose(b"a", b"b")
    await leader.snapshot()
    back = await net.start(away.node_id, away.vfs)
    await until(lambda: back.payloads == leader.payloads)
    assert back.resets == 0


async def _leader_and_lagging_node(net: Net) -> tuple[Node, Node]:
    """Return the leader, and a stopped node that needs the leader's snapshot."""
    leader = await net.leader()
    away = next(n for n in net.nodes.values() if n is not leader)
    await leader.propose(b"a")
    await until(lambda: away.payloads == [b"a"])
    await away.stop()
    await leader.propose(*(b"%d" % number for number in range(60)))
    await leader.compact()
    return leader, away


def _rot_snapshot(vfs: FaultVfs, payload: bytes) -> None:
    directory = f"{PATH}/__cluster_metadata-0"
    name = max(i.name for i in vfs.list_dir(directory) if i.name.endswith(".checkpoint"))
    file = vfs.inner.open(f"{directory}/{name}", OpenMode.READ)
    file.rot(bytes(file.read_at(0, file.size())).index(payload))


async def test_replica_work_damaged_snapshot_is_not_sent_and_is_made_again(net: Net) -> None:
    """A follower used to install the changed state with a valid CRC."""
    leader, away = await _leader_and_lagging_node(net)
    _rot_snapshot(leader.vfs, b",42,")
    with capture_logs() as events:
        back = await net.start(away.node_id, away.vfs)
        await until(lambda: len(back.payloads) == len(leader.payloads))
    assert back.payloads == leader.payloads
    assert "metadata_snapshot_damaged" in {event["event"] for event in events}


async def test_committed_log_reload_skips_a_damaged_snapshot(net: Net) -> None:
    leader, _ = await _leader_and_lagging_node(net)
    expected = list(leader.payloads)
    _rot_snapshot(leader.vfs, b",42,")
    with capture_logs() as events:
        leader.driver.committed.reload(leader)
        await until(lambda: leader.resets)
        await until(lambda: not leader.driver.committed.is_reloading)
    assert leader.payloads == expected
    names = [event["event"] for event in events]
    assert names.index("metadata_snapshot_damaged") < names.index("metadata_reloaded")


@pytest.mark.parametrize("crc", ["other", None])
async def test_replica_work_received_snapshot_with_a_wrong_crc_is_refused_and_without_one_installed(
    net: Net, crc: str | None
) -> None:
    """None comes from older software, and is accepted as before."""
    leader = await net.leader()
    await leader.propose(b"a")
    late = next(n for n in net.nodes.values() if n is not leader)
    await until(lambda: late.payloads == [b"a"])
    net.cut.add(late.node_id)
    core: RaftCore = late.driver.core
    with capture_logs() as events:
        late.driver.receive(
            SnapshotSlice(
                sender=leader.driver.core.key,
                to=core.key,
                term=core.term,
                snapshot=SnapshotId(late.offset + 9, core.term),
                position=0,
                data=b"a,b",
                is_last=True,
                crc=None if crc is None else 1,
            )
        )
        ends = {"metadata_snapshot_failed", "metadata_reloaded"}
        await until(lambda: ends & {event["event"] for event in events})
    assert late.payloads == ([b"a"] if crc else [b"a", b"b"])


@pytest.mark.parametrize("ends_by", ["commit", "stop"])
async def test_replica_work_removes_a_part_of_a_snapshot_that_entries_replaced(
    net: Net, ends_by: str
) -> None:
    """A leader that has the entries succeeds the one that began to send a snapshot."""
    leader = await net.leader()
    late = next(n for n in net.nodes.values() if n is not leader)
    await leader.propose(b"a")
    await until(lambda: late.payloads == [b"a"])
    core: RaftCore = late.driver.core
    late.driver.receive(
        SnapshotSlice(
            sender=leader.driver.core.key,
            to=core.key,
            term=core.term,
            snapshot=SnapshotId(late.offset + 2, core.term),
            position=0,
            data=b"a,b",
            is_last=False,
        )
    )
    directory = f"{PATH}/__cluster_metadata-0"

    def parts() -> list[str]:
        return [i.name for i in late.vfs.list_dir(directory) if i.name.endswith(".part")]

    await until(lambda: parts() != [])
    if ends_by == "commit":
        await leader.propose(b"b", b"c", b"d")
        await until(lambda: late.payloads == leader.payloads)
    else:
        await late.stop()
    await until(lambda: parts() == [])
