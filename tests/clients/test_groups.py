"""Tests of consumer groups: committed offsets, and assignments when members join and leave."""

from __future__ import annotations

import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.clients.conftest import Start
from tests.clients.judge import PARTITIONS, check_topic, committed
from tests.clients.programs import COMMITS, Client
from tests.clients.running import Running, distinct

RECORDS = 200
ALL = list(range(PARTITIONS))


@pytest.mark.scenario("resumes")
def test_group_resumes_at_committed_offsets(
    client: Client, cluster: LocalCluster, start: Start
) -> None:
    topic = group = f"resumes-{client}"
    cluster.create_topic(topic, partitions=PARTITIONS)
    for first in (0, RECORDS):
        start("produce", topic, first, RECORDS, 0).wait()
        member = start("group", topic, group)
        member.wait_until("all is read", lambda m=member: len(m.numbers) >= RECORDS)
        member.end_input()
        member.wait()
        assert sorted(member.numbers) == list(range(first, first + RECORDS))
        assert member.values("left") == [None]
        assert committed(cluster, group) == first + RECORDS


@pytest.mark.scenario("rebalances")
def test_group_rebalance_under_load_gives_each_partition_one_owner(
    client: Client, cluster: LocalCluster, start: Start
) -> None:
    """A second member joins and the first one leaves while records are sent."""
    topic = group = f"rebalances-{client}"
    cluster.create_topic(topic, partitions=PARTITIONS)
    first = start("group", topic, group)
    first.wait_until("it owns all", lambda: first.owned == ALL)
    sender = start("produce", topic, 0, 5 * RECORDS, 200)
    second = start("group", topic, group)
    members = [first, second]

    def is_shared() -> bool:
        return all(m.owned for m in members) and sorted(first.owned + second.owned) == ALL

    first.wait_until("they share", is_shared)
    before = len(distinct(members))
    first.wait_until("more is read", lambda: len(distinct(members)) > before)
    first.end_input()
    first.wait()
    second.wait_until("it owns all", lambda: second.owned == ALL)
    sender.wait()
    second.wait_until(
        "all is read",
        lambda: (
            len(distinct(members)) == 5 * RECORDS
            if COMMITS not in client.lacks
            else committed(cluster, group) == 5 * RECORDS
        ),
        explain=lambda: f"missing: {sorted(set(range(5 * RECORDS)) - distinct(members))}",
    )
    second.end_input()
    second.wait()
    if COMMITS not in client.lacks:
        check_read(members, 5 * RECORDS)
    check_topic(client, start, topic, [sender])
    assert committed(cluster, group) == 5 * RECORDS


def check_read(members: list[Running], count: int) -> None:
    """Assert that all numbers were read, and none twice unless a commit was refused."""
    numbers = [number for member in members for number in member.numbers]
    assert set(numbers) == set(range(count))
    if not any(member.values("uncommitted") for member in members):
        assert len(numbers) == count
