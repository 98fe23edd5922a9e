"""WIRE. ``DynamicListeners``: applies dynamic values of listeners while a broker runs (KIP-226).

* Limits of connections apply to connections that arrive later.
* Keystores and truststores are loaded in the thread of :class:`NodeTls`, and new handshakes use
  them. The broker checks them before the change is recorded. If they become unusable afterwards,
  the previous keys and certificates stay in use.
* Values of listeners that the broker's file no longer has are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from kraftjbod.core.config import BrokerConfig, DynamicBrokerConfig
from kraftjbod.core.dynamic_listener_config import is_dynamic_store_key
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.listener_config import ListenerConfig, listener_of
from kraftjbod.core.reference_reader import DynamicReferences
from kraftjbod.daemon.listener_limits import broker_listener_limits
from kraftjbod.daemon.tls.node_tls import NodeTls
from kraftjbod.net.listener import Listener


class DynamicListeners:
    """Applies dynamic limits and key stores to the listeners of a running broker.

    :param listeners: the served listeners by name.
    """

    def __init__(
        self,
        config: BrokerConfig,
        *,
        tls: NodeTls,
        listeners: Mapping[str, Listener],
        references: DynamicReferences,
        max_open_files: int,
    ) -> None:
        self._config = config
        self._tls = tls
        self._listeners = listeners
        self._references = references
        self._max_open_files = max_open_files

    def take(self, dynamic: DynamicBrokerConfig, of_listeners: Mapping[str, str]) -> None:
        """Apply the present dynamic values. Key stores follow soon, see :meth:`NodeTls.renew`.

        :param of_listeners: values of single listeners by full key, with references.
        """
        limits = {k: v for k, v in of_listeners.items() if not is_dynamic_store_key(k)}
        config = self._config.with_dynamic(dynamic, limits)
        for name, listener in self._listeners.items():
            changed = broker_listener_limits(config, self._max_open_files, name)
            listener.quotas.set_limits(changed.quotas)
        for name in self._config.known_listeners:
            tls = self._tls.listener(name)
            if tls is not None:
                tls.use_config(partial(self._read_config, dynamic, of_listeners, name))

    async def check(self, of_listeners: Mapping[str, str]) -> None:
        """Require that the key stores of single listeners can be used.

        :param of_listeners: values of this broker by full key, with references.
        :raises ConfigError: naming the listener or key, and what cannot be used.
        """
        stores = {key: v for key, v in of_listeners.items() if is_dynamic_store_key(key)}
        for name in sorted({str(listener_of(key)) for key in stores}):
            if name not in self._config.known_listeners:
                raise ConfigError(
                    f"the broker has no listener {name}: "
                    f"{', '.join(sorted(self._config.known_listeners))} exist"
                )
            tls = self._tls.listener(name)
            if tls is None:
                protocol = self._config.protocol_of(name)
                raise ConfigError(f"the listener {name} has no TLS: its protocol is {protocol}")
            try:
                await tls.check_config(partial(self._read_config, self._config, stores, name))
            except ConfigError as e:
                raise ConfigError(f"listener {name}: {e}") from e

    def _read_config(
        self, dynamic: DynamicBrokerConfig, of_listeners: Mapping[str, str], name: str
    ) -> ListenerConfig:
        """Return the configuration of one listener. Reads files of references."""
        own = {key: text for key, text in of_listeners.items() if listener_of(key) == name}
        resolved = self._references.resolve(own)
        return self._config.with_dynamic(dynamic, resolved).of_listener(name)
