"""What the topic of storage telemetry is made like."""

from __future__ import annotations

import pytest

from kraftjbod.broker.telemetry.storage_telemetry_topic import storage_telemetry_topic
from kraftjbod.core.topic_config import TopicConfig

MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("retention_bytes", "segment_bytes"), [(128 * MIB, 16 * MIB), (MIB, 256 * 1024)]
)
def test_it_is_bounded(retention_bytes: int, segment_bytes: int) -> None:
    shape = storage_telemetry_topic(
        partitions=5, replication_factor=3, retention_ms=80_000, retention_bytes=retention_bytes
    )
    (topic,) = shape.creation(2).topics
    assert (topic.name, topic.num_partitions) == ("__storage_telemetry", 5)
    assert topic.replication_factor == 2
    configs = {key: value for key, value in topic.configs.items() if value is not None}
    config = TopicConfig().with_overrides(configs, source="test")
    assert (config.retention_ms, config.segment_ms) == (80_000, 10_000)
    assert (config.retention_bytes, config.segment_bytes) == (retention_bytes, segment_bytes)
    assert str(config.cleanup_policy) == "delete"
    assert config.min_insync_replicas == 1
