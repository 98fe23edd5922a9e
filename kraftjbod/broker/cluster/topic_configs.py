"""LOOP. ``TopicConfigs``: the configuration that holds for each topic on this broker.

The broker's defaults with the cluster's and the topic's own values on top, parsed once per change.
A topic's own values were checked by the controller before they were committed. A value that does
not parse all the same, because an older or newer controller wrote it, is passed over with a
warning: a broker that refused its metadata would serve no client, and a topic that got the defaults
for all of its values could lose records to the default retention.
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
        """The broker's defaults changed."""
        if defaults != self.defaults:
            self.defaults = defaults
            self._parsed.clear()

    def get(self, topic: str) -> TopicConfig:
        config = self._parsed.get(topic)
        if config is None:
            config = self._parsed[topic] = self._parse(topic)
        return config

    def of_new_topic(self, own: Mapping[str, str]) -> TopicConfig:
        """What a topic with the values ``own`` would be configured to."""
        overrides = {**overrides_of(self._cache.state.configs, topic=""), **own}
        return self.defaults.with_stored_overrides(overrides, source="new topic")[0]

    def forget(self, topic: str) -> None:
        """The topic's own values changed, or the topic is gone."""
        self._parsed.pop(topic, None)

    def _parse(self, topic: str) -> TopicConfig:
        overrides = self._cache.state.topic_overrides(topic)
        if not overrides:
            return self.defaults
        config, problem = self.defaults.with_stored_overrides(overrides, source=f"topic {topic}")
        if problem is not None:
            self._log.warning("topic_config_unusable", topic=topic, reason=problem)
        return config
