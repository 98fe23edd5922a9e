"""WIRE. ``NodeTls``: TLS of a daemon's listeners and of its connections to other nodes.

One thread reads the files of all of them.

The modules that need the package cryptography are imported at the first listener with TLS, because
that import takes 0.1 s.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from kraftjbod.core.loop.job_guard import JobGuard
from kraftjbod.core.node_config import NodeConfig
from kraftjbod.core.security_keys import TLS_PROTOCOLS
from kraftjbod.daemon.process.environment import Environment
from kraftjbod.net.dialer import PLAIN, Dialer
from kraftjbod.net.plain_credential import PlainCredential
from kraftjbod.net.tls_transport import TlsSettings

if TYPE_CHECKING:
    from kraftjbod.daemon.tls.listener_tls import ListenerTls


class NodeTls:
    """Loads the keys and certificates of a node's TLS listeners, and renews them when their files
    change."""

    def __init__(self, config: NodeConfig, environment: Environment) -> None:
        self._config = config
        self._clock = environment.clock
        self._executor = environment.make_executor(name="tls", clock=environment.clock)
        self._jobs = JobGuard()
        #: By upper-case name; only listeners with TLS.
        self._listeners: dict[str, ListenerTls] = {}
        environment.metrics.gauges(lambda: dict(self._figures()))

    async def open_listeners(self) -> None:
        """Load keys and certificates of all listeners that this node serves or connects to.

        :raises ConfigError: naming the listener, and what cannot be used.
        """
        served = [endpoint.name for endpoint in self._config.listeners]
        dialed = self._config.node_listeners
        for name in dict.fromkeys((*served, *dialed)):
            if self._config.protocol_of(name) not in TLS_PROTOCOLS:
                continue
            from kraftjbod.daemon.tls.listener_tls import open_tls

            self._listeners[name] = await open_tls(
                self._config.of_listener(name),
                name,
                executor=self._executor,
                clock=self._clock,
                serves=name in served,
                dials=name in dialed,
            )

    def settings_of(self, name: str) -> TlsSettings | None:
        """Return the TLS settings of the listener ``name``, None for a plaintext one.

        Call it after :meth:`open_listeners`: before, every listener seems to be a plaintext one.
        """
        listener = self._listeners.get(name)
        return None if listener is None else listener.settings

    def dialer_of(self, name: str) -> Dialer:
        """Return the dialer of connections to the listener ``name`` of other nodes. It uses TLS if
        this node's listener of that name has TLS. For the controllers' listener with SASL, it has
        this node's credential.

        Call it after :meth:`open_listeners`.
        """
        listener = self._listeners.get(name)
        dialer = PLAIN if listener is None else Dialer(listener.client_settings)
        login = self._config.login_of(name)
        if login is None or name != self._config.controller_listener:
            return dialer
        return dialer.with_credential(PlainCredential(login.user, login.password))

    def listener(self, name: str) -> ListenerTls | None:
        """Return the TLS of the listener ``name``, None for a plaintext one.

        Call it after :meth:`open_listeners`.
        """
        return self._listeners.get(name)

    async def renew(self) -> None:
        """Load changed files and configurations of all listeners now. Contents that cannot be used
        are logged, and the previous ones stay in use."""
        for listener in self._listeners.values():
            await listener.renew()

    async def run_renewals(self) -> None:
        """Renew the certificates of the listeners that are open now, until cancelled.

        A bug while files are loaded restarts the renewals of that listener, and ends no daemon.
        """
        if not self._listeners:
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as renewals:
            for listener in self._listeners.values():
                renewals.create_task(self._jobs.keep("tls_renewals", listener.run_renewals))

    def close(self) -> None:
        """Let the thread end, without waiting for a disk that hangs."""
        self._executor.shutdown(wait=False)

    def _figures(self) -> Iterator[tuple[str, float]]:
        for listener in self._listeners.values():
            if math.isinf(listener.seconds_until_expiry):
                continue
            name = listener.listener_name
            yield f'CertificateSecondsUntilExpiry,listener="{name}"', listener.seconds_until_expiry
