"""Configurations of the telemetry topics."""

from __future__ import annotations

import pytest

from kraftjbod.broker.telemetry.telemetry_topics import (
    TelemetryBounds,
    group_telemetry_topic,
    storage_telemetry_topic,
)
from kraftjbod.core.topic_config import TopicConfig

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("retention_bytes", "segment_bytes"), [(128 * MIB, 16 * MIB), (MIB, 256 * 1024)]
)
def test_telemetry_topics_are_bounded_by_time_and_size(
    retention_bytes: int, segment_bytes: int
) -> None:
    bounds = TelemetryBounds(
        partitions=5, replication_factor=3, retention_ms=80_000, retention_bytes=retention_bytes
    )
    (topic,) = storage_telemetry_topic(bounds).creation(2).topics
    (of_groups,) = group_telemetry_topic(bounds).creation(2).topics
    assert (of_groups.name, of_groups.configs) == ("__group_telemetry", topic.configs)
    assert (topic.name, topic.num_partitions) == ("__storage_telemetry", 5)
    assert topic.replication_factor == 2
    configs = {key: value for key, value in topic.configs.items() if value is not None}
    config = TopicConfig().with_overrides(configs, source="test")
    assert (config.retention_ms, config.segment_ms) == (80_000, 10_000)
    assert (config.retention_bytes, config.segment_bytes) == (retention_bytes, segment_bytes)
    assert str(config.cleanup_policy) == "delete"
    assert config.min_insync_replicas == 1
