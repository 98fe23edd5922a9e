"""RPC bodies: their names, refused values and defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import DirectoryId, TopicId, Uuid
from kraftjbod.protocol import (
    rpc_acl_messages,
    rpc_config_messages,
    rpc_controller_messages,
    rpc_messages,
    rpc_quorum_messages,
    rpc_quota_messages,
    rpc_scram_messages,
)
from kraftjbod.protocol.kafka_codec import MESSAGE_NAMES
from kraftjbod.protocol.rpc_codec import REQUESTS
from kraftjbod.protocol.rpc_messages import (
    MAX_DIRECTORIES,
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    AssignReplicasToDirsRequest,
    AssignReplicasToDirsResponse,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    CreatedTopic,
    DeletedTopic,
    NewTopic,
    OnceOnlyRequest,
    RefusedAssignment,
    RpcBody,
    RpcRequest,
    RpcResponse,
    Since,
    TopicRef,
)

HEARTBEAT = {
    "broker_id": 1,
    "broker_epoch": 5,
    "current_metadata_offset": 9,
    "want_fence": False,
    "want_shut_down": False,
}
REGISTRATION = {
    "broker_id": 3,
    "cluster_id": "c",
    "incarnation_id": bytes(range(16)),
    "listeners": [{"name": "PLAINTEXT", "host": "h", "port": 9092}],
}
ISR_CHANGE = {
    "topic_id": b"t" * 16,
    "partition": 0,
    "leader_epoch": 1,
    "partition_epoch": 2,
    "isr": [1, 2],
    "isr_broker_epochs": [7, -1],
}


def defined(base: type[RpcBody]) -> list[type[RpcBody]]:
    """Return the subclasses of ``base`` in all message modules, without abstract bases."""
    return [
        kind
        for kind in {
            **vars(rpc_acl_messages),
            **vars(rpc_quota_messages),
            **vars(rpc_scram_messages),
            **vars(rpc_messages),
            **vars(rpc_config_messages),
            **vars(rpc_controller_messages),
            **vars(rpc_quorum_messages),
        }.values()
        if isinstance(kind, type)
        and issubclass(kind, base)
        and kind not in (base, RpcBody, OnceOnlyRequest)
    ]


def class_name(name: str) -> str:
    """Return the name of an RPC class: ``name``, with Rpc if Kafka has such a message."""
    return f"{name}Rpc" if name in MESSAGE_NAMES else name


def test_every_request_is_registered_under_its_own_name() -> None:
    assert set(REQUESTS.values()) == set(defined(RpcRequest))
    for api, request in REQUESTS.items():
        assert request.api == api
        assert request.__name__ == class_name(f"{api}Request")
        assert request.version >= 0
        assert request.Response.__name__ == class_name(f"{api}Response")


def test_every_response_belongs_to_exactly_one_request() -> None:
    answers = [request.Response for request in REQUESTS.values()]
    assert len(set(answers)) == len(answers)
    assert set(answers) == set(defined(RpcResponse))


def test_new_fields_have_defaults_and_required_fields_stay() -> None:
    """Otherwise a peer of version 0.1.0 and this one refuse each other's messages."""
    kinds = {kind.__name__: kind for kind in defined(RpcBody)}
    for line in (Path(__file__).parent / "required_rpc_fields_0.1.0.txt").read_text().splitlines():
        name, _, fields = line.partition(": ")
        found = kinds[class_name(name)].model_fields
        required = {field for field, info in found.items() if info.is_required()}
        assert required <= set(fields.split()) <= found.keys(), name


def test_since_marks_fields_of_requests_only_and_names_one_of_their_versions() -> None:
    """Responses, and bodies within messages, are written with all fields in each version."""
    for kind in defined(RpcBody):
        marks = [m for info in kind.model_fields.values() for m in info.metadata]
        versions = {mark.version for mark in marks if isinstance(mark, Since)}
        allowed = range(1, kind.version + 1) if issubclass(kind, RpcRequest) else ()
        assert versions <= set(allowed), kind


@pytest.mark.parametrize("kind", defined(RpcBody))
def test_bodies_are_immutable_and_ignore_unknown_fields(kind: type[RpcBody]) -> None:
    assert kind.model_config["frozen"]
    assert kind.model_config["extra"] == "ignore"


def test_model_validate_converts_to_our_id_types() -> None:
    parsed = BrokerRegistrationRequest.model_validate(
        {**REGISTRATION, "log_dirs": [b"d" * 16], "rack": "r", "invented_later": 1}
    )
    assert type(parsed.incarnation_id) is Uuid
    assert [type(log_dir) for log_dir in parsed.log_dirs] == [DirectoryId]
    assert parsed.previous_broker_epoch == -1
    assert not hasattr(parsed, "invented_later")
    with pytest.raises(ValidationError):
        parsed.rack = "other"  # type: ignore[misc]  # the test assigns to a frozen model


