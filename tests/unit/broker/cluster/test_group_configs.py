"""Validation of group configurations; test_consumer_group_driver.py tests their effect."""

from __future__ import annotations

from typing import Any

from kraftjbod.core.errors import ErrorCode
from kraftjbod.metadata.records import ResourceType
from kraftjbod.protocol.messages import IncrementalAlterConfigsRequest
from tests.unit.broker.apis.test_config_apis import agree, altered, change
from tests.unit.broker.broker_rig import brokers


async def test_group_config_is_validated_against_the_limits_of_the_broker() -> None:
    session, beats = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
    async with brokers(answer=agree, group_consumer_max_heartbeat_interval_ms="50000") as (rig,):

        async def outcome(*changes: Any) -> tuple[int, str | None]:
            request = IncrementalAlterConfigsRequest(
                resources=[altered(ResourceType.GROUP, "g", *changes)]
            )
            (result,) = (await rig.ask(request)).responses
            return result.error_code, result.error_message

        assert await outcome(change(session, "60000"), change(beats, "50000")) == (0, None)
        for wrong, words in (
            ((change(session, "44999"),), "must be in 45000 to 60000, not 44999"),
            ((change(session, "long"),), "is no INT"),
            ((change(beats, "46000"),), "(45000) must be greater than"),
            ((change("consumer.no.such", "1"),), "Unknown group config name: consumer.no.such"),
        ):
            code, message = await outcome(*wrong)
            assert code == ErrorCode.INVALID_CONFIG and words in (message or ""), message
