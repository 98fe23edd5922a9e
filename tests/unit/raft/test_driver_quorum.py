"""``RaftDriver`` in a quorum of three voters."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from errno import ENOSPC

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import NotControllerError, RequestTimedOutError
from kraftjbod.core.ids import BrokerId
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.raft.machine.messages import Append, Entry, SnapshotId, SnapshotSlice
from kraftjbod.raft.machine.voter_set import ReplicaKey, Voter, VoterSet
from kraftjbod.storage.vfs import OpenMode, Space
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import format_dir
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.raft.quorum_rig import IDS, PATH, Net, Node, directory_of, until


async def test_raft_driver_quorum_elects_a_leader_and_replicates_proposals(net: Net) -> None:
    leader = await net.leader()
    await leader.propose(b"a", b"b", b"c")
    assert leader.payloads == [b"a", b"b", b"c"]
    await until(lambda: all(n.payloads == leader.payloads for n in net.nodes.values()))
    follower = next(n for n in net.nodes.values() if n is not leader)
    with pytest.raises(NotControllerError, match=f"node {leader.node_id} leads"):
        follower.driver.propose(b"d")


async def test_raft_driver_isolated_leader_drops_uncommitted_entries(net: Net) -> None:
    old = await net.leader()
    await old.propose(b"a")
    net.cut.add(old.node_id)
    lost = old.driver.propose(b"lost")
    waits = asyncio.create_task(old.driver.wait_for(99, 60_000))
    with capture_logs() as events, pytest.raises(NotControllerError):
        await lost.committed
    assert "raft_leadership_lost" in {event["event"] for event in events}
    await waits
    assert (old.lost, old.resets) == (1, 0), "the others may have it yet"
    new = await net.leader(but=old.node_id)
    await new.propose(b"b")
    net.cut.clear()
    await until(lambda: old.payloads == [b"a", b"b"])
    assert old.resets == 1
    assert new.driver.leads, "a voter that returns starts no election"


async def test_raft_driver_reelected_leader_commits_its_uncommitted_entries(net: Net) -> None:
    """No other entry replaced the uncommitted one, so the listener's state is not reloaded."""
    old = await net.leader()
    away, other = (n for n in net.nodes.values() if n is not old)
    net.cut |= set(IDS)
    maybe = old.driver.propose(b"maybe")
    with capture_logs(), pytest.raises(NotControllerError):
        await maybe.committed
    net.cut -= {old.node_id, other.node_id}
    await until(lambda: old.driver.leads)
    await old.propose(b"b")
    net.cut.clear()
    await until(lambda: away.payloads == old.payloads == [b"maybe", b"b"])
    assert (old.lost, old.resets) == (1, 0)


async def test_raft_driver_leader_with_a_hung_disk_resigns(net: Net) -> None:
    old = await net.leader()
    old.vfs.inject(Fault(effect=DiskFault.HANG, kinds=frozenset({"sync"})))
    with capture_logs() as events:
        with pytest.raises(NotControllerError):
            await old.propose(b"maybe")
        new = await net.leader(but=old.node_id)
    assert {"raft_leader_resigns", "raft_leadership_lost"} <= {e["event"] for e in events}
    assert old.log_dir.state is LogDirState.STALLED
    await new.propose(b"b")
    old.vfs.release()
    await until(lambda: old.payloads == new.payloads)


async def test_raft_driver_voter_rejects_a_leader_without_committed_entries(
    net: Net,
) -> None:
    """The two other voters start with empty disks under the same names."""
    leader = await net.leader()
    await leader.propose(b"a", b"b", b"c")
    await until(lambda: all(n.payloads == leader.payloads for n in net.nodes.values()))
    keeper, *others = sorted(net.nodes.values(), key=lambda n: n is leader)
    with capture_logs() as events:
        net.cut.add(keeper.node_id)
        for node in others:
            await node.stop()
        for node in others:
            empty = MemVfs()
            format_dir(empty, PATH, 1)
            await net.start(node.node_id, FaultVfs(empty))
        leader = await net.leader(but=keeper.node_id)
        while leader.driver.term <= keeper.driver.term:  # Otherwise it would be asked to resign.
            leader.driver.resign()
            leader = await net.leader(but=leader.node_id)
        net.cut.clear()
        await until(lambda: "raft_leader_lacks_committed" in {e["event"] for e in events})
        # The leader's log is longer than the voter's by now, and is still rejected.
        await leader.propose(*(b"%d" % n for n in range(9)))
    assert keeper.payloads == [b"a", b"b", b"c"]


