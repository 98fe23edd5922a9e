"""PURE. ``ProducerIdControlManager``: allocates blocks of producer ids, each block once."""

from __future__ import annotations

from typing import Final

from kraftjbod.controller.cluster_control import ClusterControlManager
from kraftjbod.controller.result import ControllerResult
from kraftjbod.metadata.records import ProducerIdsRecord
from kraftjbod.metadata.state import MetadataState
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

PRODUCER_ID_BLOCK_SIZE: Final = 1000


class ProducerIdControlManager:
    """Gives blocks of producer ids to brokers. Returns records; the replay of the records changes
    the metadata.
    """

    def __init__(self, *, state: MetadataState, cluster: ClusterControlManager) -> None:
        self._state = state
        self._cluster = cluster

    def allocate(
        self, request: AllocateProducerIdsRequest
    ) -> ControllerResult[AllocateProducerIdsResponse]:
        """Return the record and the response that give the next block of producer ids to a broker.

        :raises OperatingError: BROKER_ID_NOT_REGISTERED or STALE_BROKER_EPOCH.
        """
        self._cluster.require_epoch(request.broker_id, request.broker_epoch)
        start = self._state.next_producer_id
        record = ProducerIdsRecord(
            broker_id=request.broker_id,
            broker_epoch=request.broker_epoch,
            next_producer_id=start + PRODUCER_ID_BLOCK_SIZE,
        )
        response = AllocateProducerIdsResponse(
            producer_id_start=start, producer_id_count=PRODUCER_ID_BLOCK_SIZE
        )
        return ControllerResult(records=(record,), response=response)
