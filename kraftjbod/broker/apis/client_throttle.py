"""LOOP. ``ClientThrottle``: delays clients that exceed their quotas of Produce and Fetch (KIP-219).

* A response is sent at once, with the time that the client has to wait (``throttle_time_ms``). For
  that time nothing of its connection is read, because older clients do not wait.
* Records are counted after the append, and before a response with fetched records. A fetch returns
  at most the bytes of a whole burst.
* Fetches of followers are exempt; ``following/replication_quotas.py`` limits them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.security.client_quotas import ClientQuotas
from kraftjbod.core.client_quota import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE
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

Call = Callable[[], Awaitable[Message | None]]


class ClientThrottle:
    def __init__(self, quotas: ClientQuotas) -> None:
        self._quotas = quotas

    def answer(
        self, request: ProduceRequest | FetchRequest, context: RequestContext, call: Call
    ) -> Awaitable[Message | None]:
        """Return the response of ``call``, and delay the connection if a quota is exceeded."""
        if isinstance(request, FetchRequest):
            if fetching_replica(request, context.api_version) >= 0:
                return call()
            most_bytes = self._quotas.most_bytes(CONSUMER_BYTE_RATE, *_client(context))
            if most_bytes is not None:
                request.max_bytes = min(request.max_bytes, most_bytes)
            charge = partial(self._charge_fetch, context)
        else:
            charge = partial(self._charge_produce, context, _produced_bytes(request))
        answering = call()
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
            if wait_ms:
                response.throttle_time_ms = wait_ms
        return response

    def _charge(self, key: str, context: RequestContext, size_bytes: int) -> int:
        wait_ms = min(self._quotas.spend(key, *_client(context), size_bytes), MAX_THROTTLE_MS)
        if wait_ms:
            context.connection.mute(wait_ms)
        return wait_ms


async def _after(
    answering: Awaitable[Message | None], charge: Callable[[Message | None], Message | None]
) -> Message | None:
    return charge(await answering)


def _client(context: RequestContext) -> tuple[str, str]:
    """Return the user and the client id."""
    return context.connection.principal.partition(":")[2], context.client_id or ""


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
