"""Groups as a broker's configuration has them."""

from __future__ import annotations

from tests.unit.broker.broker_rig import brokers


async def test_the_coordinator_hears_of_leaderships_and_has_its_keys() -> None:
    async with brokers(offsets_retention_minutes="2", group_max_size="7") as (rig,):
        coordinator = rig.wiring.groups.coordinator
        assert coordinator._settings.offsets_retention_ms == 120_000
        assert coordinator._settings.limits.max_size == 7
        assert coordinator in rig.wiring.replicas.leaderships._subscribers
