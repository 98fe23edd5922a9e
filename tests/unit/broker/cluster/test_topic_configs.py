"""A topic's configuration: the broker's defaults with its own values on top."""

from __future__ import annotations

from structlog.testing import capture_logs

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.metadata.records import ResourceType

DEFAULTS = TopicConfig(retention_ms=1000, min_insync_replicas=2)


def configs(**own: str) -> tuple[TopicConfigs, MetadataCache]:
    cache = MetadataCache(cluster_id="c")
    cache.state.configs[(ResourceType.TOPIC, "t")] = {
        key.replace("_", "."): value for key, value in own.items()
    }
    return TopicConfigs(defaults=DEFAULTS, cache=cache), cache


def test_a_topic_without_values_of_its_own_has_the_defaults() -> None:
    made, _ = configs(retention_ms="5")
    assert made.get("other") is DEFAULTS


def test_own_values_win_and_the_rest_stays() -> None:
    made, _ = configs(retention_ms="5")
    assert (made.get("t").retention_ms, made.get("t").min_insync_replicas) == (5, 2)


def test_a_change_is_seen_once_the_topic_is_forgotten() -> None:
    made, cache = configs(retention_ms="5")
    assert made.get("t").retention_ms == 5
    cache.state.configs[(ResourceType.TOPIC, "t")] = {"retention.ms": "7"}
    made.forget("t")
    assert made.get("t").retention_ms == 7


def test_a_value_that_does_not_parse_leaves_the_defaults_and_a_warning() -> None:
    made, _ = configs(retention_ms="soon")
    with capture_logs() as logged:
        assert made.get("t") is DEFAULTS
    assert logged[0]["event"] == "topic_config_unusable"
