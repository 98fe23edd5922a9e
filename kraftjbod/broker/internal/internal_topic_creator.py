"""LOOP. ``InternalTopicCreator``: makes the controller create a missing internal topic.

Any broker that misses the topic requests it; with several requests the first one succeeds.
An operator may add partitions later. A deleted internal topic is created again.
"""

from __future__ import annotations

from typing import NamedTuple

from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.internal.internal_topics import CreationPlan, InternalTopic
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.protocol.rpc_messages import CreatedTopic


class Creation(NamedTuple):
    """Result of :meth:`InternalTopicCreator.ensure`.

    ``is_there`` is False while too few brokers are alive to create the topic. If True, the topic is
    in the metadata or will be soon.
    """

    is_there: bool
    created: CreatedTopic | None = None
    """The topic if this call created it."""


class InternalTopicCreator:
    def __init__(
        self, *, cache: MetadataCache, channel: ControllerChannel, request_timeout_ms: int
    ) -> None:
        self._cache = cache
        self._channel = channel
        self._request_timeout_ms = request_timeout_ms
        self._plans: dict[str, CreationPlan] = {}

    async def ensure(self, topic: InternalTopic) -> Creation:
        """Make the controller create ``topic`` if it is missing. Each call makes at most one
        request.

        A topic that accepts fewer replicas first waits some calls for more brokers.

        :raises OperatingError: the controller's reason not to create it.
        """
        plan = self._plans.get(topic.name)
        if plan is None:
            plan = CreationPlan(replication_factor=topic.replication_factor)
            self._plans[topic.name] = plan
        if self._cache.state.topic(topic.name) is not None:
            plan.note_present()
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
