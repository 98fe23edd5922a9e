"""The check before the failures; a cluster fails in tests/integration/tour/test_gameday.py."""

from __future__ import annotations

import pytest

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.gameday.faults.fault import CannotPlay
from kraftjbod.gameday.faults.successive_failures import SuccessiveFailures
from tests.unit.cli.mini_broker import mini_broker


async def test_successive_failures_on_another_machine_are_refused_and_undo_is_empty() -> None:
    marks: list[str] = []
    async with mini_broker() as broker, ClusterClient(broker.address) as client:
        broker.create("t")
        failures = SuccessiveFailures(lambda what, at_s: marks.append(what))
        with pytest.raises(CannotPlay):
            await failures.aim(client, "t")
        await failures.undo(client)
    assert marks == []
