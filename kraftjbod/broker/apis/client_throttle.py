"""LOOP. ``ClientThrottle``: delays clients that exceed their quotas of Produce and Fetch (KIP-219).

* A response is sent at once, with the time that the client has to wait (``throttle_time_ms``). For
  that time nothing of its connection is read, because older clients do not wait.
* Records are counted after the append, and before a response with fetched records. A fetch returns
  at most the bytes of a whole burst, and none while its client waits, as with Kafka. Otherwise each
  further connection of a client could exceed the quota by a burst.
* Fetches of followers are exempt; ``following/replication_quotas.py`` limits them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Final

from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.client_quota import (
    CONSUMER_BYTE_RATE,
    PRODUCER_BYTE_RATE,
    QuotaEntity,
    client_entity,
)
from kraftjbod.core.loop.client_rates import ClientRates
from kraftjbod.core.loop.completion import Completion
from kraftjbod.net.cluster_actions import fetching_replica
from kraftjbod.protocol.kafka_codec import Message
from kraftjbod.protocol.messages import (
    FetchRequest,
    FetchResponse,
    ProduceRequest,
    ProduceResponse,
)

#: A client waits no longer; its debt stays, so that it waits again after its next request.
MAX_THROTTLE_MS: Final = 3_600_000

Call = Callable[[RequestContext], Awaitable[Message | None]]


class ClientThrottle:
    def __init__(self, rates: ClientRates) -> None:
        self._rates = rates

    def limits(self, request: ProduceRequest | FetchRequest) -> bool:
        """Return whether any client has a quota for requests of this kind, Produce or Fetch."""
        return self._rates.is_set(_key_of(request))

    def answer(
        self, request: ProduceRequest | FetchRequest, context: RequestContext, call: Call
    ) -> Awaitable[Message | None]:
        """Return the response of ``call``, and delay the connection if a quota is exceeded.

        Reduces ``max_bytes`` of a consumer's fetch to the burst of its quota. A fetch of a client
        that has to wait returns no records.
        """
        if isinstance(request, FetchRequest):
            if fetching_replica(request, context.api_version) >= 0:
                return call(context)
            client = client_of(context)
            most_bytes = self._rates.burst(CONSUMER_BYTE_RATE, client)
            if most_bytes is None:
                return call(context)
            request.max_bytes = min(request.max_bytes, most_bytes)
            if self._rates.wait_ms(CONSUMER_BYTE_RATE, client):
                context = replace(context, is_over_quota=True)
            charge = partial(self._charge_fetch, context)
        else:
            charge = partial(self._charge_produce, context, _produced_bytes(request))
        answering = call(context)
        if isinstance(answering, Completion):
            return answering.map(charge)
        return _after(answering, charge)

    def _charge_produce(
        self, context: RequestContext, size_bytes: int, response: Message | None
    ) -> Message | None:
        wait_ms = self._charge(PRODUCER_BYTE_RATE, context, size_bytes)
        if wait_ms and isinstance(response, ProduceResponse):
            response.throttle_time_ms = wait_ms
        return response

    def _charge_fetch(self, context: RequestContext, response: Message | None) -> Message | None:
        if isinstance(response, FetchResponse):
            wait_ms = self._charge(CONSUMER_BYTE_RATE, context, _fetched_bytes(response))
            if context.is_over_quota:
                # Without a throttle time an empty response to a full fetch would be an error.
                wait_ms = max(1, wait_ms)
            if wait_ms:
                response.throttle_time_ms = wait_ms
        return response

    def _charge(self, key: str, context: RequestContext, size_bytes: int) -> int:
        wait_ms = min(self._rates.spend(key, client_of(context), size_bytes), MAX_THROTTLE_MS)
        if wait_ms:
            context.connection.mute(wait_ms)
        return wait_ms


async def _after(
    answering: Awaitable[Message | None], charge: Callable[[Message | None], Message | None]
) -> Message | None:
    return charge(await answering)


def client_of(context: RequestContext) -> QuotaEntity:
    """Return the user and the client id of the request as the entity that quotas apply to."""
    return client_entity(context.connection.principal.partition(":")[2], context.client_id or "")


def _key_of(request: ProduceRequest | FetchRequest) -> str:
    return CONSUMER_BYTE_RATE if isinstance(request, FetchRequest) else PRODUCER_BYTE_RATE


def _produced_bytes(request: ProduceRequest) -> int:
    return sum(
        len(part.records)
        for topic in request.topic_data
        for part in topic.partition_data
        if part.records is not None
    )


def _fetched_bytes(response: FetchResponse) -> int:
    return sum(
        len(part.records)
        for topic in response.responses
        for part in topic.partitions
        if part.records is not None
    )
