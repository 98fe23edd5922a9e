"""A broker whose network fails for longer than its session, and the connections of its clients."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.local import network_hosts
from kraftjbod.testing.local_cluster import LocalCluster

pytestmark = pytest.mark.long
_PATIENCE_S = 60.0


def _living(cluster: LocalCluster) -> set[int]:
    async def ask() -> set[int]:
        async with ClusterClient(cluster.bootstrap_servers) as client:
            return set((await client.refresh_metadata()).brokers)

    return asyncio.run(ask())


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_returning_broker_resets_silent_connections_of_clients() -> None:
    """The client sends nothing, so that only the broker can end its wait for a response."""
    with LocalCluster(brokers=3, dirs=1, disks="plain", hosts=True) as cluster:
        broker = cluster.broker(1)
        host = broker.process.files.host
        port = int(broker.address.rpartition(":")[2])
        with socket.create_connection((host, port), timeout=_PATIENCE_S) as waiting:
            network_hosts.cut(host)
            cluster.wait("the broker to be fenced", lambda: 1 not in _living(cluster))
            network_hosts.mend(host)
            with pytest.raises(ConnectionResetError):
                waiting.recv(1)
        cluster.wait("the broker to be back", lambda: 1 in _living(cluster))
