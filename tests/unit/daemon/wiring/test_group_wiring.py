"""Wiring of the group coordinator."""

from __future__ import annotations

from kraftjbod.core.errors import ErrorCode
from tests.unit.broker.groups.group_rig import coordinator, enter, join


async def test_group_coordinator_refuses_joins_above_the_configured_group_size() -> None:
    """The rig waits until the coordinator has loaded the partition that its broker leads."""
    async with coordinator(group_max_size="1") as rig:
        await enter(rig)
        refused = await rig.ask(join(), 8)
        assert refused.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
