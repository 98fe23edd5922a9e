"""Wiring of the internal topics."""

from __future__ import annotations

from kraftjbod.protocol.telemetry.storage_telemetry import TOPIC
from tests.unit.broker.broker_rig import brokers


async def test_storage_telemetry_topic_has_the_configured_partition_count() -> None:
    async with brokers(storage_telemetry_topic_partitions="7") as (rig,):
        topics = rig.wiring.internal.internal_topics
        assert TOPIC in topics and topics[TOPIC].num_partitions == 7
        assert "t" not in topics
