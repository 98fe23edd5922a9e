from __future__ import annotations

import asyncio
import random

from kraftjbod.testing.simulation.search.applications.group_members import GroupMembers
from tests.sim.search.applications.app_rig import rig


def test_commits_stay_though_each_broker_is_killed_in_turn() -> None:
    with rig() as around:
        members = GroupMembers(random.Random(2), around.around())

        async def strike() -> None:
            for broker in (1, 2, 3):
                await asyncio.sleep(4)
                around.cluster.broker(broker).kill()
                await asyncio.sleep(5)
                around.cluster.broker(broker).start()

        around.play(members, strike)
        assert members.laws.generation > 0
        assert around.findings == []
