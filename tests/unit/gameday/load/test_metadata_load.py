"""``MetadataLoad``: gaps of decisions; tests/integration/tour/test_gameday.py has controllers."""

from __future__ import annotations

import asyncio

from kraftjbod.gameday.load.metadata_load import MetadataLoad
from tests.unit.cli.mini_broker import mini_broker


def test_longest_gap_is_limited_to_the_given_time() -> None:
    load = MetadataLoad("127.0.0.1:1", "t")
    assert load.longest_gap_ms(1.0, 3.0) == 2000, "nothing was done at all"
    load.acks = [0.5, 1.25, 2.0, 9.0]
    assert load.longest_gap_ms(1.0, 3.0) == 1000


async def test_metadata_load_counts_only_successes_and_continues_after_refusals() -> None:
    async with mini_broker() as broker:
        load = MetadataLoad(broker.address, "t")
        running = asyncio.create_task(load.run_load())
        while load.trouble is None:
            await asyncio.sleep(0.001)
        assert load.acks == []
        assert "Metadata" in broker.asked, "for other brokers, in case this one is away"
        broker.create("t")
        while len(load.acks) < 3:
            await asyncio.sleep(0.001)
        running.cancel()
        assert broker.topics["t"].configs["retention.ms"] in ("604800000", "604800001")
