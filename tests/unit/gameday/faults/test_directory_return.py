"""Waiting for a directory has a timeout, whose error has the last reported state."""

from __future__ import annotations

from pathlib import Path

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode, StartupError
from kraftjbod.gameday.faults.directory_return import bring_back, describe_log_dir, wait_offline
from tests.unit.cli.mini_broker import BROKER_ID, MiniBroker, mini_broker


async def connected(broker: MiniBroker) -> ClusterClient:
    client = ClusterClient(broker.address)
    await client.refresh_metadata()
    return client


async def test_bring_back_of_online_directory_sends_no_request() -> None:
    async with mini_broker() as broker, await connected(broker) as client:
        broker.fail_next["DescribeLogDirs"] = [ErrorCode.KAFKA_STORAGE_ERROR]
        await bring_back(client, BROKER_ID, Path("/d1"), timeout_s=60)
        assert broker.log_dir_orders == []
        assert await describe_log_dir(client, BROKER_ID, Path("/d3")) is None


async def test_wait_for_directory_times_out_with_last_reported_state() -> None:
    async with mini_broker() as broker, await connected(broker) as client:
        with pytest.raises(StartupError, match=r"/d1 of broker 7 is not offline .* said: online"):
            await wait_offline(client, BROKER_ID, Path("/d1"), timeout_s=0.05)
        with pytest.raises(StartupError, match=r"/d3 .* not online again .* no such directory"):
            await bring_back(client, BROKER_ID, Path("/d3"), timeout_s=0.05)
