"""LOOP. A sequence of operations that need a controller, to measure the gaps between successes.

Each operation toggles a configuration value of a topic. Such a metadata record is harmless and may
be written twice.
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

#: Pause between operations.
_PAUSE_S: Final = 0.02
#: After this time a request to a paused broker is sent to another one.
_REQUEST_TIMEOUT_MS: Final = 2_000
_KEY: Final = "retention.ms"
_WEEK_MS: Final = 604_800_000


class MetadataLoad:
    """Changes a configuration value of ``topic`` again and again, to measure how long no controller
    acts.

    ``acks`` has the time (monotonic, in seconds) of each change that succeeded.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.acks: list[float] = []
        #: Why the last failed operation was refused.
        self.trouble: str | None = None
        self._bootstrap_servers = bootstrap_servers
        self._topic = ConfigResource(ResourceType.TOPIC, topic)

    async def run_load(self) -> None:
        """Make changes until cancelled, with a pause of 20 ms after each. A failed change is
        recorded in ``trouble``, and is not raised."""
        async with ClusterClient(
            self._bootstrap_servers, request_timeout_ms=_REQUEST_TIMEOUT_MS
        ) as client:
            for number in itertools.count():
                value = str(_WEEK_MS + number % 2)
                try:
                    if not client.metadata.brokers:
                        # The bootstrap server may become unavailable, so learn the other brokers.
                        await client.refresh_metadata([self._topic.name])
                    await incremental_alter_configs(
                        client, {self._topic: [ConfigChange(_KEY, value)]}
                    )
                    self.acks.append(time.monotonic())
                except OperatingError as e:
                    self.trouble = str(e)
                await asyncio.sleep(_PAUSE_S)

    def longest_gap_ms(self, from_s: float, to_s: float) -> int:
        """Return the longest time, in milliseconds, without a successful change between two times
        (monotonic, in seconds). Both ends count as successes."""
        instants = [from_s, *(at_s for at_s in self.acks if from_s <= at_s <= to_s), to_s]
        return round(max(b - a for a, b in pairwise(instants)) * 1000)
