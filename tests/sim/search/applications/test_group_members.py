from __future__ import annotations

import asyncio
import random

import pytest

from tests.sim.search.applications.app_rig import rig
from tests.sim.search.applications.classic_members import ClassicMembers
from tests.sim.search.applications.consumer_members import ConsumerMembers


@pytest.mark.parametrize("kind", [ClassicMembers, ConsumerMembers])
def test_group_keeps_commits_while_each_broker_is_killed(
    kind: type[ClassicMembers | ConsumerMembers],
) -> None:
    with rig() as around:
        members = kind(random.Random(2), around.around())

        async def strike() -> None:
            for broker in (1, 2, 3):
                await asyncio.sleep(4)
                around.cluster.broker(broker).kill()
                await asyncio.sleep(5)
                around.cluster.broker(broker).start()

        around.play(members, strike)
        assert members.invariants.generation > 0
        assert around.findings == []