async def test_raft_driver_restarted_voter_refuses_snapshot_without_committed_entries(
    net: Net,
) -> None:
    """Two of three voters return with older copies of their disks, and write a snapshot later.

    The third voter was restarted after a crash; only its disk says which entries were committed.
    """
    leader = await net.leader()
    await _propose_to_all(net, b"a")
    older = {i: n.vfs.inner.crash_clone(i) for i, n in net.nodes.items()}
    await _propose_to_all(net, b"b", b"c", b"d")
    keeper, *others = sorted(net.nodes.values(), key=lambda n: n is leader)
    net.cut.add(keeper.node_id)
    for one in others:
        await one.stop()
        await net.start(one.node_id, FaultVfs(older[one.node_id]))
    leader = await net.leader(but=keeper.node_id)
    while leader.driver.term <= keeper.driver.term:
        leader.driver.resign()
        leader = await net.leader(but=leader.node_id)
    await leader.propose(*(b"%d" % n for n in range(9)))
    await leader.compact()
    with capture_logs() as events:
        crashed = keeper.vfs.inner.crash_clone(1)
        await keeper.stop()
        keeper = await net.start(keeper.node_id, FaultVfs(crashed))
        refused = "raft_leader_lacks_committed"
        await until(lambda: refused in {e["event"] for e in events} or b"8" in keeper.payloads)
        await leader.propose(b"more")
        await until(lambda: keeper.payloads)
    # Its disk does not say whether the last entry was committed.
    assert keeper.payloads == [b"a", b"b", b"c"]
    assert keeper.resets == 0


async def test_raft_driver_entry_restored_during_a_hung_write_is_applied_as_committed(
    net: Net,
) -> None:
    """A hung write of an entry is followed by a queued write of another one, then the first again.

    The end of the hung write marked the log as durable, and the other entry was applied.
    """
    leader = await net.leader()
    await leader.propose(b"a")
    late, other = (n for n in net.nodes.values() if n is not leader)
    await until(lambda: late.payloads == [b"a"])
    net.cut.add(late.node_id)
    hangs = {"sync": threading.Event(), "truncate": threading.Event()}
    seen: Counter[str] = Counter()

    def hang(kind: str, path: str) -> None:
        """Hang in the first write, and in the third, which is the second one that truncates."""
        if path.endswith(".log") and kind in hangs:
            seen[kind] += 1
            if seen[kind] == (1 if kind == "sync" else 2):
                hangs[kind].wait()

    late.vfs.on_operation = hang
    core, end = late.driver.core, late.offset
    log, term = core.log, core.term

    def append(sender: Node, in_term: int, *entries: Entry, committed: int = end) -> Append:
        return Append(
            sender=ReplicaKey(BrokerId(sender.node_id)),
            to=core.key,
            term=in_term,
            previous_offset=end,
            previous_term=term,
            entries=entries,
            committed_offset=committed,
        )

    restored = (Entry(end + 1, term, b"x"), Entry(end + 2, term + 2, b"z"))
    late.driver.receive(append(leader, term, restored[0]))
    await until(lambda: seen["sync"])
    late.driver.receive(append(other, term + 1, Entry(end + 1, term + 1, b"y")))
    await asyncio.sleep(0)
    late.driver.receive(append(leader, term + 2, *restored))
    hangs["sync"].set()
    await until(lambda: seen["truncate"] == 2)
    late.driver.receive(append(leader, term + 2, *restored, committed=end + 2))
    # The disk hangs, so the driver can only apply entries within these iterations.
    for _ in range(20):
        await asyncio.sleep(0)
    assert (log.durable_offset, late.payloads) == (end, [b"a"])
    hangs["truncate"].set()
    await until(lambda: late.offset == end + 2)
    assert late.payloads == [b"a", b"x", b"z"]


