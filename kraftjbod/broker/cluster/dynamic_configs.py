"""LOOP. ``DynamicConfigs``: what this broker takes over while it runs.

For each dynamic key, the broker's own ConfigRecord wins over that of all brokers, and that over
the broker's file. Subscribers are notified at once, and then of every change, in the order in
which they subscribed.

The controller checked the values before they were committed; should one still not parse (an older
or newer controller wrote it), it is logged and passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.config import DYNAMIC_BROKER_KEYS, BrokerConfig, DynamicBrokerConfig
from kraftjbod.core.config_model import stored_values
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.telemetry import get_logger
from kraftjbod.metadata.records import ResourceType


class DynamicValue(NamedTuple):
    """One committed value for a key, and whether it is for this broker alone."""

    text: str
    is_own: bool


class DynamicConfigs:
    def __init__(self, *, config: BrokerConfig, cache: MetadataCache) -> None:
        values = config.by_key()
        self._static: Mapping[str, str] = {
            key: _text(values[key]) for key in DYNAMIC_BROKER_KEYS if values[key] is not None
        }
        self._own_name = str(config.node_id)
        self._cache = cache
        self._subscribers: list[Callable[[DynamicBrokerConfig], None]] = []
        self._log = get_logger(component="dynamic_configs")
        self.current = DynamicBrokerConfig.from_values(self._static, source="broker")

    def subscribe(self, take: Callable[[DynamicBrokerConfig], None]) -> None:
        """``take`` is called now and after each change."""
        self._subscribers.append(take)
        take(self.current)

    def refresh(self) -> frozenset[str]:
        """The metadata's configuration of brokers changed; the keys that are others now."""
        found = {key: next(self._usable(key), None) for key in DYNAMIC_BROKER_KEYS}
        winning = {key: value.text for key, value in found.items() if value is not None}
        config = DynamicBrokerConfig.from_values({**self._static, **winning}, source="broker")
        before, after = self.current.by_key(), config.by_key()
        changed = frozenset(key for key, value in after.items() if value != before[key])
        if not changed:
            return changed
        self.current = config
        self._log.info("dynamic_config_changed", values=winning)
        for take in self._subscribers:
            take(config)
        return changed

    def values_of(self, key: str) -> Iterator[DynamicValue]:
        """What the metadata says about ``key``, the winning value first."""
        for name in (self._own_name, ""):
            text = self._cache.state.configs.get((ResourceType.BROKER, name), {}).get(key)
            if text is not None:
                yield DynamicValue(text, is_own=bool(name))

    def _usable(self, key: str) -> Iterator[DynamicValue]:
        for value in self.values_of(key):
            stored = stored_values({key: value.text}, DynamicBrokerConfig)
            try:
                DynamicBrokerConfig.from_values(stored, source="metadata")
            except ConfigError as e:
                self._log.warning("dynamic_config_unusable", key=key, reason=str(e))
            else:
                yield value._replace(text=stored[key])


def _text(value: object) -> str:
    return ",".join(map(str, value)) if type(value) is tuple else str(value)
