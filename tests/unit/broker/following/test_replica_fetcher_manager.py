"""``ReplicaFetcherManager``: one fetcher per leader and directory."""

from __future__ import annotations

from tests.unit.broker.broker_rig import BrokerRig, brokers, dir_of, partition, topic


def loops(rig: BrokerRig) -> float:
    return rig.around.metrics.snapshot()["ReplicaFetcherCount"]


async def test_replica_fetcher_exists_per_leader_and_directory() -> None:
    async with brokers(3) as (_, second, _third):
        await second.follow(
            topic(),
            partition(0, replicas=(1, 2), directories=[dir_of(1, 1), dir_of(2, 1)]),
            partition(1, replicas=(1, 2), directories=[dir_of(1, 1), dir_of(2, 1)]),
            partition(2, replicas=(1, 2), directories=[dir_of(1, 1), dir_of(2, 2)]),
            partition(3, replicas=(3, 2), directories=[dir_of(3, 1), dir_of(2, 1)], leader=3),
        )
        assert loops(second) == 3


async def test_replica_moves_to_the_fetcher_of_its_new_leader_and_empty_fetcher_ends() -> None:
    async with brokers(3) as (_, second, _third):
        await second.follow(topic(), partition(replicas=(1, 2, 3)))
        assert loops(second) == 1
        second.replay(partition(replicas=(1, 2, 3), leader=3, epoch=1))
        assert loops(second) == 1
        second.replay(partition(replicas=(1, 2, 3), leader=2, epoch=2))
        assert loops(second) == 0


async def test_stop_in_ends_the_fetchers_of_a_failed_directory() -> None:
    async with brokers(2) as (_, second):
        await second.follow(
            topic(),
            partition(0, replicas=(1, 2), directories=[dir_of(1, 1), dir_of(2, 1)]),
            partition(1, replicas=(1, 2), directories=[dir_of(1, 1), dir_of(2, 2)]),
        )
        second.parts.fetchers.stop_in(second.dirs[0])
        assert loops(second) == 1
