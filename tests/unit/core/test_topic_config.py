"""``TopicConfig``: overrides of a topic on top of the defaults."""

from __future__ import annotations

import pytest

from kraftjbod.core.errors import ConfigError
from kraftjbod.core.topic_config import CleanupPolicy, TopicConfig


def test_with_overrides_accepts_negative_retention_bytes_as_kafka_does() -> None:
    config = TopicConfig().with_overrides({"retention.bytes": "-5"}, source="topic t")
    assert config.retention_bytes == -5


def test_with_stored_overrides_keeps_readable_values() -> None:
    stored = {"retention.ms": "-1", "of.a.newer.version": "1", "segment.bytes": "soon"}
    config, problem = TopicConfig().with_stored_overrides(stored, source="topic t")
    assert config == TopicConfig(retention_ms=-1)
    assert "of.a.newer.version" in (problem or "")
    assert TopicConfig().with_stored_overrides({"retention.ms": "-1"}, source="t") == (config, None)


def test_with_stored_overrides_keeps_values_that_only_fit_together() -> None:
    """Each of the two lags alone would contradict the broker's default of the other one."""
    broker = TopicConfig(max_compaction_lag_ms=50)
    lags = {"min.compaction.lag.ms": "100", "max.compaction.lag.ms": "200"}
    config, problem = broker.with_stored_overrides({**lags, "of.newer": "1"}, source="topic t")
    assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (100, 200)
    assert "of.newer" in (problem or "")


def test_with_stored_overrides_never_compacts_before_the_stored_min_compaction_lag() -> None:
    stored = {"min.compaction.lag.ms": "100", "retention.ms": "7"}
    config, problem = TopicConfig(max_compaction_lag_ms=50).with_stored_overrides(
        stored, source="topic t"
    )
    assert (config.min_compaction_lag_ms, config.max_compaction_lag_ms) == (100, 100)
    assert config.retention_ms == 7
    assert "min.compaction.lag.ms (100) must not exceed" in (problem or "")


def test_with_overrides_replaces_defaults() -> None:
    config = TopicConfig().with_overrides({"retention.ms": "5"}, source="topic t")
    assert config.retention_ms == 5
    assert config.by_key()["retention.ms"] == 5


@pytest.mark.parametrize("text", ["*", "0:1,2:1", ""])
def test_throttled_replicas_by_key_are_written_as_parsed(text: str) -> None:
    key = "leader.replication.throttled.replicas"
    config = TopicConfig().with_overrides({key: text}, source="topic t")
    assert str(config.by_key()[key]) == text
    assert (
        config.with_overrides({"retention.ms": "5"}, source="topic t").by_key()[key]
        == (config.by_key()[key])
    )


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"retention.sm": "5"},
            r"topic t: unknown topic configuration retention.sm: did you mean retention.ms\?",
        ),
        ({"cleanup.policy": "delete,"}, "write delete, compact, both, or nothing"),
        ({"retention.ms": "99999999999999999999"}, "retention.ms: .* is no LONG"),
        ({"segment.bytes": "99999999999999"}, "segment.bytes: .* is no INT"),
        ({"min.insync.replicas": "99999999999"}, "min.insync.replicas: .* is no INT"),
        ({"unclean.leader.election.enable": "yes"}, "'yes' is neither true nor false"),
        (
            {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"},
            r"min.compaction.lag.ms \(10\) must not exceed max.compaction.lag.ms \(5\)",
        ),
        ({"cleanup.policy": "shrink"}, "cleanup.policy"),
        ({"segment.bytes": "x"}, "segment.bytes"),
        ({"compression.gzip.level": "0"}, "0 is no level of gzip"),
        ({"compression.zstd.level": "23"}, "compression.zstd.level"),
        ({"remote.storage.enable": "true"}, "Tiered Storage functionality is disabled"),
    ],
)
def test_with_overrides_names_invalid_key_or_value(overrides: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TopicConfig().with_overrides(overrides, source="topic t")


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("delete", CleanupPolicy(is_delete=True, is_compact=False)),
        ("compact", CleanupPolicy(is_delete=False, is_compact=True)),
        ("delete, compact", CleanupPolicy(is_delete=True, is_compact=True)),
        ("delete,delete", CleanupPolicy(is_delete=True, is_compact=False)),
        ("", CleanupPolicy(is_delete=False, is_compact=False)),
    ],
)
def test_cleanup_policy_round_trip(text: str, policy: CleanupPolicy) -> None:
    config = TopicConfig().with_overrides({"cleanup.policy": text}, source="topic t")
    assert config.cleanup_policy == policy
    assert CleanupPolicy.parse(str(policy)) == policy
