"""WIRE. ``ListenerOauth``: the keys that verify tokens, of all listeners with OAUTHBEARER.

The modules that need the package joserfc are imported at the first such listener, because that
import takes 0.1 s.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.loop.job_guard import JobGuard
from kraftjbod.core.oauthbearer_config import OAUTHBEARER
from kraftjbod.core.security_keys import SASL_PROTOCOLS
from kraftjbod.daemon.process.environment import Environment

if TYPE_CHECKING:
    from kraftjbod.daemon.jwks_source import JwksSource


class ListenerOauth:
    """Reads the JWKS documents of a broker's listeners, in one thread per listener."""

    def __init__(self, config: BrokerConfig, environment: Environment) -> None:
        self._config = config
        self._environment = environment
        self._jobs = JobGuard()
        #: By upper-case name; only listeners with OAUTHBEARER.
        self._sources: dict[str, JwksSource] = {}

    async def open_listeners(self) -> None:
        """Read the JWKS documents for the first time.

        :raises ConfigError: naming the listener whose document is a file that cannot be used.
        """
        for name in dict.fromkeys(endpoint.name for endpoint in self._config.listeners):
            own = self._config.of_listener(name)
            if self._config.protocol_of(name) not in SASL_PROTOCOLS:
                continue
            if OAUTHBEARER not in own.sasl_enabled_mechanisms:
                continue
            from kraftjbod.daemon.jwks_source import JwksSource

            environment = self._environment
            self._sources[name] = JwksSource(
                own,
                name,
                executor=environment.make_executor(name="jwks", clock=environment.clock),
                clock=environment.clock,
                random_unit=environment.rng.random,
            )
            await self._sources[name].open()

    def keys_of(self, name: str) -> JwksSource | None:
        """Return the keys of the listener ``name``; None if it has no OAUTHBEARER.

        Call it after :meth:`open_listeners`.
        """
        return self._sources.get(name)

    async def run_refreshes(self) -> None:
        """Refresh the keys of the listeners that are open now, until cancelled.

        A bug restarts the refreshes of that listener, and ends no daemon.
        """
        if not self._sources:
            await asyncio.Event().wait()
        async with asyncio.TaskGroup() as refreshes:
            for source in self._sources.values():
                refreshes.create_task(self._jobs.keep("jwks_refreshes", source.run_refreshes))

    def close(self) -> None:
        """Let the threads end, without waiting for a server that does not answer."""
        for source in self._sources.values():
            source.close()
