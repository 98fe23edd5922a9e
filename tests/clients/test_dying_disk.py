"""Test of a disk failure that affects a group's coordinator and leaders of the consumed topic."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka.admin import AdminClient

from kraftjbod.broker.internal.coordinators import java_hash
from kraftjbod.testing.local_cluster import BrokerDir, LocalCluster
from kraftjbod.testing.mounts import DiskKitError
from tests.clients.conftest import Start
from tests.clients.judge import PARTITIONS, check_topic, committed
from tests.clients.programs import STAYS, Client
from tests.clients.running import Running

RECORDS = 1_000
OFFSETS = "__consumer_offsets"


@pytest.mark.scenario("loses a disk")
def test_group_with_failing_disk_loses_and_repeats_no_record(
    client: Client, cluster: LocalCluster, start: Start
) -> None:
    topic = f"loses-{client}"
    cluster.create_topic(topic, partitions=PARTITIONS)
    group, directory = find_coordinator_directory(cluster, topic)
    member = start("group", topic, group)
    member.wait_until("it owns all", lambda: len(member.owned) == PARTITIONS)
    sender = start("idempotent", topic, 0, RECORDS, 100)
    member.wait_until("it reads", lambda: len(member.numbers) > RECORDS // 10)
    with failed_disk(directory):
        sender.wait()
        member.wait_until(
            "all is read",
            lambda: len(set(member.numbers)) == RECORDS,
            explain=lambda: f"missing: {missing(sender, member)}",
        )
        member.end_input()
        member.wait()
        assert set(member.numbers) == set(range(RECORDS))
        if STAYS not in client.lacks:
            # The member was not removed from the group, so that it read each record once.
            assert [owned for owned in member.values("owns") if owned] == [list(range(PARTITIONS))]
            assert len(member.numbers) == RECORDS
        assert committed(cluster, group) == RECORDS
        check_topic(client, start, topic, [sender])
    cluster.wait_in_sync(topic)
    cluster.wait_in_sync(OFFSETS)


def missing(sender: Running, member: Running) -> list[list[int]]:
    """Return ``[partition, offset, number]`` of each sent number that the member did not read."""
    found = set(member.numbers)
    return [each for each in sender.values("sent") if each[2] not in found]


def find_coordinator_directory(cluster: LocalCluster, topic: str) -> tuple[str, BrokerDir]:
    """Return a group name and a directory.

    The directory has the leader of the group's partition of ``__consumer_offsets`` and a leader of
    ``topic``.
    """
    # The first request for a coordinator creates __consumer_offsets.
    assert committed(cluster, "nobody") == 0
    cluster.wait_in_sync(OFFSETS)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    topics = admin.list_topics(timeout=10).topics
    for group in (f"{topic}-{number}" for number in range(200)):
        index = abs(java_hash(group)) % len(topics[OFFSETS].partitions)
        leader = topics[OFFSETS].partitions[index].leader
        led = [p.id for p in topics[topic].partitions.values() if p.leader == leader]
        for each in cluster.broker(leader).dirs:
            has_leader = any((each.path / f"{topic}-{partition}").exists() for partition in led)
            if has_leader and (each.path / f"{OFFSETS}-{index}").exists():
                return group, each
    raise AssertionError("no directory leads both")


@contextmanager
def failed_disk(directory: BrokerDir) -> Iterator[None]:
    """Fail the directory's disk within the block; heal and reattach it afterwards, always."""
    try:
        directory.fail("eio")
    except DiskKitError:
        directory.fail("chmod")
    try:
        yield
    finally:
        directory.wait_state("offline")
        directory.heal()
        directory.reattach()
