from __future__ import annotations

import asyncio
import random

from tests.sim.search.applications.app_rig import rig
from tests.sim.search.applications.reigns import Reign, Reigns


def test_successor_producer_fences_predecessor_that_continues() -> None:
    with rig() as around:
        mine = around.around()
        fenced: dict[str, bool] = {}

        async def rule(_reigns: Reigns, reign: Reign) -> None:
            while not reigns.is_stopping:
                await asyncio.sleep(0.5)
                fenced[reign.name] = reigns.is_fenced(reign)

        reigns = Reigns("p", random.Random(1), mine, rule)

        async def play() -> None:
            reigns.start()
            await asyncio.sleep(25)
            last = max(fenced, key=lambda name: int(name.partition(".")[2]))
            assert len(fenced) > 2
            assert [name for name, is_fenced in fenced.items() if not is_fenced] == [last]
            await reigns.stop()
            await mine.close()

        around.cluster.client("client").run(play())
        assert around.findings == [] and "p.0 is taken for dead" in around.notes
