"""LOOP. ``SuspectProbe``: checks whether a broker that closed its connection is dead.

A live broker listens at its address. If connections are refused, the process is gone, and its
session ends without waiting for the reconnect grace. Any other outcome, including no answer, proves
nothing: then the grace or the session decides (ADR 90).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from kraftjbod.metadata.registrations import BrokerRegistration

#: Pauses before each attempt, because the kernel closes the sockets of a process one by one.
_PAUSES_MS: Final = (0, 20, 100)

IsRefused = Callable[[str, int], Awaitable[bool]]
"""Given host and port: whether connections are refused there."""


class SuspectProbe:
    """Probes the addresses of brokers that may be dead.

    Run ``run_probes()`` while the controller runs. Call ``wake()`` when there may be suspects.
    """

    def __init__(
        self,
        *,
        take_suspects: Callable[[], Sequence[BrokerRegistration]],
        is_refused: IsRefused,
        on_refused: Callable[[BrokerRegistration], Awaitable[None]],
    ) -> None:
        """

        :param take_suspects: returns the brokers that may be dead and were not returned before.
        :param is_refused: returns whether an address refuses connections.
        :param on_refused: called with a suspect whose addresses all refuse connections. The suspect
            may have sent a request meanwhile.
        """
        self._take_suspects = take_suspects
        self._is_refused = is_refused
        self._on_refused = on_refused
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def run_probes(self) -> None:
        while True:
            await self._woken.wait()
            self._woken.clear()
            await asyncio.gather(*map(self._probe, self._take_suspects()))

    async def _probe(self, broker: BrokerRegistration) -> None:
        for pause_ms in _PAUSES_MS:
            await asyncio.sleep(pause_ms / 1000)
            asked = (self._is_refused(one.host, one.port) for one in broker.listeners)
            refusals = await asyncio.gather(*asked)
            if refusals and all(refusals):
                await self._on_refused(broker)
                return
