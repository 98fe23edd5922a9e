"""``forward`` splits large requests and does not delay other requests to the controller."""

from __future__ import annotations

import asyncio

from kraftjbod.broker.apis.admin.forwarding import forward
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId
from kraftjbod.core.request_limits import (
    MAX_FORWARDED_AT_ONCE,
    MAX_FORWARDED_BYTES,
    MAX_FORWARDED_ITEMS,
    MAX_ITEMS_PER_REQUEST,
)
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
    DeletedTopic,
    DeleteTopicsRequestRpc,
    DeleteTopicsResponseRpc,
    RpcRequest,
    RpcResponse,
    TopicRef,
)
from tests.unit.broker.scripted_controller import ScriptedController, channel_to, serving

PATIENT_MS = 60_000


def answer(request: RpcRequest) -> RpcResponse:
    if isinstance(request, AllocateProducerIdsRequest):
        return AllocateProducerIdsResponse(producer_id_start=0, producer_id_count=1)
    assert isinstance(request, DeleteTopicsRequestRpc)
    return DeleteTopicsResponseRpc(
        topics=tuple(DeletedTopic(name=ref.name, topic_id=ref.topic_id) for ref in request.topics)
    )


def refused(ref: TopicRef, error: OperatingError) -> DeletedTopic:
    return DeletedTopic(
        name=ref.name, topic_id=ref.topic_id, error_code=error.code, error_message=error.message
    )


async def deleted(controller: ScriptedController, names: list[str]) -> dict[str | None, ErrorCode]:
    async with serving(controller), channel_to(controller.voter()) as channel:
        outcomes = await forward(
            channel,
            (TopicRef(name=name) for name in names),
            ask=lambda part: DeleteTopicsRequestRpc(topics=part),
            outcomes=lambda response: response.topics,
            refuse=refused,
            timeout_ms=PATIENT_MS,
        )
    return {outcome.name: outcome.error_code for outcome in outcomes}


async def test_forward_limits_items_per_part_and_refuses_items_above_the_request_limit() -> None:
    controller = ScriptedController(answer)
    names = [f"t{number}" for number in range(MAX_ITEMS_PER_REQUEST + 3)]
    codes = await deleted(controller, names)
    assert [codes[name] for name in names].count(ErrorCode.NONE) == MAX_ITEMS_PER_REQUEST
    assert {codes[name] for name in names[-3:]} == {ErrorCode.INVALID_REQUEST}
    sizes = [len(request.topics) for request in controller.seen]
    assert max(sizes) == MAX_FORWARDED_ITEMS


async def test_forward_splits_by_bytes_and_rejects_oversized_items() -> None:
    controller = ScriptedController(answer)
    names = [letter * (MAX_FORWARDED_BYTES // 2) for letter in "abc"]
    codes = await deleted(controller, ["x" * MAX_FORWARDED_BYTES, *names])
    assert [codes.pop("x" * MAX_FORWARDED_BYTES)] == [ErrorCode.INVALID_REQUEST]
    assert set(codes.values()) == {ErrorCode.NONE}
    assert [len(request.topics) for request in controller.seen] == [1, 1, 1]


async def test_forward_returns_outcomes_in_the_order_of_the_items() -> None:
    """A response such as that of CreateAcls has no keys: results are matched by their places."""
    names = [f"t{number}" for number in range(MAX_ITEMS_PER_REQUEST + 3)]
    names[7] = "x" * MAX_FORWARDED_BYTES
    assert list(await deleted(ScriptedController(answer), names)) == names


async def test_forward_failing_part_keeps_earlier_outcomes_and_fails_the_rest() -> None:
    def fail_second(request: RpcRequest) -> RpcResponse:
        if len(controller.seen) == 2:
            raise OperatingError("full", code=ErrorCode.KAFKA_STORAGE_ERROR)
        return answer(request)

    controller = ScriptedController(fail_second)
    names = [f"t{number}" for number in range(MAX_FORWARDED_ITEMS * 3)]
    codes = await deleted(controller, names)
    assert {codes[name] for name in names[:MAX_FORWARDED_ITEMS]} == {ErrorCode.NONE}
    assert {codes[n] for n in names[MAX_FORWARDED_ITEMS:]} == {ErrorCode.KAFKA_STORAGE_ERROR}
    assert len(controller.seen) == 2


async def test_controller_channel_own_call_overtakes_forwarded_client_requests() -> None:
    controller = ScriptedController(answer)
    async with serving(controller), channel_to(controller.voter()) as channel:
        controller.may_answer.clear()
        crowd = [
            asyncio.ensure_future(
                channel.forward(DeleteTopicsRequestRpc(topics=()), timeout_ms=PATIENT_MS)
            )
            for _ in range(200)
        ]
        await controller.wait_seen(lambda seen: len(seen) == MAX_FORWARDED_AT_ONCE)
        own = asyncio.ensure_future(
            channel.call(
                AllocateProducerIdsRequest(broker_id=BrokerId(1), broker_epoch=BrokerEpoch(1)),
                timeout_ms=PATIENT_MS,
            )
        )
        await controller.wait_seen(
            lambda seen: any(isinstance(one, AllocateProducerIdsRequest) for one in seen)
        )
        controller.may_answer.set()
        await asyncio.gather(own, *crowd)