async def test_raft_driver_stopping_leader_transfers_its_leadership_at_once(net: Net) -> None:
    old = await net.leader()
    old.driver.release_waits()
    assert not old.driver.leads
    new = await net.leader(but=old.node_id)
    assert new.driver.term == old.led[-1] + 1


async def test_raft_driver_installs_a_snapshot_received_directly_after_entries(net: Net) -> None:
    leader = await net.leader()
    await leader.propose(b"a")
    late = next(n for n in net.nodes.values() if n is not leader)
    await until(lambda: late.payloads == [b"a"])
    net.cut.add(late.node_id)
    before = leader.offset
    await leader.propose(b"b", b"c")
    await leader.snapshot()
    core = leader.driver.core
    entry = (await leader.driver.committed.read(before + 1, 1))[0]
    way = {"sender": core.key, "to": late.driver.core.key, "term": core.term}
    append = Append(
        **way,
        previous_offset=before,
        previous_term=core.term,
        entries=(entry,),
        committed_offset=before,
    )
    snapshot = SnapshotId(leader.offset, core.term)
    late.driver.receive(append)
    late.driver.receive(
        SnapshotSlice(**way, snapshot=snapshot, position=0, data=b"a,b,c", is_last=True)
    )
    failed = asyncio.create_task(late.driver.wait_failed())
    await until(lambda: failed.done() or late.payloads == leader.payloads)
    assert not failed.done()
    failed.cancel()
    net.cut.clear()
    await leader.propose(b"d")
    await until(lambda: late.payloads == leader.payloads)


async def test_raft_driver_publishes_no_entry_while_a_snapshot_replaces_the_log(net: Net) -> None:
    """The listener's state may be incomplete, because a reload is running."""
    leader = await net.leader()
    await leader.propose(b"a", b"b")
    late = next(n for n in net.nodes.values() if n is not leader)
    await until(lambda: late.payloads == [b"a", b"b"])
    net.cut.add(late.node_id)
    driver, committed = late.driver, late.driver.committed
    committed.reload(late)
    await until(lambda: late.resets)
    await driver._leave_log()
    entry = Entry(committed.offset + 1, driver.term, b"c")
    driver.core.log.append_entries([entry])
    committed.cache.add(entry)
    given: list[int] = []
    assert not committed.publish(late, entry.offset, given.append)
    committed.reload(late)
    await until(lambda: not committed.is_reloading)
    assert committed.publish(late, entry.offset, given.append)
    assert late.payloads == [b"a", b"b", b"c"]


async def test_raft_driver_static_quorum_gets_named_voters_and_changes_them(net: Net) -> None:
    """The quorum names its static voters, removes one of them, and adds it again."""
    leader = await net.leader()
    named = VoterSet.of_keys(ReplicaKey(BrokerId(i), directory_of(i)) for i in IDS)
    before, change, after = (
        leader.driver.propose(b"a"),
        leader.driver.change_voters(named),
        leader.driver.propose(b"b"),
    )
    await asyncio.gather(before.committed, change.committed, after.committed)
    assert leader.driver.leads, "it is the same one under another name"
    await until(lambda: all(n.payloads == [b"a", b"b"] for n in net.nodes.values()))
    with pytest.raises(RequestTimedOutError, match="not caught up"):
        leader.driver.change_voters(named.with_voter(Voter(ReplicaKey(BrokerId(4)))))
    # A leader that removes itself gets a result, and another voter is elected.
    itself = ReplicaKey(BrokerId(leader.node_id), directory_of(leader.node_id))
    await leader.driver.change_voters(named.without(itself)).committed
    new = await net.leader(but=leader.node_id)
    await new.propose(b"c")
    await until(lambda: leader.driver.core.leader is not None)
    await until(lambda: leader.payloads == [b"a", b"b", b"c"])
    await until(lambda: itself in new.driver.core.leadership.peers)
    await until(lambda: new.driver.core.leadership.peers[itself].caught_up_tick is not None)
    await new.driver.change_voters(named).committed
    assert len(new.driver.voters) == 3
    # The snapshot contains the voters, for replicas that receive it instead of the log.
    await new.snapshot()
    found = await new.driver.committed.newest_snapshot()
    assert found is not None
    assert VoterSet.decode(found.voters) == named


