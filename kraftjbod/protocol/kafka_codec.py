"""PURE. Encodes and decodes messages of Kafka's protocol, for the APIs that brokers serve.

Compiled from Kafka's schemas on first use, per message and version (ADR 9).

* Decoding does not copy records: they are memoryviews into the frame.
  Malformed bytes raise :class:`RemoteProtocolError` and no other exception.
* Encoding returns a list of buffers that form one frame. Records stay separate buffers, and all
  other bytes are joined.
* Message classes are in messages.py.
* In an array of structs an element may be ``bytes`` that :func:`encode_part` returned.
* A field that a version lacks is omitted if it is ignorable in Kafka or has its default value.
  Otherwise encoding raises :class:`LocalProtocolError`.

Uuids are 16 ``bytes``, and error codes plain integers.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar, cast

from kraftjbod.core.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from kraftjbod.core.request_limits import MAX_TAGS_IN_HEADER
from kraftjbod.protocol.framing import Buffer
from kraftjbod.protocol.messages import ApiVersionsResponse, message_classes
from kraftjbod.protocol.schemas.kafka_compiler import NO_TAGS, Compiler, long_uvarint
from kraftjbod.protocol.schemas.kafka_extensions import FIRST_OWN_API_KEY
from kraftjbod.protocol.schemas.kafka_message import Message as Message
from kraftjbod.protocol.schemas.kafka_message import Request as Request
from kraftjbod.protocol.schemas.kafka_message import constructor_source
from kraftjbod.protocol.schemas.kafka_schema import StructSchema, load_message

M = TypeVar("M", bound=Message)

#: Limit of array elements and tagged fields in one frame. Each costs up to about 200 bytes of
#: memory, and in a request up to 2 us of event loop time without a pause.
MAX_REQUEST_ELEMENTS: Final = 100_000
MAX_RESPONSE_ELEMENTS: Final = 16_000_000


class ApiKey(IntEnum):
    """The APIs that kraftjbod serves, by Kafka's numbers; from 10,000 on by its own."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    UPDATE_FEATURES = 57
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    UNREGISTER_BROKER = 64
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    ADD_RAFT_VOTER = 80
    REMOVE_RAFT_VOTER = 81
    UNREGISTER_CONTROLLER = 94
    #: An API of this project; see kafka_extensions.py.
    ALTER_LOG_DIRS = 10_000


