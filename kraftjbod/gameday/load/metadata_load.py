"""LOOP. Operations that a controller decides, one after the other: how long there was none.

Each changes the configuration of a topic, to and fro: a record of the metadata log that means
nothing to anybody, and that may be written twice.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from itertools import pairwise
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from kraftjbod.core.errors import OperatingError

#: Operations are at least so far apart.
_PAUSE_S: Final = 0.02
#: One that waits for a broker that stands still asks another one after it.
_REQUEST_TIMEOUT_MS: Final = 2_000
_KEY: Final = "retention.ms"
_WEEK_MS: Final = 604_800_000


class MetadataLoad:
    """Has a client of its own; ``acks`` are the instants (monotonic) of what was done."""

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.acks: list[float] = []
        #: Why the last one was refused.
        self.trouble: str | None = None
        self._bootstrap_servers = bootstrap_servers
        self._topic = ConfigResource(ResourceType.TOPIC, topic)

    async def run(self) -> None:
        """Until cancelled."""
        async with ClusterClient(
            self._bootstrap_servers, request_timeout_ms=_REQUEST_TIMEOUT_MS
        ) as client:
            for number in itertools.count():
                value = str(_WEEK_MS + number % 2)
                try:
                    if not client.metadata.brokers:
                        # Who was named to the tool may be the one that is away next.
                        await client.refresh_metadata([self._topic.name])
                    await incremental_alter_configs(
                        client, {self._topic: [ConfigChange(_KEY, value)]}
                    )
                    self.acks.append(time.monotonic())
                except OperatingError as e:
                    self.trouble = str(e)
                await asyncio.sleep(_PAUSE_S)

    def longest_gap_ms(self, from_s: float, to_s: float) -> int:
        """The longest time without one that was done, between the two instants."""
        instants = [from_s, *(at_s for at_s in self.acks if from_s <= at_s <= to_s), to_s]
        return round(max(b - a for a, b in pairwise(instants)) * 1000)
