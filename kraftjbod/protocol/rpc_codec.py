"""PURE. Envelopes of the RPC between brokers and controllers, in msgpack.

A frame (see framing.py) holds one msgpack array of five:

======== ==== ============== ========== ============= ===========================
request  0    correlation_id api        version       body, a map
response 1    correlation_id error_code error_message body, a map; nil on an error
======== ==== ============== ========== ============= ===========================

* Malformed bytes raise :class:`RemoteProtocolError` and no other exception.
* An unknown api or a higher version than supported is not malformed: the sender gets
  UNSUPPORTED_VERSION, and the connection stays open. A new version is introduced only if an older
  peer must not misinterpret the request.
* The number of decoded elements per frame is limited: an empty list in memory takes seventy times
  its encoded byte.
* No other file uses msgpack for the RPC. ADR 9 says why the RPC is not Kafka's protocol.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgpack

from kraftjbod.core.errors import ErrorCode, OperatingError, RemoteProtocolError
from kraftjbod.protocol.rpc_acl_messages import CreateAclsRequestRpc, DeleteAclsRequestRpc
from kraftjbod.protocol.rpc_config_messages import (
    AlterPartitionReassignmentsRequestRpc,
    DescribeDynamicConfigsRequest,
    ElectLeadersRequestRpc,
    IncrementalAlterConfigsRequestRpc,
    ListPartitionReassignmentsRequestRpc,
    UnregisterBrokerRequestRpc,
)
from kraftjbod.protocol.rpc_controller_messages import (
    ControllerRegistrationRequest,
    DescribeClusterRequestRpc,
    DescribeControllerConfigsRequest,
    UnregisterControllerRequestRpc,
)
from kraftjbod.protocol.rpc_messages import (
    AllocateProducerIdsRequest,
    AlterPartitionRequest,
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    CreatePartitionsRequestRpc,
    CreateTopicsRequestRpc,
    DeleteTopicsRequestRpc,
    FindTopicsRequest,
    RpcBody,
    RpcRequest,
    RpcResponse,
    UpdateFeaturesRequestRpc,
)
from kraftjbod.protocol.rpc_quorum_messages import (
    AddRaftVoterRequestRpc,
    DescribeQuorumRequestRpc,
    FetchMetadataRequest,
    QuorumMessagesRequest,
    RemoveRaftVoterRequestRpc,
)
from kraftjbod.protocol.rpc_quota_messages import AlterClientQuotasRequestRpc
from kraftjbod.protocol.rpc_scram_messages import AlterUserScramCredentialsRequestRpc

#: Every request by its ``api``.
REQUESTS: Final[Mapping[str, type[RpcRequest]]] = {
    request.api: request
    for request in (
        BrokerRegistrationRequest,
        BrokerHeartbeatRequest,
        AssignReplicasToDirsRequest,
        AlterPartitionRequest,
        AllocateProducerIdsRequest,
        FetchMetadataRequest,
        CreateTopicsRequestRpc,
        FindTopicsRequest,
        DeleteTopicsRequestRpc,
        CreatePartitionsRequestRpc,
        AlterPartitionReassignmentsRequestRpc,
        ListPartitionReassignmentsRequestRpc,
        IncrementalAlterConfigsRequestRpc,
        DescribeDynamicConfigsRequest,
        UpdateFeaturesRequestRpc,
        ElectLeadersRequestRpc,
        UnregisterBrokerRequestRpc,
        QuorumMessagesRequest,
        DescribeQuorumRequestRpc,
        AddRaftVoterRequestRpc,
        RemoveRaftVoterRequestRpc,
        ControllerRegistrationRequest,
        UnregisterControllerRequestRpc,
        DescribeClusterRequestRpc,
        DescribeControllerConfigsRequest,
        CreateAclsRequestRpc,
        DeleteAclsRequestRpc,
        AlterUserScramCredentialsRequestRpc,
        AlterClientQuotasRequestRpc,
    )
}

_LENGTH: Final = struct.Struct(">I")
_REQUEST: Final = 0
_RESPONSE: Final = 1
_ENVELOPE_FIELDS: Final = 5
#: Limit of elements in one array or map of a body; low, because msgpack allocates claimed sizes.
MAX_ELEMENTS: Final = 200_000
#: Limit for all arrays and maps of a request frame; a request names at most 10,000 things.
MAX_REQUEST_ELEMENTS: Final = 500_000
#: Limit for a response, which may list all objects of a cluster.
MAX_RESPONSE_ELEMENTS: Final = 4_000_000
#: Length of the start of a request that includes its api.
_HEAD_BYTES: Final = 48
_LONG_ANSWERS: Final = tuple(
    kind.api.encode()
    for kind in (
        FetchMetadataRequest,
        ListPartitionReassignmentsRequestRpc,
        DescribeDynamicConfigsRequest,
        DeleteAclsRequestRpc,
    )
)
_MAX_CORRELATION_ID: Final = 0xFFFFFFFF
_KNOWN_CODES: Final = frozenset(int(code) for code in ErrorCode)

B = TypeVar("B", bound=RpcBody)
C = TypeVar("C", list[Any], dict[Any, Any])


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingRequest:
    """A decoded request frame. ``body`` is None if this side does not support the api or its
    version."""

    correlation_id: int
    api: str
    version: int
    body: RpcRequest | None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncomingResponse:
    """A decoded response frame. Either ``error`` or ``body`` is set; :meth:`parse` validates the
    body."""

    correlation_id: int
    error: OperatingError | None
    body: object

    def parse(self, kind: type[B]) -> B:
        """Return the body as a ``kind``.

        :raises RemoteProtocolError: the body is not a valid ``kind``.
        """
        return _validate(kind, self.body)


def encode_request(correlation_id: int, body: RpcRequest, version: int | None = None) -> bytes:
    """Return the frame of a request, with its length field.

    :param version: version to write, None for the newest. Fields that it lacks are omitted.
    """
    if version is None:
        version = body.version
    fields = body.model_dump(exclude=set(_fields_after(type(body), version)))
    return _frame([_REQUEST, correlation_id, body.api, version, fields])


def encoded_size(body: RpcBody) -> int:
    """Return the number of bytes that ``body`` adds to the encoded request that contains it."""
    size: int = len(msgpack.packb(body.model_dump()))
    return size


def encode_response(correlation_id: int, body: RpcResponse) -> bytes:
    return _frame([_RESPONSE, correlation_id, ErrorCode.NONE, "", body.model_dump()])


def encode_error(correlation_id: int, error: OperatingError) -> bytes:
    return _frame([_RESPONSE, correlation_id, int(error.code), error.message, None])


def decode_request(
    frame: bytes | memoryview, requests: Mapping[str, type[RpcRequest]] = REQUESTS
) -> IncomingRequest:
    """Decode a request frame, without its length field.

    :param requests: the expected requests by ``api``.
    :raises RemoteProtocolError: ``frame`` is not a valid request.
    """
    match _envelope(frame, _REQUEST):
        case [int() as correlation_id, str() as api, int() as version, dict() as body]:
            kind = requests.get(api)
            if kind is None or not 0 <= version <= kind.version:
                return IncomingRequest(
                    correlation_id=correlation_id, api=api, version=version, body=None
                )
            for name in _fields_after(kind, version) & body.keys():
                del body[name]
            return IncomingRequest(
                correlation_id=correlation_id,
                api=api,
                version=version,
                body=_validate(kind, body),
            )
        case _:
            raise RemoteProtocolError("a request envelope has fields of wrong types")


def decode_response(frame: bytes | memoryview) -> IncomingResponse:
    """Decode a response frame, without its length field. An error response is returned in
    ``error``, not raised.

    :raises RemoteProtocolError: ``frame`` is not a valid response.
    """
    match _envelope(frame, _RESPONSE):
        case [int() as correlation_id, ErrorCode.NONE, str(), dict() as body]:
            return IncomingResponse(correlation_id=correlation_id, error=None, body=body)
        case [int() as correlation_id, int() as code, str() as message, None] if code:
            if code not in _KNOWN_CODES:
                message = f"{message} (error code {code}, which only a newer version knows)"
                code = ErrorCode.UNKNOWN_SERVER_ERROR
            error = OperatingError(message, code=ErrorCode(code))
            return IncomingResponse(correlation_id=correlation_id, error=error, body=None)
        case _:
            raise RemoteProtocolError("a response envelope has fields of wrong types")


def request_head(frame: bytes | memoryview) -> tuple[int, str]:
    """Return the correlation id and the api of a request, without decoding its body.

    :raises RemoteProtocolError: ``frame`` does not start like a request.
    """
    unpacker = msgpack.Unpacker()
    unpacker.feed(bytes(frame[:_HEAD_BYTES]))
    try:
        if unpacker.read_array_header() != _ENVELOPE_FIELDS:
            raise RemoteProtocolError("a frame is no envelope of a request")
        kind, correlation_id, api = unpacker.unpack(), unpacker.unpack(), unpacker.unpack()
    except (ValueError, TypeError, msgpack.UnpackException) as e:
        raise RemoteProtocolError(f"a frame is no msgpack: {e or type(e).__name__}") from e
    match kind, correlation_id, api:
        case 0, int(), str() if 0 <= correlation_id <= _MAX_CORRELATION_ID:
            return correlation_id, api
        case _:
            raise RemoteProtocolError("a request envelope has fields of wrong types")


class _ElementCount:
    """Counts the lists and maps of a frame and their elements while msgpack decodes the frame."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.left = limit

    def add(self, container: C) -> C:
        self.left -= 1 + len(container)
        if self.left < 0:
            raise ValueError(f"it has more than {self._limit} elements")
        return container


