"""The logs that a cluster reports to an audit; test_replica_batches.py has their places."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import OperatingError
from kraftjbod.spark.audit.audit_sieve import LogRange
from kraftjbod.spark.audit.log_ranges import describe_logs, log_starts
from tests.integration import raw
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients, pytest.mark.timeout(300)]


def test_describe_logs_returns_ranges_of_partitions_with_a_leader_only(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster(brokers=2, dirs=1)
    cluster.create_topic("compacted", assignments={0: [1]}, cleanup_policy="compact")
    cluster.create_topic("split", assignments={0: [1], 1: [2]})
    code, _ = raw.produce(cluster.brokers[1].address, "split", raw.batch([b"a", b"b"]))
    assert code == 0
    cluster.stop_daemon(cluster.brokers[2])

    async def look() -> None:
        async with ClusterClient(cluster.brokers[1].address, retry_timeout_ms=1000) as client:
            logs = await describe_logs(client, ["compacted", "split"])
            assert logs.ranges == (
                LogRange("compacted", 0, 0, 0, True),
                LogRange("split", 0, 0, 2, False),
                LogRange("split", 1, None, None, False),
            )
            assert logs.unseen == ("broker 2: 1 replicas are offline",)
            assert {(r.topic, r.partition) for r in logs.replicas} == {
                ("compacted", 0),
                ("split", 0),
            }
            assert await log_starts(client, logs.ranges) == {("compacted", 0): 0, ("split", 0): 0}
            with pytest.raises(OperatingError, match="topic nowhere"):
                await describe_logs(client, ["nowhere"])

    asyncio.run(look())
