"""``Expiring``: a topic with a small retention size, continuously written and read."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigResource,
    ResourceType,
    incremental_alter_configs,
)
from kraftjbod.core.ids import TopicId
from tests.sim.search.applications.application import Surroundings
from tests.sim.search.applications.topic_load import OwnedTopic, TopicLoad
from tests.sim.search.ledgers.ledger import Ledger

TOPIC: Final = "expiring"
PARTITIONS: Final = 1
_RETAINED_BYTES: Final = 2_000
_SEGMENT_BYTES: Final = 1_024
_RECORD_PAUSE_S: Final = (0.1, 0.3)
_FILLER: Final = bytes(150)


class Expiring(OwnedTopic):
    """See :class:`~.application.Application`."""

    topics: Mapping[str, int] = MappingProxyType({TOPIC: PARTITIONS})

    def __init__(self, rng: random.Random, around: Surroundings, ledger: Ledger) -> None:
        super().__init__(around)
        self._pause_s = rng.uniform(*_RECORD_PAUSE_S)
        self._ledger = ledger
        self._client = around.client("expiring")
        ledger.retained_bytes[TOPIC] = _RETAINED_BYTES

    @property
    def latest_start(self) -> int:
        """Largest offset up to which consumers found records removed."""
        return 0 if self._load is None else self._load.latest_start

    def start(self) -> None:
        self._owning = self._around.begin(self._begin(), "expiring")

    async def _begin(self) -> None:
        changes = [
            ConfigChange("retention.bytes", str(_RETAINED_BYTES)),
            ConfigChange("segment.bytes", str(_SEGMENT_BYTES)),
        ]
        resource = ConfigResource(ResourceType.TOPIC, TOPIC)
        await self._client.retry(
            lambda: incremental_alter_configs(self._client, {resource: changes}), topics=[TOPIC]
        )
        topic_id = await self._client.retry(self._topic_id, topics=[TOPIC])
        self._load = TopicLoad(
            self._around,
            self._ledger,
            TOPIC,
            topic_id,
            key=TOPIC,
            writer=self._client,
            reader=self._around.client("expiring-reader"),
            pause_s=self._pause_s,
            filler=_FILLER,
        )
        for _ in range(PARTITIONS):
            self._load.begin()

    async def _topic_id(self) -> TopicId:
        """:raises OperatingError: the broker does not know the topic yet."""
        await self._client.refresh_metadata([TOPIC])
        return TopicId(self._client.metadata.topic(TOPIC).topic_id)

    def silent_since(self, since_ms: int) -> list[str]:
        acked_ms = -1 if self._load is None else self._load.acked_ms
        is_silent = acked_ms <= since_ms
        return [f"{TOPIC} has no acknowledgement since {since_ms / 1000:.3f} s"] * is_silent
