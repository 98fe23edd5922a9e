"""``LedGroups``: loading of a partition of ``__consumer_offsets`` after an election."""

from __future__ import annotations

from kraftjbod.core.errors import ErrorCode
from tests.unit.broker.broker_rig import brokers
from tests.unit.broker.groups.group_rig import fetched, lead, loaded
from tests.unit.broker.impaired_dirs import answer, stall


async def test_group_partition_loading_is_retried_until_it_succeeds() -> None:
    async with brokers() as (rig,):
        await lead(rig, 0)
        await loaded(rig)
        await lead(rig, 1, leader=2)
        stall(rig.dirs[0])
        await lead(rig, 2)
        await answer(rig.dirs[0])
        await loaded(rig)
        led = rig.parts.coordinator.led_of("g")
        assert led.leader_epoch == 2
        assert await fetched(rig) != ErrorCode.NOT_COORDINATOR and not led.timers
