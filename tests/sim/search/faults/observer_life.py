"""``ObserverLife``: an observer controller that repeatedly runs, dies and returns.

It starts once the metadata log names the voters. No fault of the schedule strikes it, because no
promise depends on it: it may be down, cut off or behind at any time.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from kraftjbod.testing.simulation.simulated_cluster import SimulatedController
from tests.sim.search.faults.log_end_damage import damage_log_end
from tests.sim.search.faults.stage import Stage
from tests.sim.search.metadata_files import names_voters

_UP_S: Final = (1.0, 8.0)
_DOWN_S: Final = (0.1, 4.0)


class ObserverLife:
    """
    :param name_voters: makes the metadata log name the voters.
    :param loses_end: called with the host's name when the end of its log was damaged, and with the
        offset of the last entry that was provably lost.
    :param forgets_all: called with the host's name when its disk was replaced by an empty one.
    """

    def __init__(
        self,
        host: SimulatedController,
        stage: Stage,
        rng: random.Random,
        *,
        name_voters: Callable[[], Awaitable[None]],
        loses_end: Callable[[str, int | None], None],
        forgets_all: Callable[[str], None],
    ) -> None:
        self._host = host
        self._stage = stage
        self._rng = rng
        self._name_voters = name_voters
        self._loses_end = loses_end
        self._forgets_all = forgets_all
        self._strikes = (
            self._kill,
            self._lose_power,
            self._stop,
            self._isolate,
            self._damage_log_end,
        )

    async def run(self) -> None:
        """Run until cancelled; call :meth:`end` afterwards."""
        await self._name_voters()
        self._start()
        while True:
            await asyncio.sleep(self._rng.uniform(*_UP_S))
            await self._rng.choice(self._strikes)()
            self._start()

    def end(self) -> None:
        """Start the observer if it is down, reconnect it, and cancel a pending kill."""
        self._host.spare()
        self._stage.cluster.network.heal(self._host.name)
        self._start()

    def _start(self) -> None:
        if not self._host.is_up:
            self._host.start()

    async def _kill(self) -> None:
        self._stage.note(f"{self._host.name} is killed")
        self._host.at_operation(self._rng.randint(1, 8), self._host.kill)
        await self._wait()
        self._host.spare()

    async def _lose_power(self) -> None:
        self._stage.note(f"{self._host.name} loses its power")
        self._host.power_cut()
        await self._wait()

    async def _damage_log_end(self) -> None:
        """Damage any entries of the log: no majority counts the entries of an observer."""
        self._host.kill()
        damage = damage_log_end(self._host.metadata_disk, (), 0, self._rng)
        if damage is not None:
            self._loses_end(self._host.name, damage.proven_end)
            self._stage.note(damage.text)
            if damage.proven_end is not None and not names_voters(self._host.metadata_disk):
                self._replace_disk()
        await self._wait()

    def _replace_disk(self) -> None:
        """Follow the manual. The rest of the log does not tell whether this controller votes, so it
        refuses to start.
        """
        self._stage.note(f"{self._host.name} gets an empty metadata disk")
        self._stage.cluster.replace_metadata_disk(self._host)
        self._forgets_all(self._host.name)

    async def _stop(self) -> None:
        self._stage.note(f"{self._host.name} is stopped")
        self._host.stop()
        await self._wait()

    async def _isolate(self) -> None:
        self._stage.note(f"{self._host.name} is cut off")
        self._stage.cluster.network.isolate(self._host.name)
        await self._wait()
        self._stage.cluster.network.heal(self._host.name)

    async def _wait(self) -> None:
        await asyncio.sleep(self._rng.uniform(*_DOWN_S))
