"""``ClusterWatch`` and victims: leaders by directory, and changes of leaders."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.cli.clients.cluster_client import (
    BrokerNode,
    ClusterClient,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from kraftjbod.core.errors import ErrorCode, StartupError
from kraftjbod.core.ids import DirectoryId
from kraftjbod.gameday.faults.cluster_watch import (
    ClusterWatch,
    choose_victim,
    is_in_sync,
    victims,
    wait_in_sync,
)
from tests.unit.broker.gates import until
from tests.unit.cli.mini_broker import BROKER_ID, DIRECTORY_ID, mini_broker


def metadata(leader: int, isr: tuple[int, ...]) -> ClusterMetadata:
    partition = PartitionMetadata(
        partition=0, leader=leader, leader_epoch=0, replicas=(1, 2), isr=isr, offline_replicas=()
    )
    topic = TopicMetadata(
        name="t", topic_id=b"", is_internal=False, error_code=0, partitions={0: partition}
    )
    nodes = {1: BrokerNode(node_id=1, host="h", port=1)}
    return ClusterMetadata(brokers=nodes, topics={"t": topic})


async def test_choose_victim_returns_a_directory_with_the_partitions_that_it_leads() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t", 3)
        broker.create("other", 1)
        victim = await choose_victim(client, "t")
        assert (victim.broker_id, str(victim.path)) == (BROKER_ID, "/d1")
        assert victim.led == {0, 1, 2}
        assert victim.directory_id == DirectoryId(DIRECTORY_ID)
        [of_all] = await victims(client, None)
        assert (of_all.led, of_all.replicas) == (frozenset(), 4)


async def test_wait_in_sync_times_out_with_error() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        with pytest.raises(StartupError, match="not in sync"):
            await wait_in_sync(client, "t", timeout_s=0.01)


def test_is_in_sync_requires_all_replicas() -> None:
    assert is_in_sync(metadata(1, (2, 1)), "t")
    assert not is_in_sync(metadata(1, (1,)), "t")


async def test_cluster_watch_notes_leader_changes() -> None:
    async with mini_broker() as broker:
        broker.create("t")
        watch = ClusterWatch(broker.address, "t")
        watching = asyncio.create_task(watch.run_watch())
        await until(lambda: watch.leaders == {0: BROKER_ID})
        broker.fail_next["Metadata"].append(ErrorCode.LEADER_NOT_AVAILABLE)
        await until(lambda: len(watch.changes) == 2)
        assert [change.leader for change in watch.changes] == [-1, BROKER_ID]
        assert watch.leaders == {0: BROKER_ID}
        watching.cancel()


async def test_cluster_watch_reports_trouble_and_retries() -> None:
    async with mini_broker() as broker:
        broker.create("t")
        watch = ClusterWatch(broker.address, "gone")
        watching = asyncio.create_task(watch.run_watch())
        while watch.trouble is None:
            await asyncio.sleep(0.01)
        assert "gone" in watch.trouble
        broker.create("gone")
        while watch.trouble is not None:
            await asyncio.sleep(0.01)
        assert watch.leaders == {0: BROKER_ID}
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
