"""DescribeQuorum, AddRaftVoter and RemoveRaftVoter at a controller that is the only voter at
first."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.core.errors import ErrorCode, OperatingError, RequestTimedOutError
from kraftjbod.core.ids import BrokerId
from kraftjbod.protocol import rpc_messages as m
from kraftjbod.protocol.rpc_quorum_messages import (
    AddRaftVoterRequestRpc,
    DescribeQuorumRequestRpc,
    DescribeQuorumResponseRpc,
    FetchMetadataRequest,
    RemoveRaftVoterRequestRpc,
)
from kraftjbod.raft.machine.messages import AppendReply, Observe
from kraftjbod.raft.machine.voter_set import ReplicaKey, Voter, VoterSet
from tests.faults.vfs_fault import FaultVfs
from tests.golden.transcript import directory
from tests.unit.controller.conftest import ONE, TWO, Node

EIGHT = ReplicaKey(BrokerId(8), directory("n"))
ADD_EIGHT = AddRaftVoterRequestRpc(
    voter_id=EIGHT.node_id, directory_id=directory("n"), endpoints=("C://c8:9090",)
)


async def test_describe_quorum_reports_log_end_and_observers(node: Node) -> None:
    controller = node.controller
    end = controller.driver.committed_offset + 1
    await controller.handle(
        FetchMetadataRequest(broker_id=BrokerId(1), fetch_offset=0, max_wait_ms=0, max_bytes=1000)
    )
    found = await controller.handle(DescribeQuorumRequestRpc())
    assert isinstance(found, DescribeQuorumResponseRpc)
    assert (found.leader_id, found.node_id, found.high_watermark) == (9, 9, end)
    (voter,), (observer,) = found.voters, found.observers
    assert (voter.node_id, voter.log_end_offset) == (9, end)
    assert voter.last_fetch_ms == voter.last_caught_up_ms > 0
    assert (observer.node_id, observer.log_end_offset) == (1, 0)
    assert observer.last_caught_up_ms == -1


async def test_decisions_and_voter_changes_wait_for_commit_of_a_voter_change(
    vfs: FaultVfs,
) -> None:
    """The entry of the change holds no record, but is part of the log that later decisions depend
    on."""
    node = Node(vfs)
    await node.controller.start()
    driver = node.controller.driver

    def acknowledge() -> None:
        core = driver.core
        driver.receive(
            AppendReply(sender=EIGHT, to=core.key, term=core.term, durable_offset=core.last_offset)
        )

    with pytest.raises(OperatingError, match=r"raise kraft\.version"):
        await node.controller.handle(ADD_EIGHT)
    name = m.FeatureUpdate(name="kraft.version", level=1, upgrade_type=1)
    name_voters = m.UpdateFeaturesRequestRpc(updates=(name,))
    await asyncio.gather(
        node.controller.handle(name_voters),
        node.register(),
        node.register("b", broker_id=TWO),
    )
    with pytest.raises(RequestTimedOutError, match="not caught up"):
        await node.controller.handle(ADD_EIGHT)
    driver.receive(Observe(sender=EIGHT, to=driver.core.key, term=0))
    acknowledge()
    await node.controller.handle(ADD_EIGHT.model_copy(update={"ack_when_committed": False}))
    assert len(driver.voters) == 2
    # From now on, the second voter must acknowledge each entry.
    end = driver.next_offset
    waiting = asyncio.create_task(node.register("c", broker_id=BrokerId(3)))
    named = asyncio.create_task(node.controller.handle(name_voters))
    remove = RemoveRaftVoterRequestRpc(voter_id=BrokerId(9), directory_id=directory("m"))
    with pytest.raises(RequestTimedOutError, match="another change") as refused:
        await node.controller.handle(remove)
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
    while driver.next_offset == end:
        await asyncio.sleep(0)
    assert not waiting.done()
    assert not named.done(), "the voters are named, but that is not committed"
    acknowledge()
    assert await waiting > 0
    await named
    assert set(node.managers.state.brokers) == {ONE, TWO, BrokerId(3)}
    # The only leader may be removed: it answers with the commit, and then resigns.
    removing = asyncio.create_task(node.controller.handle(remove))
    while driver.core.is_voter:
        await asyncio.sleep(0)
    acknowledge()
    await removing
    assert not driver.leads
    # The other voter is permanently lost with the records that only it held; this one forks the
    # log.
    await node.controller.stop()
    node.log_dir.close()
    mine = ReplicaKey(BrokerId(9), directory("m"))
    for fork in (VoterSet((Voter(mine, ("C://c9:9090",)),)), None):
        again = Node(vfs, random_byte=b"\x77")
        await again.controller.start(fork=fork)
        assert set(again.driver.voters) == {mine}
        assert again.driver.leads
        await again.register("d", broker_id=BrokerId(4))
        assert set(again.managers.state.brokers) >= {ONE, TWO, BrokerId(3)}
        await again.controller.stop()
        again.log_dir.close()
