"""Wiring of the group coordinator."""

from __future__ import annotations

from tests.unit.broker.broker_rig import brokers


async def test_group_coordinator_has_configured_limits_and_follows_leaderships() -> None:
    async with brokers(offsets_retention_minutes="2", group_max_size="7") as (rig,):
        coordinator = rig.wiring.groups.coordinator
        assert coordinator._settings.offsets_retention_ms == 120_000
        assert coordinator._settings.limits.max_size == 7
        assert coordinator in rig.wiring.replicas.leaderships._subscribers
