"""LOOP. ``InternalTopicCreator``: has the controller make an internal topic that is missing.

Whichever broker finds it missing asks for it; several may, and the first one has it.
Growing it later is an operator's choice, as with any topic. Deleted, it comes back.
"""

from __future__ import annotations

from typing import NamedTuple

from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.internal.internal_topics import CreationPlan, InternalTopic
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.rpc_messages import CreatedTopic


class Creation(NamedTuple):
    """Whether the topic exists, or will as soon as metadata brings it."""

    is_there: bool
    created: CreatedTopic | None = None
    """What the controller made at this broker's wish just now."""


class InternalTopicCreator:
    def __init__(
        self, *, cache: MetadataCache, channel: ControllerChannel, request_timeout_ms: int
    ) -> None:
        self._cache = cache
        self._channel = channel
        self._request_timeout_ms = request_timeout_ms
        self._plans: dict[str, CreationPlan] = {}

    async def ensure(self, topic: InternalTopic) -> Creation:
        """Ask for ``topic`` if it is missing; one round of patience if it takes fewer replicas.

        :raises OperatingError: why the controller does not create it.
        """
        plan = self._plans.get(topic.name)
        if plan is None:
            plan = CreationPlan(replication_factor=topic.replication_factor)
            self._plans[topic.name] = plan
        if self._cache.state.topic(topic.name) is not None:
            plan.there()
            return Creation(is_there=True)
        factor: int | None = topic.replication_factor
        if topic.takes_fewer_replicas:
            factor = plan.missing(len(self._cache.alive_brokers()))
            if factor is None:
                return Creation(is_there=False)
        response = await self._channel.call(
            topic.creation(factor), timeout_ms=self._request_timeout_ms
        )
        (created,) = response.topics
        if created.error_code is ErrorCode.TOPIC_ALREADY_EXISTS:
            return Creation(is_there=True)
        if created.error_code is ErrorCode.INVALID_REPLICATION_FACTOR:
            plan.refused()
        if created.error_code is not ErrorCode.NONE:
            raise OperatingError(
                created.error_message or f"{topic.name} was not created", code=created.error_code
            )
        return Creation(is_there=True, created=created)
