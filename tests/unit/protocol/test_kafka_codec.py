"""The codec against two foreign codecs, in every supported version, and against hostile bytes.

Messages are generated from the schemas without our own fields, which test_kafka_extensions.py
tests. kio and kafka-python must decode our bytes and encode the same bytes, if they know the API.
kio only
receives bytes that our codec produced."""

from __future__ import annotations

import io
import struct
import tracemalloc
import uuid
from typing import Any

import kafka.protocol.admin
import kafka.protocol.consumer
import kafka.protocol.metadata
import kafka.protocol.producer
import kafka.protocol.sasl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from kraftjbod.core.errors import LocalProtocolError, RemoteProtocolError
from kraftjbod.protocol import kafka_codec as codec
from kraftjbod.protocol.schemas.kafka_extensions import FIRST_OWN_API_KEY, FIRST_OWN_TAG
from kraftjbod.protocol.schemas.kafka_schema import (
    FieldSchema,
    MessageSchema,
    StructSchema,
    load_message,
)

EVERY_VERSION = [
    pytest.param(key, version, kind, id=f"{codec.api_name(key)}{kind}-v{version}")
    for key, (least, greatest) in codec.SUPPORTED.items()
    if key < FIRST_OWN_API_KEY  #  No other codec has our own APIs.
    for version in range(least, greatest + 1)
    for kind in ("Request", "Response")
]
# APIs that are advertised to other clients.
KAFKAS = {key: span for key, span in codec.SUPPORTED.items() if key < FIRST_OWN_API_KEY}
few_examples = settings(max_examples=8, suppress_health_check=list(HealthCheck), deadline=None)

RANGES = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    # kio converts some of these to dates.
    "int64": st.integers(-1, 2**40),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16),
    "string": st.text(max_size=12) | st.text("x", min_size=126, max_size=140),
    "bytes": st.binary(max_size=40),
    "records": st.binary(max_size=40),
}

UNKNOWN_TO_KAFKA_PYTHON = (
    "UnregisterBroker",
    "ConsumerGroupHeartbeat",
    "ConsumerGroupDescribe",
    "AddRaftVoter",
    "RemoveRaftVoter",
    "UnregisterController",
)
# An API of Kafka 4.4.
UNKNOWN_TO_KIO = "UnregisterController"


def field_values(field: FieldSchema, version: int) -> st.SearchStrategy[Any]:
    if field.struct is not None:
        one = structs(field.struct, version)
    elif field.name.endswith("error_code"):
        one = st.sampled_from([0, 1, 3, 6, 56])  #  kio knows existing codes only
    elif field.name.endswith("_ms") and field.type == "int32":
        one = st.integers(0, 2**31 - 1)  # kio: a duration
    elif field.name == "transaction_start_time_ms":
        one = st.integers(0, 2**40)  # kio: a date that is never absent
    else:
        one = RANGES[field.type]
    if field.is_array:
        one = st.lists(one, max_size=3)
    return one | st.none() if version in field.nullable else one


def structs(struct: StructSchema, version: int, name: str = "") -> st.SearchStrategy[Any]:
    fields = [f for f in struct.fields if version in f.versions and f.tag < FIRST_OWN_TAG]
    values = st.fixed_dictionaries({f.name: field_values(f, version) for f in fields})
    return values.map(lambda chosen: (struct.name, chosen))


def build(schema: MessageSchema, drawn: tuple[str, dict[str, Any]]) -> Any:
    """Build the message of ``drawn``: nested pairs of struct name and fields."""
    outer = codec.message(schema.name)

    def revive(value: Any) -> Any:
        match value:
            case list():
                return [revive(v) for v in value]
            case (str() as name, dict() as fields):
                kind = outer if name == schema.name else getattr(outer, name)
                return kind(**{k: revive(v) for k, v in fields.items()})
        return value

    return revive(drawn)


def encoded(name: str, version: int, body: Any) -> bytes:
    """Return the bytes of the body, without header."""
    head = b"head"
    buffers = codec.encode_frame(name, version, [head], body)
    return b"".join(buffers)[4 + len(head) :]


def decoded(name: str, version: int, body: bytes) -> Any:
    return codec.decode_body(name, version, memoryview(body), 0, max_elements=10_000)


def plain(value: Any) -> Any:
    """Convert a message of ours to nested dicts, without tagged structs that were not sent."""
    match value:
        case codec.Message():
            names: tuple[str, ...] = type(value).__slots__
            return {n: plain(getattr(value, n)) for n in names}
        case list():
            return [plain(v) for v in value]
        case memoryview():
            return bytes(value)
    return value


