"""LOOP. ElectLeaders (KIP-460) and UnregisterBroker (KIP-631), forwarded to the controller.

The broker makes no decisions here, as in topic_apis.py. For a request about all partitions it
selects those whose leader is not the wanted one, and reports only these, as Kafka does.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from kraftjbod.broker.apis.admin.forwarding import forward
from kraftjbod.broker.cluster.controller_channel import ControllerChannel, forward_timeout_ms
from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import MAX_BROKER_ID, BrokerEpoch, BrokerId
from kraftjbod.core.loop.work_slices import in_slices
from kraftjbod.protocol import rpc_config_messages
from kraftjbod.protocol.messages import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)
from kraftjbod.protocol.rpc_config_messages import (
    ElectedPartition,
    ElectionOutcome,
    ElectionType,
)

Result = ElectLeadersResponse.ReplicaElectionResult
#: From this version on there are election types and an error of the whole request.
_TYPED_SINCE: Final = 1


class ElectionApis:
    def __init__(
        self, *, channel: ControllerChannel, cache: MetadataCache, unregister_timeout_ms: int
    ) -> None:
        """Create the handlers.

        :param unregister_timeout_ms: time limit of UnregisterBroker, whose request has no timeout.
        """
        self._channel = channel
        self._cache = cache
        self._unregister_timeout_ms = unregister_timeout_ms

    async def elect_leaders(
        self, request: ElectLeadersRequest, context: RequestContext
    ) -> ElectLeadersResponse:
        try:
            kind = _election_type(request, context.api_version)
        except OperatingError as e:
            return ElectLeadersResponse(error_code=e.code)
        of_all = request.topic_partitions is None
        wanted = (
            await self._without_elected_leader(kind)
            if of_all
            else list(dict.fromkeys(_named(request)))
        )
        outcomes = await forward(
            self._channel,
            wanted,
            ask=lambda part: rpc_config_messages.ElectLeadersRequestRpc(
                election_type=kind, partitions=part
            ),
            outcomes=lambda answer: answer.partitions,
            refuse=_refused,
            timeout_ms=request.timeout_ms,
        )
        by_topic: dict[str, list[ElectLeadersResponse.PartitionResult]] = defaultdict(list)
        async for outcome in in_slices(outcomes):
            if of_all and outcome.error_code is ErrorCode.ELECTION_NOT_NEEDED:
                continue
            by_topic[outcome.topic].append(
                ElectLeadersResponse.PartitionResult(
                    partition_id=outcome.partition,
                    error_code=outcome.error_code,
                    error_message=outcome.error_message,
                )
            )
        return ElectLeadersResponse(
            replica_election_results=[
                Result(topic=topic, partition_result=results) for topic, results in by_topic.items()
            ]
        )

    async def _without_elected_leader(self, kind: ElectionType) -> list[ElectedPartition]:
        found: list[ElectedPartition] = []
        async for topic in in_slices(list(self._cache.state.topics.values())):
            for index, partition in topic.partitions.items():
                is_led = partition.has_leader
                if kind is ElectionType.PREFERRED:
                    is_led = partition.leader == partition.preferred_leader
                if not is_led:
                    found.append(ElectedPartition(topic=topic.name, partition=index))
        return found

    async def unregister_broker(
        self, request: UnregisterBrokerRequest, _context: RequestContext
    ) -> UnregisterBrokerResponse:
        response = UnregisterBrokerResponse(error_message=None)
        try:
            _require_broker_id(request.broker_id)
            broker_id = BrokerId(request.broker_id)
            found = self._cache.state.brokers.get(broker_id)
            await self._channel.forward(
                rpc_config_messages.UnregisterBrokerRequestRpc(
                    broker_id=broker_id,
                    found_epoch=BrokerEpoch(-1) if found is None else found.epoch,
                ),
                timeout_ms=forward_timeout_ms(self._unregister_timeout_ms),
            )
        except OperatingError as e:
            response.error_code, response.error_message = e.code, e.message
        return response


def _require_broker_id(number: int) -> None:
    if not 0 <= number <= MAX_BROKER_ID:
        raise OperatingError(
            f"Broker ID {number} is not currently registered",
            code=ErrorCode.BROKER_ID_NOT_REGISTERED,
        )


def _election_type(request: ElectLeadersRequest, version: int) -> ElectionType:
    """Return the requested election type: PREFERRED for versions before 1.

    :raises OperatingError: INVALID_REQUEST: Kafka has no type with this number.
    """
    if version < _TYPED_SINCE:
        return ElectionType.PREFERRED
    try:
        return ElectionType(request.election_type)
    except ValueError:
        raise OperatingError(
            f"Unknown election type {request.election_type}", code=ErrorCode.INVALID_REQUEST
        ) from None


def _named(request: ElectLeadersRequest) -> Iterator[ElectedPartition]:
    for topic in request.topic_partitions or ():
        for index in topic.partitions:
            yield ElectedPartition(topic=topic.topic, partition=index)


def _refused(wanted: ElectedPartition, error: OperatingError) -> ElectionOutcome:
    return ElectionOutcome(
        topic=wanted.topic,
        partition=wanted.partition,
        error_code=error.code,
        error_message=error.message,
    )