async def test_raft_driver_full_disk_delays_noting_the_voters_of_an_older_log(net: Net) -> None:
    """The node has not noted its voters yet, and has no space for the note."""
    leader = await net.leader()
    await leader.propose(b"a")
    node = next(n for n in net.nodes.values() if n is not leader)
    await until(lambda: node.payloads == [b"a"])
    await node.stop()
    path = f"{PATH}/__cluster_metadata-0/static-voters"
    node.vfs.unlink_if_exists(path)
    node.vfs.open(f"{PATH}/__cluster_metadata-0/voter-directories", OpenMode.CREATE).close()
    node.vfs.inject(Fault(errno=ENOSPC, path="*static-voters*", kinds=frozenset({"write_at"})))
    node.vfs.space_override = Space(total_bytes=1 << 30, usable_bytes=0, free_inodes=9)
    await net.start(node.node_id, node.vfs)
    await until(lambda: net.nodes[node.node_id].payloads == [b"a"])
    assert not node.vfs.exists(path)


async def test_raft_driver_voter_with_a_damaged_tail_is_restored_and_votes_again(net: Net) -> None:
    leader = await net.leader()
    await _propose_to_all(net, b"one", b"two", b"three")
    node = next(n for n in net.nodes.values() if n is not leader)
    await node.stop()
    _rot(node.vfs, b"two")
    with capture_logs() as events:
        again = await net.start(node.node_id, node.vfs)
        assert again.driver.core.is_mute
        await until(lambda: not again.driver.core.is_mute)
        await until(lambda: again.payloads == [b"one", b"two", b"three"])
    names = [event["event"] for event in events]
    assert {"metadata_log_is_short", "metadata_log_is_whole"} <= set(names)
    # The undamaged follower is isolated, so the restored voter is needed for a majority.
    other = next(n for n in net.nodes.values() if n.node_id not in (node.node_id, leader.node_id))
    net.cut.add(other.node_id)
    await (await net.leader(but=other.node_id)).propose(b"four")
    await until(lambda: again.payloads == [b"one", b"two", b"three", b"four"])


async def test_raft_driver_two_damaged_voters_elect_no_leader(net: Net) -> None:
    """Entries that both had acknowledged may be lost, so the quorum waits for an operator."""
    leader = await net.leader()
    await _propose_to_all(net, b"one", b"two", b"three")
    damaged = [n for n in net.nodes.values() if n is not leader]
    net.cut.add(leader.node_id)
    for node in damaged:
        await node.stop()
        _rot(node.vfs, b"two")
    for node in damaged:
        await net.start(node.node_id, node.vfs)
    net.cut.clear()
    await until(lambda: not leader.driver.leads)
    for _ in range(3):
        leader.driver.core.campaign()
        leader.driver.ask_for_log(())
        await asyncio.sleep(0.05)
    assert not any(n.driver.leads for n in net.nodes.values())
    assert all(net.nodes[n.node_id].driver.core.is_mute for n in damaged)


async def _propose_to_all(net: Net, *payloads: bytes) -> None:
    """Append each payload on all disks: a damaged last append looks like an unfinished write."""
    for payload in payloads:
        await (await net.leader()).propose(payload)
        await until(lambda p=payload: all(n.payloads[-1:] == [p] for n in net.nodes.values()))


def _rot(vfs: FaultVfs, payload: bytes) -> None:
    path = f"{PATH}/__cluster_metadata-0/{0:020d}.log"
    file = vfs.open(path, OpenMode.READ_WRITE)
    at = bytes(file.read_at(0, file.size())).rindex(payload)
    file.write_at(at, [b"?"])
    file.sync()
    file.close()