@pytest.mark.parametrize("value", ["AAAAAAAAAAAAAAAAAAAAAA", b"short", b"x" * 17, None, 7])
def test_id_requires_sixteen_bytes(value: object) -> None:
    with pytest.raises(ValidationError):
        BrokerRegistrationRequest.model_validate({**REGISTRATION, "incarnation_id": value})


@pytest.mark.parametrize(
    ("kind", "sound", "wrong"),
    [
        (BrokerHeartbeatRequest, HEARTBEAT, {"broker_id": -1}),
        (BrokerHeartbeatRequest, HEARTBEAT, {"current_metadata_offset": -2}),
        (
            BrokerHeartbeatRequest,
            HEARTBEAT,
            {"offline_log_dirs": [b"d" * 16] * (MAX_DIRECTORIES + 1)},
        ),
        (BrokerRegistrationRequest, REGISTRATION, {"listeners": []}),
        (
            BrokerRegistrationRequest,
            REGISTRATION,
            {"listeners": [{"name": "P", "host": "h", "port": 1}] * 17},
        ),
        (
            BrokerRegistrationRequest,
            REGISTRATION,
            {"listeners": [{"name": "P", "host": "h", "port": 65_536}]},
        ),
    ],
)
def test_values_outside_their_limits_are_refused(
    kind: type[RpcBody], sound: dict[str, Any], wrong: dict[str, Any]
) -> None:
    kind.model_validate(sound)
    with pytest.raises(ValidationError):
        kind.model_validate({**sound, **wrong})


def test_request_without_required_field_is_refused() -> None:
    for kind, sound in (
        (BrokerHeartbeatRequest, HEARTBEAT),
        (BrokerRegistrationRequest, REGISTRATION),
    ):
        for name in sound:
            with pytest.raises(ValidationError, match=name):
                kind.model_validate({key: sound[key] for key in sound if key != name})


def test_nested_bodies_round_trip() -> None:
    alter_partition = AlterPartitionRequest.model_validate(
        {"broker_id": 1, "broker_epoch": 5, "partitions": [ISR_CHANGE]}
    )
    assert alter_partition.partitions[0].isr == (1, 2)
    assert type(alter_partition.partitions[0].topic_id) is TopicId
    assert AlterPartitionRequest.model_validate(alter_partition.model_dump()) == alter_partition
    refusal = AssignReplicasToDirsResponse(
        refused=(
            RefusedAssignment(
                topic_id=TopicId(b"t" * 16), partition=3, error_code=ErrorCode.UNKNOWN_TOPIC_ID
            ),
        )
    )
    parsed = AssignReplicasToDirsResponse.model_validate(refusal.model_dump())
    assert parsed.refused[0].error_code is ErrorCode.UNKNOWN_TOPIC_ID
    assignment = AssignReplicasToDirsRequest.model_validate(
        {
            "broker_id": 1,
            "broker_epoch": 5,
            "directories": [
                {
                    "directory_id": b"d" * 16,
                    "topics": [{"topic_id": b"t" * 16, "partitions": [0, 1]}],
                }
            ],
        }
    )
    assert assignment.directories[0].topics[0].partitions == (0, 1)


def test_omitted_fields_have_kafkas_defaults() -> None:
    assert AlterPartitionResponse(partitions=()).partitions == ()
    assert NewTopic(name="t") == NewTopic(
        name="t", num_partitions=-1, replication_factor=-1, assignments={}, configs={}
    )
    assert TopicRef().name is None
    assert CreatedTopic(name="t").error_code is ErrorCode.NONE
    deleted = DeletedTopic(name=None, topic_id=TopicId(bytes(16)))
    assert deleted.error_code is ErrorCode.NONE
    altered = AlteredPartition(topic_id=TopicId(bytes(16)), partition=0)
    assert (altered.leader, altered.isr) == (-1, ())


#: Fields that name a node, but not the sender.
_TARGETS = {
    ("UnregisterBroker", "broker_id"),
    ("UnregisterController", "controller_id"),
    ("AddRaftVoter", "voter_id"),
    ("RemoveRaftVoter", "voter_id"),
    ("QuorumMessages", "receiver_id"),
}


def test_each_field_with_a_node_id_is_the_sender_or_a_known_target() -> None:
    """A listener compares the sender of a request with the principal of its connection."""
    for api, request in REQUESTS.items():
        named = {name for name in request.model_fields if name.endswith(("broker_id", "_id"))}
        nodes = named & {"broker_id", "controller_id", "voter_id", "sender_id", "receiver_id"}
        senders = {name for name in nodes if (api, name) not in _TARGETS}
        assert senders == ({request.sender_field} if request.sender_field else set()), api