#: Lowest and highest supported version by API, as server and as client.
SUPPORTED: Final[dict[int, tuple[int, int]]] = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.FETCH: (4, 16),
    ApiKey.LIST_OFFSETS: (1, 11),
    ApiKey.METADATA: (0, 13),
    ApiKey.OFFSET_COMMIT: (2, 10),
    ApiKey.OFFSET_FETCH: (1, 10),
    ApiKey.FIND_COORDINATOR: (0, 6),
    ApiKey.JOIN_GROUP: (0, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (0, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    # In version 0 the messages of a login follow without headers.
    ApiKey.SASL_HANDSHAKE: (1, 1),
    ApiKey.API_VERSIONS: (0, 4),
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.DELETE_TOPICS: (1, 6),
    ApiKey.DELETE_RECORDS: (0, 2),
    ApiKey.INIT_PRODUCER_ID: (0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 5),
    ApiKey.ADD_OFFSETS_TO_TXN: (0, 4),
    ApiKey.END_TXN: (0, 5),
    ApiKey.WRITE_TXN_MARKERS: (1, 2),
    ApiKey.TXN_OFFSET_COMMIT: (0, 5),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_CONFIGS: (0, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 5),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.ELECT_LEADERS: (0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.OFFSET_DELETE: (0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (0, 2),
    ApiKey.UPDATE_FEATURES: (0, 2),
    ApiKey.DESCRIBE_CLUSTER: (0, 2),
    ApiKey.UNREGISTER_BROKER: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: (0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.LIST_CONFIG_RESOURCES: (0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    ApiKey.ADD_RAFT_VOTER: (0, 1),
    ApiKey.REMOVE_RAFT_VOTER: (0, 0),
    ApiKey.UNREGISTER_CONTROLLER: (0, 0),
    ApiKey.ALTER_LOG_DIRS: (0, 0),
}

#: Name of this project's tools and brokers in ApiVersions (KIP-511).
OWN_SOFTWARE_NAME: Final = "kraftjbod"
_KAFKA_SOFTWARE_NAME: Final = "apache-kafka-java"
#: Added after Kafka 4.3.
_NEW_IN_KAFKA: Final = frozenset({ApiKey.UNREGISTER_CONTROLLER})

_API_NAMES: Final[dict[int, str]] = {key: key.name.title().replace("_", "") for key in ApiKey}

_REQUEST_NAMES: Final = {key: name + "Request" for key, name in _API_NAMES.items()}
_RESPONSE_NAMES: Final = {key: name + "Response" for key, name in _API_NAMES.items()}
#: Names of the requests and responses of all served APIs.
MESSAGE_NAMES: Final = (*_REQUEST_NAMES.values(), *_RESPONSE_NAMES.values())

_REQUEST_HEAD: Final = struct.Struct(">hhih")
_CORRELATION: Final = struct.Struct(">i")
_LENGTH: Final = struct.Struct(">i")
_FEATURES_FROM_ZERO_SINCE: Final = 4
_UNSUPPORTED_VERSION: Final = struct.pack(">h", ErrorCode.UNSUPPORTED_VERSION)
#: librdkafka 2.16 requests all topics with a four-byte count instead of a compact one of one byte.
#: Its AlterUserScramCredentials ends with a surplus byte, too.
#: Kafka ignores the surplus bytes, so this decoder must do the same.
_MAY_LEAVE_BYTES: Final = frozenset({"MetadataRequest", "AlterUserScramCredentialsRequest"})
_MALFORMED: Final = (struct.error, IndexError, UnicodeDecodeError)
_NOT_ENCODABLE: Final = (struct.error, TypeError, AttributeError, UnicodeEncodeError)


class ApiFeatures(NamedTuple):
    """Features for the ApiVersions response (KIP-584).

    ``supported`` has the lowest and highest level that this node supports, by feature.
    ``finalized`` has the levels that the cluster uses. ``epoch`` is the metadata offset of the
    finalized levels, -1 if unknown.
    """

    supported: Mapping[str, tuple[int, int]] = MappingProxyType({})
    finalized: Mapping[str, int] = MappingProxyType({})
    epoch: int = -1


NO_FEATURES: Final = ApiFeatures()


class RequestHeader(NamedTuple):
    """Header of a request; ``client_id`` is None for a null one."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


def api_name(api_key: int) -> str:
    """Return Kafka's name of an API, such as ``"Produce"``; ``"API 99"`` for an unknown number."""
    return _API_NAMES.get(api_key, f"API {api_key}")


def message(name: str) -> type[Message]:
    """Return the message class ``name``, for code that does not know the name.

    Other code imports the class from messages.py.

    :raises KeyError: the name is unknown.
    """
    return message_classes(name)[name]


@functools.cache
def _namespace(name: str, version: int) -> dict[str, Any]:
    return Compiler(load_message(name), version).compile(message_classes(name))


@functools.cache
def _functions(name: str, version: int) -> tuple[Any, Any]:
    """Return the functions that read and write the whole message."""
    namespace = _namespace(name, version)
    return namespace[f"read_{name}"], namespace[f"write_{name}"]


def source_of(name: str, version: int) -> str:
    """Return the generated source of the constructors of a message and of its codec for
    ``version``."""
    schema = load_message(name)
    sources = [f"# {s.name}\n{constructor_source(s)}" for s in schema.struct.structs()]
    return "\n".join([*sources, Compiler(schema, version).source()])


@functools.cache
def is_flexible(api_key: int, version: int) -> bool:
    """Return whether ``version`` has compact lengths and tagged fields, in header and body
    (KIP-482)."""
    return version in load_message(_REQUEST_NAMES[api_key]).flexible


#: Shorter arrays are encoded together with their message, without a pause.
_LONG_ARRAY: Final = 100


# --- bodies -------------------------------------------------------------------------------------


def decode_body(
    name: str, version: int, view: memoryview, position: int, *, max_elements: int
) -> Message:
    """Decode the message ``name`` from ``position`` to the end of ``view``.

    :param max_elements: limit of the array elements and tagged fields.
    :raises RemoteProtocolError: the bytes are malformed, there are too many elements, or bytes are
        left over. MetadataRequest and AlterUserScramCredentialsRequest may leave bytes.
    """
    read, _ = _functions(name, version)
    end = len(view)
    try:
        body: Message
        body, position = read(view, position, end, [max_elements])
    except _MALFORMED as e:
        raise RemoteProtocolError(f"{name} v{version} is malformed: {e}") from e
    if position != end and name not in _MAY_LEAVE_BYTES:
        raise RemoteProtocolError(f"{name} v{version} leaves {end - position} bytes over")
    return body


def encode_frame(name: str, version: int, head: list[bytes], body: Message) -> list[Buffer]:
    """Return the buffers of a frame: the total length, ``head`` and ``body``.

    :raises LocalProtocolError: a field of ``body`` has a wrong type, or a value that ``version``
        lacks.
    """
    _, write = _functions(name, version)
    chunks: list[Buffer] = [b"", *head]
    records_at: list[int] = []
    try:
        write(chunks, body, records_at)
    except _NOT_ENCODABLE as e:
        raise LocalProtocolError(f"{body!r:.500} is no {name} v{version}: {e}") from e
    buffers: list[Buffer] = []
    start = 1
    for place in records_at:
        buffers.append(b"".join(chunks[start:place]))
        buffers.append(chunks[place])
        start = place + 1
    if start < len(chunks):
        buffers.append(b"".join(chunks[start:]))
    buffers[0] = _LENGTH.pack(sum(map(len, buffers))) + buffers[0]
    return buffers


def encode_body(version: int, body: Message) -> bytes:
    """Return the bytes of ``body`` without frame or header, as in the key or value of a record.

    :raises LocalProtocolError: as :func:`encode_frame`.
    """
    return b"".join(encode_frame(type(body).__qualname__, version, [], body))[_LENGTH.size :]


def encode_part(version: int, value: Message) -> bytes:
    """Return the bytes of an array element, which a message accepts in place of the element.

    For elements that are sent often.
    """
    kind = type(value)
    write = _namespace(kind.__qualname__.partition(".")[0], version)[f"write_{kind.__name__}"]
    chunks: list[Buffer] = []
    write(chunks, value, [])
    return b"".join(chunks)


def parts_of(kind: type[M], values: Sequence[M | bytes]) -> Sequence[M]:
    """Return ``values`` unchanged, typed as an array of ``kind`` for the constructor of a message.

    Values of type ``bytes`` are results of :func:`encode_part`.
    """
    return cast(Sequence[M], values)


def encode_long_arrays(version: int, body: Message) -> Iterator[None]:
    """Replace the elements of long arrays in ``body`` by their bytes, and yield after each element.

    For responses that would block the event loop for too long if they were encoded at once. Structs
    that contain records stay, so that records remain separate buffers.
    """
    for name in _struct_arrays(type(body).__qualname__, version):
        elements = getattr(body, name)
        if type(elements) is not list:
            continue  # null, or an immutable sequence
        is_long = len(elements) > _LONG_ARRAY
        for index, element in enumerate(elements):
            if type(element) is bytes:
                continue
            yield from encode_long_arrays(version, element)
            if is_long and not _holds_records(element):
                elements[index] = encode_part(version, element)
                yield


def _holds_records(value: Message) -> bool:
    """Return whether ``value`` or a struct inside it contains records, or may contain some."""
    fields = _records_fields(type(value).__qualname__)
    return any(getattr(value, field, True) for field in fields)


@functools.cache
def _struct_arrays(qualified_name: str, version: int) -> tuple[str, ...]:
    """Return the names of the struct's fields that are arrays of structs in ``version``."""
    fields = _struct_of(qualified_name).fields
    return tuple(f.name for f in fields if f.is_array and f.struct and version in f.versions)


@functools.cache
def _records_fields(qualified_name: str) -> tuple[str, ...]:
    """Return the names of the records fields of a struct and of the structs inside it."""
    inside = _struct_of(qualified_name).structs()
    return tuple(f.name for s in inside for f in s.fields if f.type == "records")


def _struct_of(qualified_name: str) -> StructSchema:
    """Return the schema of a message class, or of a struct inside it.

    :param qualified_name: ``__qualname__`` of the class, such as ``"FetchRequest.FetchTopic"``.
    """
    message_name, _, inner = qualified_name.partition(".")
    structs = load_message(message_name).struct.structs()
    return next(s for s in structs if s.name == (inner or message_name))


# --- server side --------------------------------------------------------------------------------


def decode_request(frame: Buffer) -> tuple[RequestHeader, Message | None]:
    """Decode the header and the body of a request frame, without its length field.

    The body is None for an ApiVersions request of a higher version than supported.
    :func:`api_versions_response` then responds in version 0, so that the client can retry.

    :raises RemoteProtocolError: malformed bytes, or an unsupported API or version.
    """
    view = memoryview(frame)
    try:
        header, position = _read_request_header(view)
        api_key, version, _, _ = header
        if api_key == ApiKey.API_VERSIONS and version > SUPPORTED[api_key][1]:
            return header, None
        _require_served(header)
        if is_flexible(api_key, version):
            # No client sends header tags, so this is usually one byte.
            position = position + 1 if view[position] == 0 else _skip_tags(view, position)
    except _MALFORMED as e:
        raise RemoteProtocolError(f"a request header is malformed: {e}") from e
    name = _REQUEST_NAMES[api_key]
    return header, decode_body(name, version, view, position, max_elements=MAX_REQUEST_ELEMENTS)


def api_key_of(frame: Buffer) -> int:
    """Return the API key of a request frame; -1 if the frame is too short."""
    return int.from_bytes(frame[:2], "big") if len(frame) >= _REQUEST_HEAD.size else -1


def api_version_of(frame: Buffer) -> int:
    """Return the API version of a request frame; -1 if the frame is too short."""
    is_whole = len(frame) >= _REQUEST_HEAD.size
    return int.from_bytes(frame[2:4], "big", signed=True) if is_whole else -1


def decode_request_header(frame: Buffer) -> RequestHeader:
    """Decode only the header of a request frame, for a request that is refused.

    :raises RemoteProtocolError: malformed bytes, or an unsupported API or version.
    """
    try:
        header, _ = _read_request_header(memoryview(frame))
    except _MALFORMED as e:
        raise RemoteProtocolError(f"a request header is malformed: {e}") from e
    _require_served(header)
    return header


def _require_served(header: RequestHeader) -> None:
    least, greatest = SUPPORTED.get(header.api_key, (0, -1))
    if not least <= header.api_version <= greatest:
        raise RemoteProtocolError(
            f"{api_name(header.api_key)} v{header.api_version} is not served here"
        )


def _read_request_header(view: memoryview) -> tuple[RequestHeader, int]:
    api_key, version, correlation_id, length = _REQUEST_HEAD.unpack_from(view)
    position = _REQUEST_HEAD.size
    if length < 0:
        return RequestHeader(api_key, version, correlation_id, None), position
    end = position + length
    if end > len(view):
        raise RemoteProtocolError("the client id claims more bytes than there are")
    client_id = str(view[position:end], "utf-8")
    return RequestHeader(api_key, version, correlation_id, client_id), end


def _skip_tags(view: memoryview, position: int) -> int:
    """Return the position after the tagged fields of a header; Kafka has defined none so far.

    :raises RemoteProtocolError: there are too many tags, or one exceeds the frame.
    """
    count, position = _read_uvarint(view, position)
    if count > MAX_TAGS_IN_HEADER:
        raise RemoteProtocolError(f"a header has {count} tagged fields")
    for _ in range(count):
        _, position = _read_uvarint(view, position)
        size, position = _read_uvarint(view, position)
        position += size
        if position > len(view):
            raise RemoteProtocolError("a tagged field of a header does not fit")
    return position


def _read_uvarint(view: memoryview, position: int) -> tuple[int, int]:
    first = view[position]
    if first < 0x80:
        return first, position + 1
    return long_uvarint(view, position + 1, first)


def encode_response(header: RequestHeader, body: Message) -> list[Buffer]:
    """Return the buffers of the frame with ``body``, the response to the request of ``header``.

    :raises LocalProtocolError: as :func:`encode_frame`.
    """
    head = [_CORRELATION.pack(header.correlation_id)]
    # ApiVersions always uses the old header, as its client does not know the versions yet.
    if header.api_key != ApiKey.API_VERSIONS and is_flexible(header.api_key, header.api_version):
        head.append(NO_TAGS)
    return encode_frame(_RESPONSE_NAMES[header.api_key], header.api_version, head, body)


def api_versions_response(
    header: RequestHeader, features: ApiFeatures = NO_FEATURES, asker: str = ""
) -> list[Buffer]:
    """Return the buffers of the response to an ApiVersions request: the served APIs and features.

    A request of a higher version than supported gets version 0 and UNSUPPORTED_VERSION (KIP-511).
    A supported feature whose lowest level is 0 is listed from version 4 on.

    :param asker: software name of the client. APIs of this project are listed only for its own
        clients, and APIs that are new in Kafka also for Kafka's clients.
    """
    version, error = header.api_version, ErrorCode.NONE
    if version > SUPPORTED[ApiKey.API_VERSIONS][1]:
        version, error = 0, ErrorCode.UNSUPPORTED_VERSION
    ranges = {**SUPPORTED, ApiKey.PRODUCE: (0, SUPPORTED[ApiKey.PRODUCE][1])}
    body = ApiVersionsResponse(
        error_code=error,
        api_keys=[
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=least, max_version=greatest)
            for key, (least, greatest) in ranges.items()
            if _is_advertised(key, asker)
        ],
        supported_features=[
            ApiVersionsResponse.SupportedFeatureKey(
                name=name, min_version=least, max_version=greatest
            )
            for name, (least, greatest) in features.supported.items()
            # Older clients fail on a feature that begins at 0 (KAFKA-17011).
            if least > 0 or version >= _FEATURES_FROM_ZERO_SINCE
        ],
        finalized_features_epoch=features.epoch,
        finalized_features=[
            ApiVersionsResponse.FinalizedFeatureKey(
                name=name, max_version_level=level, min_version_level=level
            )
            for name, level in features.finalized.items()
            if level > 0
        ],
    )
    return encode_response(header._replace(api_version=version), body)


def _is_advertised(key: int, asker: str) -> bool:
    if asker == OWN_SOFTWARE_NAME:
        return True
    # Other clients may fail on unknown numbers, as kafka-python's api_versions() does.
    is_for_all = key < FIRST_OWN_API_KEY and key not in _NEW_IN_KAFKA
    return is_for_all or (asker == _KAFKA_SOFTWARE_NAME and key in _NEW_IN_KAFKA)


# --- client side --------------------------------------------------------------------------------


def request_api_key(body: Message) -> int:
    """Return the API key of the request ``body``."""
    return load_message(type(body).__name__).api_key


def encode_request(
    body: Message, *, version: int, correlation_id: int, client_id: str
) -> list[Buffer]:
    """Return the buffers of the request frame with ``body`` in ``version``.

    :raises LocalProtocolError: as :func:`encode_frame`.
    """
    name = type(body).__name__
    api_key = request_api_key(body)
    client = client_id.encode()
    head = [_REQUEST_HEAD.pack(api_key, version, correlation_id, len(client)), client]
    if is_flexible(api_key, version):
        head.append(NO_TAGS)
    return encode_frame(name, version, head, body)


def correlation_id_of(frame: Buffer) -> int:
    """Return the correlation id of a response frame.

    :raises RemoteProtocolError: the frame is too short.
    """
    if len(frame) < _CORRELATION.size:
        raise RemoteProtocolError(f"a response of {len(frame)} bytes names no request")
    correlation_id: int = _CORRELATION.unpack_from(frame)[0]
    return correlation_id


def decode_response(frame: Buffer, *, api_key: int, version: int) -> Message:
    """Decode the body of a response frame, without its length field.

    :raises RemoteProtocolError: malformed bytes.
    """
    view = memoryview(frame)
    position = _CORRELATION.size
    if api_key == ApiKey.API_VERSIONS:
        # A broker without this version responds in version 0 (KIP-511).
        if view[position : position + len(_UNSUPPORTED_VERSION)] == _UNSUPPORTED_VERSION:
            version = 0
    elif is_flexible(api_key, version):
        try:
            position = _skip_tags(view, position)
        except _MALFORMED as e:
            raise RemoteProtocolError(f"a response header is malformed: {e}") from e
    name = _RESPONSE_NAMES[api_key]
    return decode_body(name, version, view, position, max_elements=MAX_RESPONSE_ELEMENTS)
