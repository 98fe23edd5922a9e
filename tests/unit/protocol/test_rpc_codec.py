"""RPC envelopes: round trips and malformed input."""

from __future__ import annotations

import tracemalloc

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kraftjbod.core.errors import ErrorCode, OperatingError, RemoteProtocolError
from kraftjbod.core.ids import DirectoryId
from kraftjbod.core.metadata_version import LATEST_METADATA_VERSION, MetadataVersion
from kraftjbod.protocol.rpc_codec import (
    REQUESTS,
    decode_request,
    decode_response,
    encode_error,
    encode_request,
    encode_response,
)
from kraftjbod.protocol.rpc_messages import (
    AssignReplicasToDirsRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
    CreateTopicsResponseRpc,
    RpcRequest,
)

HEARTBEAT = {
    "broker_id": 1,
    "broker_epoch": 5,
    "current_metadata_offset": 9,
    "want_fence": False,
    "want_shut_down": False,
}
REGISTRATION = BrokerRegistrationRequest.model_validate(
    {
        "broker_id": 3,
        "cluster_id": "c",
        "incarnation_id": bytes(range(16)),
        "listeners": [{"name": "PLAINTEXT", "host": "h", "port": 9092}],
        "log_dirs": [b"d" * 16, b"e" * 16],
    }
)


def payload(frame: bytes) -> bytes:
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    return frame[4:]


def test_rpc_request_round_trip() -> None:
    incoming = decode_request(memoryview(payload(encode_request(7, REGISTRATION))))
    assert incoming.correlation_id == 7
    assert (incoming.api, incoming.version) == ("BrokerRegistration", REGISTRATION.version)
    assert incoming.body == REGISTRATION
    assert isinstance(incoming.body, BrokerRegistrationRequest)
    assert all(type(d) is DirectoryId for d in incoming.body.log_dirs)


def test_rpc_response_round_trip() -> None:
    answer = BrokerRegistrationResponse.model_validate({"broker_epoch": 12})
    incoming = decode_response(payload(encode_response(2**32 - 1, answer)))
    assert (incoming.correlation_id, incoming.error) == (2**32 - 1, None)
    assert incoming.parse(BrokerRegistrationResponse) == answer


def test_rpc_error_round_trip() -> None:
    error = OperatingError("not now", code=ErrorCode.STALE_BROKER_EPOCH)
    incoming = decode_response(payload(encode_error(1, error)))
    assert incoming.error is not None
    assert (incoming.error.code, incoming.error.message) == (error.code, "not now")


def test_unknown_error_code_in_envelope_becomes_unknown_server_error() -> None:
    incoming = decode_response(msgpack.packb([1, 0, 9999, "new", None]))
    assert incoming.error is not None
    assert incoming.error.code is ErrorCode.UNKNOWN_SERVER_ERROR
    assert "error code 9999" in incoming.error.message
    inside = {"topics": [{"name": "t", "error_code": 9999}]}
    incoming = decode_response(msgpack.packb([1, 0, 0, "", inside]))
    assert incoming.parse(CreateTopicsResponseRpc).topics[0].error_code == 9999


@pytest.mark.parametrize(
    ("api", "version"), [("NoSuchApi", 0), ("BrokerHeartbeat", 999), ("BrokerHeartbeat", -1)]
)
def test_unsupported_api_or_version_decodes_without_body(api: str, version: int) -> None:
    incoming = decode_request(msgpack.packb([0, 4, api, version, {"a_field": 1}]))
    assert (incoming.correlation_id, incoming.api, incoming.body) == (4, api, None)


def test_unknown_fields_of_body_are_ignored() -> None:
    version = BrokerHeartbeatRequest.version
    frame = msgpack.packb([0, 4, "BrokerHeartbeat", version, {**HEARTBEAT, "new_field": 1}])
    assert decode_request(frame).body is not None


@pytest.mark.parametrize(
    "envelope",
    [
        pytest.param(5, id="no array"),
        pytest.param([0, 1, "BrokerHeartbeat", 0], id="four fields"),
        pytest.param([1, 1, "BrokerHeartbeat", 0, HEARTBEAT], id="a response"),
        pytest.param([0, -1, "BrokerHeartbeat", 0, HEARTBEAT], id="negative correlation id"),
        pytest.param([0, 2**32, "BrokerHeartbeat", 0, HEARTBEAT], id="large correlation id"),
        pytest.param([0, "1", "BrokerHeartbeat", 0, HEARTBEAT], id="correlation id is text"),
        pytest.param([0, 1, b"BrokerHeartbeat", 0, HEARTBEAT], id="api is bytes"),
        pytest.param([0, 1, "BrokerHeartbeat", "0", HEARTBEAT], id="version is text"),
        pytest.param([0, 1, "BrokerHeartbeat", 0, None], id="no body"),
        pytest.param([0, 1, "BrokerHeartbeat", 0, {}], id="a field is missing"),
        pytest.param([0, 1, "BrokerHeartbeat", 0, {**HEARTBEAT, "broker_id": -1}], id="range"),
    ],
)
def test_decode_request_rejects_malformed_envelopes(envelope: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_request(msgpack.packb(envelope))


@pytest.mark.parametrize(
    "envelope",
    [
        pytest.param([0, 1, 0, "", {}], id="a request"),
        pytest.param([1, 1, 0, "", None], id="neither body nor error"),
        pytest.param([1, 1, 77, "", {}], id="body and error"),
        pytest.param([1, 1, 77, None, None], id="no message"),
    ],
)
def test_decode_response_rejects_malformed_envelopes(envelope: object) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_response(msgpack.packb(envelope))


def test_parse_of_response_to_another_request_is_refused() -> None:
    incoming = decode_response(msgpack.packb([1, 1, 0, "", {"x": 1}]))
    with pytest.raises(RemoteProtocolError, match="no BrokerRegistrationResponse"):
        incoming.parse(BrokerRegistrationResponse)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(b"\xdd\xff\xff\xff\xff", id="2^32 elements"),
        pytest.param(b"\xdf\xff\xff\xff\xff" + bytes(50), id="2^32 pairs"),
        pytest.param(b"\xdd\x00\x03\x00\x00" * 3000, id="nested claims"),
        pytest.param(b"\x91" * 100_000, id="nested deeply"),
        pytest.param(b"\xc6\xff\xff\xff\xff", id="4 GiB of bytes"),
        pytest.param(b"\x81\x90\x01", id="a list as key"),
        pytest.param(b"\xd6\xff\xff\xff\xff\xff", id="a timestamp"),
    ],
)
def test_decode_refuses_impossible_length_fields_before_it_allocates_memory(frame: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError):
            decode_request(frame)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


