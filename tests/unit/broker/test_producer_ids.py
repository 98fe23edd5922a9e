"""Blocks of producer ids: one request for many callers."""

from __future__ import annotations

import asyncio

from kraftjbod.broker.producer_ids import ProducerIdManager
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from tests.unit.broker.broker_rig import accept
from tests.unit.broker.scripted_controller import ScriptedController, channel_to, serving


async def test_callers_that_come_together_share_a_block():
    controller = ScriptedController(accept)
    async with serving(controller), channel_to(controller.voter()) as channel:
        ids = ProducerIdManager(
            broker_id=BrokerId(1),
            channel=channel,
            broker_epoch=lambda: BrokerEpoch(7),
            timeout_ms=1_000,
        )
        got = await asyncio.gather(ids.next_id(), ids.next_id())
        assert sorted(got) == [5_000, 5_001]
        assert len(controller.seen) == 1