def agrees(ours: Any, theirs: Any) -> bool:
    """Return whether a message of kafka-python equals a plain one of ours, field by field."""
    match ours:
        case dict():
            return all(
                ours[name] is None or agrees(ours[name], getattr(theirs, name))
                for name in ours
                if hasattr(theirs, name) and getattr(theirs, name) is not None
            )
        case list():
            return len(ours) == len(theirs) and all(map(agrees, ours, theirs))
        case bytes() if isinstance(theirs, uuid.UUID):
            return ours == theirs.bytes
        case int() if isinstance(theirs, set):
            # Authorized operations are a bit field here, and a set of numbers in kafka-python.
            return theirs == {bit for bit in range(32) if ours >> bit & 1}
    return bool(ours == theirs)


def kafka_python_class(name: str) -> Any:
    for package in ("admin", "consumer", "metadata", "producer", "sasl"):
        found = getattr(getattr(kafka.protocol, package), name, None)
        if found is not None:
            return found
    raise LookupError(name)


def through_kio(api_key: int, version: int, kind: str, body: bytes) -> bytes:
    load = load_request_schema if kind == "Request" else load_response_schema
    schema = load(api_key, version)
    entity, size = entity_reader(schema)(body, 0)
    assert size == len(body)
    out = io.BytesIO()
    entity_writer(schema)(out, entity)
    return out.getvalue()


@pytest.mark.parametrize(("api_key", "version", "kind"), EVERY_VERSION)
@few_examples
@given(data=st.data())
def test_kafka_codec_output_equals_that_of_two_other_codecs(
    api_key: int, version: int, kind: str, data: st.DataObject
) -> None:
    name = codec.api_name(api_key) + kind
    schema = load_message(name)
    body = build(schema, data.draw(structs(schema.struct, version)))
    if name == "ApiVersionsResponse":
        body.error_code = 0  #  kafka-python decodes every response with an error as version 0
    ours = encoded(name, version, body)
    back = decoded(name, version, ours)
    assert encoded(name, version, back) == ours
    if not name.startswith(UNKNOWN_TO_KAFKA_PYTHON):
        theirs = kafka_python_class(name).decode(ours, version=version)
        assert agrees(plain(back), theirs)
        theirs._header = None  #  its decoder leaves this unset, and its encoder requires it
        assert theirs.encode(version=version) == ours
    if not name.startswith(UNKNOWN_TO_KIO):
        assert through_kio(api_key, version, kind, ours) == ours


@pytest.mark.parametrize(("api_key", "version", "kind"), EVERY_VERSION)
@few_examples
@given(data=st.data(), noise=st.binary(max_size=60))
def test_decode_of_hostile_bytes_raises_remote_protocol_error_or_round_trips(
    api_key: int, version: int, kind: str, data: st.DataObject, noise: bytes
) -> None:
    name = codec.api_name(api_key) + kind
    schema = load_message(name)
    good = encoded(name, version, build(schema, data.draw(structs(schema.struct, version))))
    place = data.draw(st.integers(0, len(good)))
    for hostile in (noise, good[:place], good[:place] + noise, good + noise):
        if hostile != good:
            try:
                decoded(name, version, hostile)
            except RemoteProtocolError:
                continue
            # Such bytes may be a valid message by chance, which must round-trip then.
            again = decoded(name, version, hostile)
            assert decoded(name, version, encoded(name, version, again)) == again


@given(st.binary(max_size=80))
def test_decode_request_of_random_frames_raises_only_remote_protocol_error(frame: bytes) -> None:
    try:
        codec.decode_request(frame)
    except RemoteProtocolError:
        return
    codec.decode_request(frame)


