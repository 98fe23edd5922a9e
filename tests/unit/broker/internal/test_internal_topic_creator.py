"""An internal topic that shall have all its replicas or none.

One that takes fewer is shown by test_sample_emitter.py.
"""

from __future__ import annotations

import pytest

from kraftjbod.broker.internal.internal_topics import InternalTopic
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.rpc_messages import (
    CreatedTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
    RpcRequest,
    RpcResponse,
)
from tests.unit.broker.broker_rig import accept, brokers

STRICT = InternalTopic(
    name="__strict",
    num_partitions=2,
    replication_factor=3,
    configs={"cleanup.policy": "compact"},
    takes_fewer_replicas=False,
    is_closed=False,
    schema="nowhere",
)


async def test_it_is_asked_for_as_it_shall_be_until_there_are_enough_brokers() -> None:
    codes = [ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]

    def answering(request: RpcRequest) -> RpcResponse:
        if not isinstance(request, CreateTopicsRequest):
            return accept(request)
        (wish,) = request.topics
        assert (wish.num_partitions, wish.replication_factor) == (2, 3)
        assert wish.configs == {"cleanup.policy": "compact"}
        created = CreatedTopic(name=wish.name, error_code=codes.pop(0), error_message="too few")
        return CreateTopicsResponse(topics=(created,))

    async with brokers(answer=answering) as (rig,):
        creator = rig.parts.topic_creator
        with pytest.raises(OperatingError, match="too few"):
            await creator.ensure(STRICT)
        made = await creator.ensure(STRICT)
        assert made.is_there and made.created is not None
        # Metadata has not brought it yet; another broker may have asked as well.
        again = await creator.ensure(STRICT)
        assert again.is_there and again.created is None
