"""``ProducerIdManager`` serves many callers from one allocated block."""

from __future__ import annotations

import asyncio

import pytest

from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.producer_ids import ProducerIdManager
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.protocol.rpc_messages import RpcRequest, RpcResponse
from tests.unit.broker.broker_rig import accept
from tests.unit.broker.scripted_controller import ScriptedController, channel_to, serving


def manager_on(channel: ControllerChannel) -> ProducerIdManager:
    return ProducerIdManager(
        broker_id=BrokerId(1),
        channel=channel,
        broker_epoch=lambda: BrokerEpoch(7),
        timeout_ms=1_000,
    )


async def test_concurrent_callers_share_a_producer_id_block() -> None:
    controller = ScriptedController(accept)
    async with serving(controller), channel_to(controller.voter()) as channel:
        ids = manager_on(channel)
        got = await asyncio.gather(ids.next_id(), ids.next_id())
        assert sorted(got) == [5_000, 5_001]
        assert len(controller.seen) == 1


async def test_callers_above_the_block_size_wait_for_the_next_block() -> None:
    starts = iter([5_000, 7_000])

    def answer(request: RpcRequest) -> RpcResponse:
        return accept(request).model_copy(update={"producer_id_start": next(starts)})

    controller = ScriptedController(answer)
    async with serving(controller), channel_to(controller.voter()) as channel:
        ids = manager_on(channel)
        got = await asyncio.gather(*(ids.next_id() for _ in range(4)))
        assert sorted(got) == [5_000, 5_001, 7_000, 7_001]


async def test_next_id_after_a_refusal_requests_a_block_again() -> None:
    refusals = [OperatingError("not now", code=ErrorCode.STALE_BROKER_EPOCH)]

    def answer(request: RpcRequest) -> RpcResponse:
        if refusals:
            raise refusals.pop()
        return accept(request)

    controller = ScriptedController(answer)
    async with serving(controller), channel_to(controller.voter()) as channel:
        ids = manager_on(channel)
        with pytest.raises(OperatingError):
            await ids.next_id()
        assert await ids.next_id() == 5_000