def may_be_answered_at_length(frame: bytes | memoryview) -> bool:
    """Return whether the response to a request may be megabytes long.

    :param frame: the request, or its first 48 bytes.
    """
    head = bytes(frame[:_HEAD_BYTES])
    return any(api in head for api in _LONG_ANSWERS)


@functools.cache
def _fields_after(kind: type[RpcRequest], version: int) -> frozenset[str]:
    return kind.fields_after(version)


def _frame(envelope: list[Any]) -> bytes:
    payload: bytes = msgpack.packb(envelope)
    return _LENGTH.pack(len(payload)) + payload


def _envelope(frame: bytes | memoryview, kind: int) -> list[Any]:
    """Decode ``frame``; return the fields of its envelope after the kind.

    :raises RemoteProtocolError: ``frame`` is no envelope of ``kind``, or has too many elements.
    """
    max_elements = min(MAX_ELEMENTS, len(frame))
    count = _ElementCount(MAX_REQUEST_ELEMENTS if kind == _REQUEST else MAX_RESPONSE_ELEMENTS)
    # Each element takes at least one byte, so most frames need no counting.
    counting = {"list_hook": count.add, "object_hook": count.add} if len(frame) > count.left else {}
    try:
        envelope = msgpack.unpackb(
            frame,
            max_array_len=max_elements,
            max_map_len=max_elements,
            strict_map_key=False,  # partitions are ints; pydantic validates other keys
            **counting,
        )
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException) as e:
        raise RemoteProtocolError(f"a frame is no msgpack: {e or type(e).__name__}") from e
    if not isinstance(envelope, list) or len(envelope) != _ENVELOPE_FIELDS or envelope[0] != kind:
        raise RemoteProtocolError(f"a frame is no envelope of kind {kind}")
    if not isinstance(envelope[1], int) or not 0 <= envelope[1] <= _MAX_CORRELATION_ID:
        raise RemoteProtocolError("an envelope has an impossible correlation id")
    return envelope[1:]


def _validate(kind: type[B], body: object) -> B:
    try:
        return kind.model_validate(body)
    except ValueError as e:  # the base class of pydantic's errors
        reason = " ".join(str(e).split())
        raise RemoteProtocolError(f"a body is no {kind.__name__}: {reason:.300}") from e
