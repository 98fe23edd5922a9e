from __future__ import annotations

import asyncio

from tests.sim.search.applications.app_rig import rig


def test_run_application_reports_failed_tasks_and_cancels_running_ones() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with rig() as around:

        async def play() -> None:
            mine = around.around()
            mine.begin(fail(), "failing")
            sleeping = mine.begin(asyncio.sleep(3_600), "sleeping")
            await asyncio.sleep(0.1)
            await mine.close()
            assert sleeping.cancelled()

        around.cluster.client("client").run(play())
        (found,) = around.findings
        assert found.startswith("failing ended by ValueError('no')")
