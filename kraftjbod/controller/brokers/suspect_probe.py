"""LOOP. ``SuspectProbe``: is a broker dead that closed its connection?

Whoever lives listens at its address. Where connections are refused there is no process any more,
so its session need not last the grace in which it could connect again. Any other outcome, no
answer among them, says nothing: the grace or the session decides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from kraftjbod.metadata.registrations import BrokerRegistration

#: Before each try: the kernel closes the sockets of a process one after the other.
_PAUSES_MS: Final = (0, 20, 100)

IsRefused = Callable[[str, int], Awaitable[bool]]
"""Given host and port: whether connections are refused there, as far as that can be told soon."""


class SuspectProbe:
    """``run()`` for as long as the controller lives, ``wake()`` when there may be suspects."""

    def __init__(
        self,
        *,
        take_suspects: Callable[[], Sequence[BrokerRegistration]],
        is_refused: IsRefused,
        on_refused: Callable[[BrokerRegistration], Awaitable[None]],
    ) -> None:
        """
        :param take_suspects: each broker once.
        :param on_refused: the broker may have been heard meanwhile.
        """
        self._take_suspects = take_suspects
        self._is_refused = is_refused
        self._on_refused = on_refused
        self._woken = asyncio.Event()

    def wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
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