@pytest.mark.parametrize(
    ("api_key", "version", "body"),
    [
        pytest.param(3, 12, b"\xff\xff\xff\xff\x0f", id="2^31 topics"),
        pytest.param(3, 12, b"\xff\xff\xff\x7f" + bytes(100), id="2^28 topics"),
        pytest.param(3, 1, b"\x7f\xff\xff\xff" + bytes(100), id="old encoding"),
        pytest.param(3, 12, b"\x80\x80\x80\x80\x80\x80\x80", id="endless varint"),
        pytest.param(18, 3, b"\x02x\x02\xff\x00", id="bad utf-8"),
        pytest.param(18, 3, b"\x02x\x02y\x01\x00\x7f", id="tag claims too much"),
        pytest.param(18, 3, b"\x02x\x02y\xff\xff\xff\xff\x07", id="2^31 tags"),
        pytest.param(18, 3, b"\x00\x02y\x00", id="null where there is none"),
    ],
)
def test_decode_refuses_impossible_length_fields_before_it_allocates_memory(
    api_key: int, version: int, body: bytes
) -> None:
    head = api_key.to_bytes(2, "big") + version.to_bytes(2, "big") + bytes(4) + b"\xff\xff"
    frame = head + (b"\x00" if codec.is_flexible(api_key, version) else b"") + body
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            codec.decode_request(frame)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_decode_limits_number_of_array_elements() -> None:
    request = codec.message("MetadataRequest")
    body = request(topics=[request.MetadataRequestTopic(name="t")] * 11)
    raw = memoryview(encoded("MetadataRequest", 9, body))
    assert len(codec.decode_body("MetadataRequest", 9, raw, 0, max_elements=11).topics) == 11
    with pytest.raises(RemoteProtocolError, match="more array elements"):
        codec.decode_body("MetadataRequest", 9, raw, 0, max_elements=10)


def test_unknown_tagged_fields_are_skipped() -> None:
    raw = encoded("ApiVersionsRequest", 3, codec.message("ApiVersionsRequest")())
    assert raw.endswith(b"\x00")
    with_tags = raw[:-1] + b"\x02\x05\x03abc\x07\x00"
    assert decoded("ApiVersionsRequest", 3, with_tags) == decoded("ApiVersionsRequest", 3, raw)


def test_tagged_field_must_fill_its_size() -> None:
    request = codec.message("FetchRequest")
    raw = encoded("FetchRequest", 12, request(cluster_id="abc"))
    assert raw.endswith(b"\x01\x00\x04\x04abc")
    assert decoded("FetchRequest", 12, raw).cluster_id == "abc"
    with pytest.raises(RemoteProtocolError, match="does not fill"):
        decoded("FetchRequest", 12, raw[:-7] + b"\x01\x00\x05\x04abcd")


def test_requests_round_trip_with_their_headers() -> None:
    request = codec.message("ProduceRequest")
    partition = request.PartitionProduceData(index=4, records=b"r" * 9)
    body = request(
        acks=-1,
        timeout_ms=5,
        topic_data=[request.TopicProduceData(name="t", partition_data=[partition])],
    )
    for version in range(3, 13):
        frame = b"".join(
            codec.encode_request(body, version=version, correlation_id=-7, client_id="me")
        )
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        header, back = codec.decode_request(frame[4:])
        assert header == codec.RequestHeader(0, version, -7, "me")
        assert back == body
        assert isinstance(back.topic_data[0].partition_data[0].records, memoryview)


def test_encode_response_passes_records_as_their_own_buffers() -> None:
    response = codec.message("FetchResponse")
    views = [memoryview(b"a" * 100), memoryview(b""), memoryview(b"b" * 50)]
    body = response(
        responses=[
            response.FetchableTopicResponse(
                topic="t",
                partitions=[
                    response.PartitionData(partition_index=i, records=view)
                    for i, view in enumerate(views)
                ],
            )
        ]
    )
    header = codec.RequestHeader(1, 12, 5, None)
    buffers = codec.encode_response(header, body)
    assert [b for b in buffers if isinstance(b, memoryview)] == views
    frame = b"".join(buffers)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert codec.correlation_id_of(frame[4:]) == 5
    assert codec.decode_response(frame[4:], api_key=1, version=12) == body


def test_encode_response_accepts_parts_encoded_before() -> None:
    response = codec.message("MetadataResponse")
    topics = [
        response.MetadataResponseTopic(
            name=f"t{i}", partitions=[response.MetadataResponsePartition(replica_nodes=[1, 2])]
        )
        for i in range(3)
    ]
    for version in range(14):
        header = codec.RequestHeader(3, version, 1, None)
        whole = codec.encode_response(header, response(topics=topics))
        parts: list[Any] = [codec.encode_part(version, topic) for topic in topics]
        assert codec.encode_response(header, response(topics=parts)) == whole


def test_encode_refuses_field_missing_in_the_version_unless_ignorable() -> None:
    request = codec.message("MetadataRequest")
    with pytest.raises(LocalProtocolError, match="allow_auto_topic_creation cannot be said"):
        encoded("MetadataRequest", 3, request(allow_auto_topic_creation=False))
    topic = request.MetadataRequestTopic(topic_id=b"x" * 16, name="t")
    encoded("MetadataRequest", 3, request(topics=[topic]))  # ignorable: left out


