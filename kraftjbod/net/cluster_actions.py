"""PURE. Requests that only members of the cluster may send, and responses that refuse them.

Kafka protects the same requests with the permissions CLUSTER_ACTION and ALTER of the cluster. The
first bytes of a frame identify each of these requests before the body is decoded, except Fetch: a
field of its body says whether a follower or a consumer sent it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from kraftjbod.core.allowed_hosts import ALLOWED_HOSTS_KEY
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.framing import Frame
from kraftjbod.protocol.kafka_codec import ApiKey, Message, api_version_of
from kraftjbod.protocol.messages import (
    AddPartitionsToTxnResponse,
    AddRaftVoterResponse,
    FetchRequest,
    FetchResponse,
    RemoveRaftVoterResponse,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

REFUSED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
#: Fetch: since this version a separate field names the replica that sent it.
_REPLICA_STATE_SINCE: Final = 15
#: Fetch: before this version a response has no top-level error code.
_FETCH_ERROR_SINCE: Final = 7
_CONSUMER: Final = -1
#: First version that only members send, by API: earlier AddPartitionsToTxn come from producers.
_FIRST_VERSIONS: Final[Mapping[int, int]] = MappingProxyType(
    {
        ApiKey.WRITE_TXN_MARKERS: 0,
        ApiKey.ADD_PARTITIONS_TO_TXN: 4,
        ApiKey.ADD_RAFT_VOTER: 0,
        ApiKey.REMOVE_RAFT_VOTER: 0,
    }
)


def is_cluster_action(api_key: int, frame: Frame) -> bool:
    """Return whether only brokers and controllers may send the request in ``frame``.

    False for Fetch: :func:`fetching_replica` needs its decoded body.
    """
    first = _FIRST_VERSIONS.get(api_key)
    return first is not None and api_version_of(frame) >= first


def fetching_replica(request: FetchRequest, version: int) -> int:
    """Return the id of the broker whose replica fetches; negative for consumers and tools."""
    if version < _REPLICA_STATE_SINCE:
        return request.replica_id
    state = request.replica_state
    return _CONSUMER if state is None else state.replica_id


def refusal_text(api: str, host: str) -> str:
    """Return the error message for ``host``, which sent a request of kind ``api``."""
    return (
        f"{api} from {host} is refused: only brokers and controllers of this cluster may ask that. "
        f"If {host} is one of them, name it in {ALLOWED_HOSTS_KEY} in the file of the daemon that "
        "refuses it"
    )


def refuse_fetch(request: FetchRequest, version: int) -> FetchResponse:
    if version >= _FETCH_ERROR_SINCE:
        return FetchResponse(error_code=REFUSED)
    kinds = FetchResponse
    return kinds(
        responses=[
            kinds.FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    kinds.PartitionData(
                        partition_index=part.partition, error_code=REFUSED, high_watermark=-1
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def refuse_undecoded(api_key: int, text: str) -> Message | None:
    """Return the response that refuses a request without decoding its body.

    None for WriteTxnMarkers, whose response lists the partitions of the body, and for other APIs.
    """
    match api_key:
        case ApiKey.ADD_PARTITIONS_TO_TXN:
            return AddPartitionsToTxnResponse(error_code=REFUSED)
        case ApiKey.ADD_RAFT_VOTER:
            return AddRaftVoterResponse(error_code=REFUSED, error_message=text)
        case ApiKey.REMOVE_RAFT_VOTER:
            return RemoveRaftVoterResponse(error_code=REFUSED, error_message=text)
        case _:
            return None


def refuse_markers(request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    """Return the response that refuses each partition: WriteTxnMarkers has no top-level error
    code."""
    return markers_response(request, itertools.repeat(REFUSED))


def markers_response(
    request: WriteTxnMarkersRequest, codes: Iterable[int]
) -> WriteTxnMarkersResponse:
    """Create the response to ``request`` from the error codes of its partitions.

    :param codes: one error code per partition of ``request``, in the same order.
    """
    kinds, ended = WriteTxnMarkersResponse, iter(codes)
    return kinds(
        markers=[
            kinds.WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    kinds.WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            kinds.WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=next(ended)
                            )
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ],
            )
            for marker in request.markers
        ]
    )
