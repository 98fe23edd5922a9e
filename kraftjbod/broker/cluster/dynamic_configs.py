"""LOOP. ``DynamicConfigs``: the dynamic configuration of this broker.

For each dynamic key, the broker's own ConfigRecord has precedence over the one for all brokers,
which has precedence over the broker's file. Subscribers are notified at once, and then of every
change, in order of subscription.

Values of single listeners (``listener.name.<name>.…``) have no field of a model. Their subscribers
receive them by key.

The controller validates values before they are committed. A value that does not parse nevertheless
(written by an older or newer controller) is logged and ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.core.config import DYNAMIC_BROKER_KEYS, BrokerConfig, DynamicBrokerConfig
from kraftjbod.core.config_model import stored_values
from kraftjbod.core.dynamic_listener_config import (
    is_dynamic_listener_key,
    require_dynamic_listeners,
)
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.telemetry import get_logger
from kraftjbod.metadata.records import ResourceType

#: Receives the dynamic values of the broker, and those of single listeners by full key.
TakeListeners = Callable[[DynamicBrokerConfig, Mapping[str, str]], None]


class DynamicValue(NamedTuple):
    """A committed value of a key. ``is_own``: it is set for this broker alone, not for all
    brokers."""

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
        self._listener_subscribers: list[TakeListeners] = []
        #: Values of single listeners, by full key.
        self.of_listeners: Mapping[str, str] = {}
        self._log = get_logger(component="dynamic_configs")
        self.current = DynamicBrokerConfig.from_values(self._static, source="broker")

    def subscribe(self, take: Callable[[DynamicBrokerConfig], None]) -> None:
        """Call ``take`` with the brokers' configuration, now and after each change."""
        self._subscribers.append(take)
        take(self.current)

    def subscribe_listeners(self, take: TakeListeners) -> None:
        """Call ``take`` now and after each change, also with the values of single listeners."""
        self._listener_subscribers.append(take)
        take(self.current, self.of_listeners)

    def refresh(self) -> frozenset[str]:
        """Apply the brokers' configuration in the metadata, and notify the subscribers if it
        changed.

        Return the keys whose value changed, without the keys of single listeners.
        """
        found = {key: next(self._usable(key), None) for key in DYNAMIC_BROKER_KEYS}
        winning = {key: value.text for key, value in found.items() if value is not None}
        config = DynamicBrokerConfig.from_values({**self._static, **winning}, source="broker")
        before, after = self.current.by_key(), config.by_key()
        changed = frozenset(key for key, value in after.items() if value != before[key])
        of_listeners = self._usable_of_listeners()
        if not changed and of_listeners == self.of_listeners:
            return changed
        self.current, self.of_listeners = config, of_listeners
        self._log.info("dynamic_config_changed", values=winning, listener_keys=[*of_listeners])
        for take in self._subscribers if changed else ():
            take(config)
        for take_listeners in self._listener_subscribers:
            take_listeners(config, of_listeners)
        return changed

    def listener_keys(self) -> list[str]:
        """Return the keys of single listeners with a committed value, sorted."""
        configs = self._cache.state.configs
        names = (configs.get((ResourceType.BROKER, name), {}) for name in (self._own_name, ""))
        return sorted({key for own in names for key in own if is_dynamic_listener_key(key)})

    def _usable_of_listeners(self) -> dict[str, str]:
        usable = {}
        for key in self.listener_keys():
            for value in self.values_of(key):
                try:
                    require_dynamic_listeners({key: value.text}, source="metadata")
                except ConfigError as e:
                    self._report_unusable(key, e)
                else:
                    usable[key] = value.text
                    break
        return usable

    def values_of(self, key: str) -> Iterator[DynamicValue]:
        """Yield the committed values of ``key``, unchecked: this broker's own first, then that for
        all brokers.
        """
        for name in (self._own_name, ""):
            text = self._cache.state.configs.get((ResourceType.BROKER, name), {}).get(key)
            if text is not None:
                yield DynamicValue(text, is_own=bool(name))

    def _report_unusable(self, key: str, error: ConfigError) -> None:
        self._log.warning("dynamic_config_unusable", key=key, reason=str(error))

    def _usable(self, key: str) -> Iterator[DynamicValue]:
        for value in self.values_of(key):
            stored = stored_values({key: value.text}, DynamicBrokerConfig)
            try:
                DynamicBrokerConfig.from_values(stored, source="metadata")
            except ConfigError as e:
                self._report_unusable(key, e)
            else:
                yield value._replace(text=stored[key])


def _text(value: object) -> str:
    return ",".join(map(str, value)) if type(value) is tuple else str(value)
