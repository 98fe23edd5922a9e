"""``BrokerKill`` kills local brokers only; tests/integration kills real ones."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.broker_kill import BrokerKill
from kraftjbod.gameday.faults.fault import CannotPlay
from tests.unit.cli.mini_broker import mini_broker


async def test_broker_kill_refuses_broker_whose_directories_are_not_local() -> None:
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        kill = BrokerKill()
        with pytest.raises(CannotPlay, match="/d1 of broker 7 cannot be read on this machine"):
            await kill.aim(client, "t")
        await kill.undo(client)
        assert await client.refresh_metadata(["t"])
