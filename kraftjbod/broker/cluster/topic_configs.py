"""LOOP. ``TopicConfigs``: the effective configuration of each topic on this broker.

The broker's defaults are overridden by the cluster's and the topic's own values; the result is
parsed once per change. The controller validates a topic's values before they are committed. A value
that does not parse nevertheless, because an older or newer controller wrote it, is ignored with a
warning. Refusing the metadata would stop service to clients, and defaults for all values of the
topic could delete records by the default retention.
"""

from __future__ import annotations

from collections.abc import Mapping

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.telemetry import get_logger
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.metadata.state import overrides_of


class TopicConfigs:
    def __init__(self, *, defaults: TopicConfig, cache: MetadataCache) -> None:
        self.defaults = defaults
        self._cache = cache
        self._parsed: dict[str, TopicConfig] = {}
        self._log = get_logger(component="topic_configs")

    def take(self, defaults: TopicConfig) -> None:
        """Use changed defaults of the broker for all topics."""
        if defaults != self.defaults:
            self.defaults = defaults
            self._parsed.clear()

    def get(self, topic: str) -> TopicConfig:
        config = self._parsed.get(topic)
        if config is None:
            config = self._parsed[topic] = self._parse(topic)
        return config

    def of_new_topic(self, own: Mapping[str, str]) -> TopicConfig:
        """Return the effective configuration of a topic that is created with the values ``own``."""
        overrides = {**overrides_of(self._cache.state.configs, topic=""), **own}
        return self.defaults.with_stored_overrides(overrides, source="new topic")[0]

    def forget(self, topic: str) -> None:
        """Drop the cached configuration of the topic, because its values changed or the topic was
        deleted.
        """
        self._parsed.pop(topic, None)

    def _parse(self, topic: str) -> TopicConfig:
        overrides = self._cache.state.topic_overrides(topic)
        if not overrides:
            return self.defaults
        config, problem = self.defaults.with_stored_overrides(overrides, source=f"topic {topic}")
        if problem is not None:
            self._log.warning("topic_config_unusable", topic=topic, reason=problem)
        return config