def test_encode_refuses_values_of_wrong_type_or_size() -> None:
    request = codec.message("MetadataRequest")
    for bad in (
        request(topics=5),
        request(topics=[request.MetadataRequestTopic(name=None)]),
        request(topics=[request.MetadataRequestTopic(name="x" * 40_000)]),
    ):
        with pytest.raises(LocalProtocolError):
            encoded("MetadataRequest", 4, bad)


def test_api_versions_of_unknown_version_is_answered_in_version_0() -> None:
    frame = b"\x00\x12\x00\x63\x00\x00\x00\x09\x00\x01x" + b"an unknown body"
    header, body = codec.decode_request(frame)
    assert body is None
    answer = b"".join(codec.api_versions_response(header))[4:]
    response = codec.decode_response(answer, api_key=18, version=4)
    assert response.error_code == 35
    assert codec.correlation_id_of(answer) == 9
    ranges = {r.api_key: (r.min_version, r.max_version) for r in response.api_keys}
    # librdkafka compresses only for brokers that advertise Produce v0, as Kafka 4 still does.
    known = {key: span for key, span in KAFKAS.items() if key != codec.ApiKey.UNREGISTER_CONTROLLER}
    assert ranges == {**known, 0: (0, 13)}


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\x00\x03\x00\x01\x00\x00\x00\x01", id="no client id"),
        pytest.param(b"\x00\x03\x00\x01\x00\x00\x00\x01\x00\x09abc", id="cut client id"),
        pytest.param(b"\x00\x03\x00\x01\x00\x00\x00\x01\x00\x01\xff", id="bad client id"),
        pytest.param(b"\x00\x03\x00\x63\x00\x00\x00\x01\xff\xff", id="unknown version"),
        pytest.param(b"\x00\x0a\x00\x00\x00\x00\x00\x01\xff\xff", id="unknown api"),
        pytest.param(b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff", id="no header tags"),
        pytest.param(b"\x00\x03\x00\x0c\x00\x00\x00\x01\xff\xff\x01\x00\x09", id="cut header tags"),
        pytest.param(b"\x00\x00\x00\x00\x00\x00\x00\x01\xff\xff", id="advertised, not served"),
    ],
)
def test_decode_request_rejects_malformed_headers(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        codec.decode_request(frame)


def test_decode_response_rejects_malformed_headers() -> None:
    with pytest.raises(RemoteProtocolError, match="names no request"):
        codec.correlation_id_of(b"abc")
    with pytest.raises(RemoteProtocolError, match="header is malformed"):
        codec.decode_response(b"\x00\x00\x00\x01", api_key=1, version=12)


def test_source_of_returns_generated_code() -> None:
    source = codec.source_of("FetchRequest", 12)
    assert "# FetchPartition\ndef __init__(self, *, partition=0," in source
    assert "def read_FetchPartition(b, p, end, q):" in source
    compile(source, "generated", "exec")


def _uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


@pytest.mark.parametrize("where", ["header", "body"])
def test_decode_request_refuses_a_frame_with_too_many_tags(where: str) -> None:
    """Each tag takes two bytes, and reading all of them would block the event loop for seconds."""
    count = codec.MAX_REQUEST_ELEMENTS + 1
    tags = _uvarint(count) + b"\x64\x00" * count
    head, body = struct.pack(">hhih", codec.ApiKey.API_VERSIONS, 3, 1, -1), b"\x01\x01"
    frame = head + tags + body + b"\x00" if where == "header" else head + b"\x00" + body + tags
    with pytest.raises(RemoteProtocolError, match="tag"):
        codec.decode_request(frame)


@pytest.mark.parametrize("version", [4, 12, 16])
def test_encode_long_arrays_in_steps_yields_the_same_bytes(version: int) -> None:
    """Records remain separate buffers."""
    response = codec.message("FetchResponse")

    def made() -> Any:
        parts = [
            response.PartitionData(partition_index=i, records=b"r" * i if i % 3 else None)
            for i in range(300)
        ]
        topics = [
            response.FetchableTopicResponse(
                topic="t" if version < 13 else "", partitions=parts[: 300 - n]
            )
            for n in range(150)
        ]
        return response(responses=topics)

    header = codec.RequestHeader(codec.ApiKey.FETCH, version, 7, None)
    whole, stepwise = made(), made()
    steps = sum(1 for _ in codec.encode_long_arrays(version, stepwise))
    assert steps > 10_000
    found = codec.encode_response(header, stepwise)
    expected = codec.encode_response(header, whole)
    assert b"".join(found) == b"".join(expected)
    assert [b for b in found if bytes(b).strip(b"r") == b""] == [
        b for b in expected if bytes(b).strip(b"r") == b""
    ]
