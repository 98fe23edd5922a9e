"""``ConfigurationControlManager``: what topics are configured to, checked before it is recorded."""

from __future__ import annotations

from collections.abc import Mapping

from kraftjbod.core.config import TopicConfig
from kraftjbod.core.errors import ConfigError, ErrorCode, OperatingError
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.metadata.state import MetadataState


class ConfigurationControlManager:
    """Decides about configurations; reads the shared state and changes nothing."""

    def __init__(self, *, state: MetadataState, defaults: TopicConfig) -> None:
        self._state = state
        self._defaults = defaults

    def new_topic(self, name: str, configs: Mapping[str, str | None]) -> tuple[ConfigRecord, ...]:
        """Records of a new topic's own values; a value of None means the default.

        :raises OperatingError: INVALID_CONFIG, naming each key that is unknown or wrong.
        """
        given = {key: value for key, value in configs.items() if value is not None}
        try:
            self._defaults.with_overrides(given, source=f"topic {name}")
        except ConfigError as e:
            raise OperatingError(str(e), code=ErrorCode.INVALID_CONFIG) from e
        return tuple(
            ConfigRecord(
                resource_type=ResourceType.TOPIC, resource_name=name, name=key, value=value
            )
            for key, value in given.items()
        )

    def may_elect_unclean(self, topic: str) -> bool:
        """The topic's ``unclean.leader.election.enable``."""
        own = self._state.topic_config(topic)
        config = (
            self._defaults.with_overrides(own, source=f"topic {topic}") if own else self._defaults
        )
        return config.unclean_leader_election_enable
