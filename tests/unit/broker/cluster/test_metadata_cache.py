"""``MetadataCache`` queries of request handlers and fetchers."""

from __future__ import annotations

import dataclasses

import pytest

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.ids import (
    LOST_DIR,
    NO_LEADER,
    UNASSIGNED_DIR,
    BrokerEpoch,
    BrokerId,
    DirectoryId,
    LeaderEpoch,
    PartitionEpoch,
    Uuid,
)
from kraftjbod.metadata.records import Listener
from kraftjbod.metadata.registrations import BrokerRegistration, PartitionRegistration

DIR_A = DirectoryId(b"a" * 16)
DIR_B = DirectoryId(b"b" * 16)
DIR_X = DirectoryId(b"x" * 16)


def broker(broker_id: int, *dirs: DirectoryId, fenced: bool = False) -> BrokerRegistration:
    return BrokerRegistration(
        broker_id=BrokerId(broker_id),
        epoch=BrokerEpoch(broker_id),
        incarnation_id=Uuid(bytes([broker_id]) * 16),
        listeners=(Listener(name="PLAINTEXT", host="localhost", port=9000 + broker_id),),
        rack=None,
        fenced=fenced,
        in_controlled_shutdown=False,
        log_dirs=dirs,
    )


def partition(*directories: DirectoryId, leader: int = 1) -> PartitionRegistration:
    brokers = tuple(BrokerId(n + 1) for n in range(len(directories)))
    return PartitionRegistration(
        replicas=brokers,
        directories=directories,
        isr=brokers,
        leader=BrokerId(leader),
        leader_epoch=LeaderEpoch(0),
        partition_epoch=PartitionEpoch(0),
        leader_recovering=False,
    )


@pytest.fixture
def cache() -> MetadataCache:
    cache = MetadataCache(cluster_id="c")
    for registered in (broker(1, DIR_A, DIR_B), broker(2, DIR_A), broker(3, DIR_B, fenced=True)):
        cache.state.brokers[registered.broker_id] = registered
    return cache


def test_alive_brokers_are_unfenced_and_sorted(cache: MetadataCache) -> None:
    assert [registered.broker_id for registered in cache.alive_brokers()] == [1, 2]


def test_endpoint_exists_only_for_live_brokers_with_that_listener(cache: MetadataCache) -> None:
    reached = cache.endpoint(BrokerId(1), "PLAINTEXT")
    assert reached is not None and reached.port == 9001
    assert cache.endpoint(BrokerId(1), "INTERNAL") is None
    assert cache.endpoint(BrokerId(3), "PLAINTEXT") is None
    assert cache.endpoint(BrokerId(9), "PLAINTEXT") is None


def test_leader_for_unreachable_leader_is_no_leader(cache: MetadataCache) -> None:
    assert cache.leader_for(partition(DIR_A, DIR_A), "PLAINTEXT") == 1
    assert cache.leader_for(partition(DIR_A, DIR_A), "INTERNAL") == NO_LEADER
    assert cache.leader_for(partition(DIR_A, DIR_A, leader=-1), "PLAINTEXT") == NO_LEADER


@pytest.mark.parametrize(
    ("directories", "offline"),
    [
        pytest.param((DIR_A, DIR_A), [], id="all online"),
        pytest.param((DIR_X, DIR_A), [1], id="directory not registered"),
        pytest.param((LOST_DIR, DIR_A), [1], id="lost"),
        pytest.param((UNASSIGNED_DIR, UNASSIGNED_DIR), [], id="unassigned counts as online"),
        pytest.param((DIR_A, DIR_A, DIR_B), [3], id="broker fenced"),
    ],
)
def test_offline_replicas_are_those_in_lost_directories_and_of_fenced_brokers(
    cache: MetadataCache, directories: tuple[DirectoryId, ...], offline: list[int]
) -> None:
    """KIP-858, "Metadata caching"."""
    assert cache.offline_replicas(partition(*directories), "PLAINTEXT") == offline


def test_offline_replicas_on_unknown_listener_are_all_replicas(cache: MetadataCache) -> None:
    assert cache.offline_replicas(partition(DIR_A, DIR_A), "INTERNAL") == [1, 2]


def test_offline_replicas_include_a_failed_directory_immediately(cache: MetadataCache) -> None:
    cache.state.brokers[BrokerId(1)] = dataclasses.replace(broker(1), log_dirs=(DIR_B,))
    assert cache.offline_replicas(partition(DIR_A, DIR_A), "PLAINTEXT") == [1]