EMPTY_LISTS = b"\xdd\x00\x03\x00\x00" + b"\x90" * 0x30000
EMPTY_MAPS = b"\xdd\x00\x03\x00\x00" + b"\x80" * 0x30000
NESTED = b"\xdd\x00\x01\x00\x00" + b"\x91\x91\x91\x91\x90" * 0x10000


@pytest.mark.parametrize("part", [EMPTY_LISTS, EMPTY_MAPS, NESTED])
def test_many_small_containers_are_refused(part: bytes) -> None:
    """Each container is allowed; together they would take seventy times their bytes in memory."""
    frame = b"\x9a" + part * 10
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="more than 500000 elements"):
            decode_request(frame)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_decode_request_accepts_a_body_with_400000_elements() -> None:
    fields = {f"field-{number}": [b"x"] * 100 for number in range(4000)}
    version = BrokerHeartbeatRequest.version
    frame = msgpack.packb([0, 4, "BrokerHeartbeat", version, {**HEARTBEAT, **fields}])
    assert len(frame) > 500_000
    assert decode_request(frame).body is not None


GOOD = payload(encode_request(7, REGISTRATION))


@given(st.binary(max_size=60), st.integers(0, len(GOOD)))
def test_decode_of_noise_raises_only_remote_protocol_error(noise: bytes, place: int) -> None:
    for frame in (noise, GOOD[:place] + noise, GOOD[:place] + noise + GOOD[place + 1 :]):
        for decode in (decode_request, decode_response):
            try:
                decode(frame)
            except RemoteProtocolError:
                continue


def test_requests_are_registered_by_their_api() -> None:
    assert all(REQUESTS[api].api == api for api in REQUESTS)


@pytest.mark.parametrize(
    ("kind", "level", "version"),
    [
        (BrokerRegistrationRequest, 14, 1),
        (BrokerRegistrationRequest, 17, 3),
        (BrokerRegistrationRequest, 30, 4),
        (BrokerHeartbeatRequest, 14, 0),
        (BrokerHeartbeatRequest, 17, 1),
        (BrokerHeartbeatRequest, 30, 2),
        (AssignReplicasToDirsRequest, 14, 0),
        (AssignReplicasToDirsRequest, 30, 0),
    ],
)
def test_version_at_depends_on_metadata_version(
    kind: type[RpcRequest], level: int, version: int
) -> None:
    assert kind.version_at(MetadataVersion(level)) == version


def test_version_at_latest_metadata_version_is_the_newest() -> None:
    for kind in REQUESTS.values():
        assert kind.version_at(LATEST_METADATA_VERSION) == kind.version
        assert kind.fields_after(kind.version) == frozenset()


@pytest.mark.parametrize(
    ("version", "offline", "cordoned"),
    [(0, (), None), (1, (b"o" * 16,), None), (2, (b"o" * 16,), (b"c" * 16,))],
)
def test_older_version_omits_newer_fields(
    version: int, offline: tuple[bytes, ...], cordoned: tuple[bytes, ...] | None
) -> None:
    said = {"offline_log_dirs": [b"o" * 16], "cordoned_log_dirs": [b"c" * 16]}
    heartbeat = BrokerHeartbeatRequest.model_validate({**HEARTBEAT, **said})
    frame = payload(encode_request(1, heartbeat, version))
    assert (b"offline_log_dirs" in frame) == bool(offline)
    incoming = decode_request(frame)
    assert incoming.version == version
    assert isinstance(incoming.body, BrokerHeartbeatRequest)
    assert incoming.body.offline_log_dirs == offline
    assert incoming.body.cordoned_log_dirs == cordoned


def test_field_newer_than_its_version_is_ignored() -> None:
    body = {**HEARTBEAT, "offline_log_dirs": [b"o" * 16]}
    incoming = decode_request(msgpack.packb([0, 1, "BrokerHeartbeat", 0, body]))
    assert isinstance(incoming.body, BrokerHeartbeatRequest)
    assert incoming.body.offline_log_dirs == ()
