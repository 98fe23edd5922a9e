"""Tagged fields of our own: our codec reads them, and other codecs ignore them.

kafka-python represents other codecs; kio refuses unknown tags, which a Kafka client must not."""

from __future__ import annotations

from typing import Any

import kafka.protocol.admin
import pytest

from kraftjbod.core.errors import LocalProtocolError
from kraftjbod.protocol import kafka_codec as codec
from kraftjbod.protocol.schemas.kafka_compiler import uvarint
from kraftjbod.protocol.schemas.kafka_extensions import FIRST_OWN_API_KEY, FIRST_OWN_TAG
from kraftjbod.protocol.schemas.kafka_schema import FieldSchema, StructSchema, load_message

DIRECTORY_ID = bytes(range(16))


def body_bytes(name: str, version: int, body: Any) -> bytes:
    return b"".join(codec.encode_frame(name, version, [], body))[4:]


def reassignment(**own: Any) -> Any:
    request = codec.message("AlterPartitionReassignmentsRequest")
    partition = request.ReassignablePartition(partition_index=3, replicas=[1, 2], **own)
    topic = request.ReassignableTopic(name="t", partitions=[partition, partition])
    return request(timeout_ms=7, topics=[topic])


def described(**own: Any) -> Any:
    response = codec.message("DescribeLogDirsResponse")
    partition = response.DescribeLogDirsPartition(partition_index=4, partition_size=99)
    topic = response.DescribeLogDirsTopic(name="t", partitions=[partition])
    result = response.DescribeLogDirsResult
    return response(results=[result(log_dir="/d1", topics=[topic], **own), result(log_dir="/d2")])


TARGETS = {"target_directories": ["any", "/d2", "dirid:AAAAAAAAAAAAAAAAAAAAZA"]}
DIR_FACTS = {"directory_id": DIRECTORY_ID, "state": "online", "queued_assignments": 5}


def described_by(broker_id: int = -1) -> Any:
    answer = described()
    answer.broker_id = broker_id
    return answer


def refused_move(**own: Any) -> Any:
    response = codec.message("AlterReplicaLogDirsResponse")
    partition = response.AlterReplicaLogDirPartitionResult
    parts = [
        partition(partition_index=1, error_code=56, **own),
        partition(partition_index=2, error_code=0),
    ]
    return response(
        results=[response.AlterReplicaLogDirTopicResult(topic_name="t", partitions=parts)]
    )


MESSAGES = [
    pytest.param(
        "AlterReplicaLogDirsResponse", 2, refused_move, {"error_message": "cordoned"}, id="34-v2"
    ),
    *(
        pytest.param("AlterPartitionReassignmentsRequest", v, reassignment, TARGETS, id=f"45-v{v}")
        for v in (0, 1)
    ),
    *(
        pytest.param("DescribeLogDirsResponse", v, described, DIR_FACTS, id=f"35-v{v}")
        for v in (2, 3, 4, 5)
    ),
    pytest.param("DescribeLogDirsResponse", 5, described_by, {"broker_id": 7}, id="35-v5-broker"),
]


@pytest.mark.parametrize(("name", "version", "make", "own"), MESSAGES)
def test_own_tagged_fields_are_read_by_us_and_skipped_by_kafka_python(
    name: str, version: int, make: Any, own: dict[str, Any]
) -> None:
    with_own, without = make(**own), make()
    raw, plain = body_bytes(name, version, with_own), body_bytes(name, version, without)
    view = memoryview(raw)
    assert codec.decode_body(name, version, view, 0, max_elements=99) == with_own
    foreign = getattr(kafka.protocol.admin, name)
    assert len(raw) > len(plain)
    assert repr(foreign.decode(raw, version=version)) == repr(
        foreign.decode(plain, version=version)
    )


def test_own_field_is_encoded_as_tagged_field() -> None:
    raw = body_bytes("DescribeLogDirsResponse", 4, described(state="x"))
    assert b"\x01" + uvarint(FIRST_OWN_TAG + 1) + b"\x02" + b"\x02x" in raw


def test_own_fields_are_omitted_in_versions_without_tags() -> None:
    plain = body_bytes("DescribeLogDirsResponse", 1, described())
    assert body_bytes("DescribeLogDirsResponse", 1, described(**DIR_FACTS)) == plain


def test_own_fields_that_were_not_sent_have_defaults() -> None:
    result = described().results[0]
    assert (result.directory_id, result.state, result.queued_assignments) == (bytes(16), "", -1)


def own_fields_of(struct: StructSchema) -> list[FieldSchema]:
    found = [f for f in struct.fields if f.tag >= FIRST_OWN_TAG]
    for field in struct.fields:
        if field.struct is not None:
            found += own_fields_of(field.struct)
    return found


@pytest.mark.parametrize("name", ["AlterPartitionReassignmentsRequest", "DescribeLogDirsResponse"])
def test_own_fields_are_tagged_in_every_version_that_has_them(name: str) -> None:
    schema = load_message(name)
    fields = own_fields_of(schema.struct)
    assert fields
    for field in fields:
        assert field.tagged == field.versions
        assert field.versions.first in schema.flexible
    assert len({f.tag for f in fields}) == len(fields)


def test_encode_refuses_own_field_of_wrong_type() -> None:
    with pytest.raises(LocalProtocolError):
        body_bytes("AlterPartitionReassignmentsRequest", 1, reassignment(target_directories=[5]))


ORDERS = {
    "AlterLogDirsRequest": {"operation": 2, "target": "/d1", "timeout_ms": 7, "force": True},
    "AlterLogDirsResponse": {
        "error_code": 57,
        "message": "no such directory",
        "directory_id": DIRECTORY_ID,
        "state": "offline",
    },
}


@pytest.mark.parametrize("name", ORDERS)
def test_own_api_messages_round_trip(name: str) -> None:
    body = codec.message(name)(**ORDERS[name])
    raw = body_bytes(name, 0, body)
    assert codec.decode_body(name, 0, memoryview(raw), 0, max_elements=9) == body
    schema = load_message(name)
    assert (schema.api_key, 0 in schema.flexible) == (FIRST_OWN_API_KEY, True)


def test_own_apis_shadow_no_kafka_api() -> None:
    for name in ORDERS:
        assert not hasattr(kafka.protocol.admin, name)
        assert load_message(name).api_key not in {
            key for key in codec.SUPPORTED if key < FIRST_OWN_API_KEY
        }


@pytest.mark.parametrize(
    ("asker", "ours", "new"),
    [
        ("kraftjbod", True, True),
        ("apache-kafka-java", False, True),
        ("kafka-python", False, False),
    ],
)
def test_api_versions_advertises_own_apis_by_client_software(
    asker: str, ours: bool, new: bool
) -> None:
    header = codec.RequestHeader(codec.ApiKey.API_VERSIONS, 3, 1, "x")
    frame = b"".join(codec.api_versions_response(header, asker=asker))[4:]
    answered = codec.decode_response(frame, api_key=codec.ApiKey.API_VERSIONS, version=3)
    keys = {entry.api_key for entry in answered.api_keys}
    assert (FIRST_OWN_API_KEY in keys) == ours
    assert (codec.ApiKey.UNREGISTER_CONTROLLER in keys) == new
    assert codec.ApiKey.DESCRIBE_LOG_DIRS in keys
