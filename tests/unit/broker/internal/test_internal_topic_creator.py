"""``InternalTopicCreator`` with a topic that requires all replicas.

test_sample_emitter.py covers topics that accept fewer replicas.
"""

from __future__ import annotations

import pytest

from kraftjbod.broker.internal.internal_topics import InternalTopic
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.rpc_messages import (
    CreatedTopic,
    CreateTopicsRequestRpc,
    CreateTopicsResponseRpc,
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


async def test_topic_creator_raises_a_refusal_and_accepts_an_existing_topic() -> None:
    codes = [ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS]

    def answering(request: RpcRequest) -> RpcResponse:
        if not isinstance(request, CreateTopicsRequestRpc):
            return accept(request)
        (wanted,) = request.topics
        assert (wanted.num_partitions, wanted.replication_factor) == (2, 3)
        assert wanted.configs == {"cleanup.policy": "compact"}
        created = CreatedTopic(name=wanted.name, error_code=codes.pop(0), error_message="too few")
        return CreateTopicsResponseRpc(topics=(created,))

    async with brokers(answer=answering) as (rig,):
        creator = rig.parts.topic_creator
        with pytest.raises(OperatingError, match="too few"):
            await creator.ensure(STRICT)
        made = await creator.ensure(STRICT)
        assert made.is_there and made.created is not None
        # Metadata does not contain the topic yet, and another broker may have created it.
        again = await creator.ensure(STRICT)
        assert again.is_there and again.created is None
