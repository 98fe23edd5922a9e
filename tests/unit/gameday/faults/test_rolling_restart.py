"""``RollingRestart`` restarts local daemons only; tests/integration restarts a cluster."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.fault import CannotPlay
from kraftjbod.gameday.faults.rolling_restart import RollingRestart
from tests.unit.cli.mini_broker import mini_broker


async def test_rolling_restart_refuses_cluster_of_another_machine() -> None:
    marks: list[str] = []
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        restart = RollingRestart(marks.append)
        with pytest.raises(CannotPlay, match="cannot be read on this machine"):
            await restart.aim(client, "t")
        await restart.undo(client)
    assert marks == []
