"""WIRE. ``NodeTls``: TLS of all listeners of a daemon, with one thread that reads their files.

The modules that need the package cryptography are imported at the first listener with TLS, because
that import takes 0.1 s.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kraftjbod.core.listener_config import ListenerConfig
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.net.tls_transport import TlsSettings

if TYPE_CHECKING:
    from kraftjbod.daemon.tls.listener_tls import ListenerTls


class NodeTls:
    """Opens the TLS of listeners, and renews their certificates."""

    def __init__(self, environment: Environment) -> None:
        self._clock = environment.clock
        self._executor = environment.make_executor(name="tls", clock=environment.clock)
        self._listeners: list[ListenerTls] = []
        environment.metrics.gauges(lambda: dict(self._figures()))

    async def open_listener(self, config: ListenerConfig, name: str) -> TlsSettings:
        """Load keys and certificates of a listener.

        :param name: upper-case name of the listener.
        :raises ConfigError: naming the listener, and what cannot be used.
        """
        from kraftjbod.daemon.tls.listener_tls import open_tls

        listener = await open_tls(config, name, executor=self._executor, clock=self._clock)
        self._listeners.append(listener)
        return listener.settings

    async def run_renewals(self) -> None:
        """Renew the certificates of the listeners that are open now, until cancelled."""
        async with asyncio.TaskGroup() as renewals:
            for listener in self._listeners:
                renewals.create_task(listener.run_renewals())

    def close(self) -> None:
        """Let the thread end, without waiting for a disk that hangs."""
        self._executor.shutdown(wait=False)

    def _figures(self) -> Iterator[tuple[str, float]]:
        for listener in self._listeners:
            name = listener.listener_name
            yield f'CertificateSecondsUntilExpiry,listener="{name}"', listener.seconds_until_expiry
