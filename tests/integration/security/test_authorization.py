"""A broker with an authorizer: each API without and with the rights of its row in the table.

The client has a certificate, so that its principal is ``User:CN=alice``. The super user is
``User:CN=root``. Requests are raw, so that the codes are those on the wire.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.authorizer.api_rights import KAFKA_APIS, Need
from kraftjbod.core.acl import (
    STANDARD_AUTHORIZER,
    AclOperation,
    AclPermission,
    AclResourceType,
)
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol import messages as m
from kraftjbod.protocol.kafka_codec import SUPPORTED, ApiKey, Message, api_name, request_api_key
from tests.certificates import Authority
from tests.integration.conftest import MakeCluster
from tests.integration.raw import batch, exchange_on
from tests.integration.security.listeners import add_listeners

pytestmark = [pytest.mark.process]
Op, Kind = AclOperation, AclResourceType
OTHERS = {"ApiVersions", "SaslHandshake", "SaslAuthenticate", "DescribeCluster"}
RIGHTS_S = 60
REFUSALS = {
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}
NAMES = {
    Kind.TOPIC: "t",
    Kind.GROUP: "g",
    Kind.CLUSTER: "kafka-cluster",
    Kind.TRANSACTIONAL_ID: "x",
}


@dataclass(frozen=True)
class Guarded:
    """A cluster whose clients need rights, and connections of its users."""

    contexts: dict[str, ssl.SSLContext]
    port: int
    audit: Path

    def connect(self, user: str) -> ssl.SSLSocket:
        raw = socket.create_connection(("127.0.0.1", self.port), 30)
        return self.contexts[user].wrap_socket(raw, server_hostname="127.0.0.1")

    def ask(self, user: str, request: Message, version: int | None = None) -> Any:
        chosen = SUPPORTED[request_api_key(request)][1] if version is None else version
        with self.connect(user) as connection:
            return exchange_on(connection, request, chosen)

    def grant(
        self, *rights: tuple[AclOperation, AclResourceType, str], user: str = "alice"
    ) -> None:
        """Create ALLOW bindings, and wait until the broker applies them."""
        request = m.CreateAclsRequest(
            creations=[
                m.CreateAclsRequest.AclCreation(
                    resource_type=kind,
                    resource_name=name,
                    resource_pattern_type=3,
                    principal=f"User:CN={user}",
                    host="*",
                    operation=operation,
                    permission_type=AclPermission.ALLOW,
                )
                for operation, kind, name in rights
            ]
        )
        response = self.ask("root", request)
        assert [one.error_code for one in response.results] == [0] * len(rights), response
        self.wait_for_count(len(rights))

    def revoke_all(self) -> None:
        everything = m.DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        response = self.ask("root", m.DeleteAclsRequest(filters=[everything]))
        assert response.filter_results[0].error_code == 0
        self.wait_for_count(0)

    def wait_for_count(self, count: int) -> None:
        request = m.DescribeAclsRequest(
            resource_type_filter=1,
            resource_name_filter=None,
            pattern_type_filter=1,
            principal_filter=None,
            host_filter=None,
            operation=1,
            permission_type=1,
        )
        end = time.monotonic() + RIGHTS_S
        while sum(len(one.acls) for one in self.ask("root", request).resources) != count:
            assert time.monotonic() < end, "the broker does not apply the bindings"
            time.sleep(0.02)

    def wait_for_coordinators(self) -> None:
        """Wait until groups and transactions are served: before, their errors hide others."""
        end = time.monotonic() + RIGHTS_S
        group = m.OffsetFetchRequest(group_id="g", topics=None)
        transaction = m.DescribeTransactionsRequest(transactional_ids=["x"])
        for kind, request, version in ((0, group, 5), (1, transaction, 0)):
            find = m.FindCoordinatorRequest(key_type=kind, coordinator_keys=["x"])
            away = {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
            away.add(ErrorCode.COORDINATOR_NOT_AVAILABLE)
            while True:
                codes = codes_in(self.ask("root", find))
                codes |= codes_in(self.ask("root", request, version))
                if not codes & away:
                    break
                assert time.monotonic() < end, "no coordinator"
                time.sleep(0.1)


@pytest.fixture(scope="module")
def guarded(
    make_shared_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    path = tmp_path_factory.mktemp("acl")
    authority = Authority()
    ca = authority.write_pem(path / "ca.pem")
    keystore = authority.issue("broker-1").write_pkcs12(path / "broker.p12", "store")
    cluster = make_shared_cluster(brokers=1, dirs=1, start=False)
    security = {
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:CN=root;User:CN=other,O=x",
    }
    audit = path / "audit.log"
    config = security | {
        "ssl.keystore.location": str(keystore),
        "ssl.keystore.password": "store",
        "ssl.client.auth": "required",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(ca),
        "audit.log.path": str(audit),
    }
    ports = add_listeners(cluster, {"STRICT": "SSL"}, config)
    with cluster.local.controller.files.config_path.open("a") as file:
        file.writelines(f"{key}={value}\n" for key, value in security.items())
    cluster.start()
    contexts = {}
    for user in ("root", "alice"):
        pem = authority.issue(user).write_pem(path / f"{user}.pem")
        contexts[user] = ssl.create_default_context(cafile=str(ca))
        contexts[user].check_hostname = False
        contexts[user].load_cert_chain(pem)
    made = Guarded(contexts, ports["STRICT"], audit)
    topic = m.CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
    )
    request = m.CreateTopicsRequest(topics=[topic], timeout_ms=30_000)
    assert made.ask("root", request).topics[0].error_code == 0
    made.wait_for_coordinators()
    yield made


def codes_in(value: Any) -> set[int]:
    """Return all error codes of a response, at each depth."""
    found: set[int] = set()
    if isinstance(value, Message):
        for name in dir(type(value)):
            if name.startswith("_") or name[0].isupper():
                continue
            part = getattr(value, name)
            if name.endswith("error_code"):
                found.add(part)
            else:
                found |= codes_in(part)
    elif isinstance(value, list | tuple):
        for one in value:
            found |= codes_in(one)
    return found


@dataclass(frozen=True)
class Case:
    """A request, and the numbers of the needs in its row that it has; by default those with a
    code."""

    make: Callable[[], Message]
    needs: Sequence[int] | None = None
    version: int | None = None


def topic_of(kind: Callable[..., Any], part: Any, name: str = "t", **more: Any) -> Any:
    return kind(name=name, partitions=[part], **more)


def config_case(kind: Any, resource: Any, resource_type: int, name: str, need: int) -> Case:
    def make() -> Message:
        more: dict[str, Any] = {"configs": []} if kind is not m.DescribeConfigsRequest else {}
        if kind is m.DescribeConfigsRequest:
            more = {"configuration_keys": None}
        one = resource(resource_type=resource_type, resource_name=name, **more)
        return kind(resources=[one])

    return Case(make, [need])


def config_cases(kind: Any, resource: Any) -> list[Case]:
    of = ((2, "t", 0), (32, "g", 1), (4, "", 2))
    return [config_case(kind, resource, number, name, need) for number, name, need in of]


def produce(transactional_id: str | None, producer_id: int) -> Message:
    data = batch([b"v"], producer_id=producer_id, epoch=0, sequence=0) if producer_id >= 0 else None
    records = batch([b"v"]) if data is None else data
    part = m.ProduceRequest.PartitionProduceData(index=0, records=records)
    topic = m.ProduceRequest.TopicProduceData(name="t", partition_data=[part])
    return m.ProduceRequest(
        transactional_id=transactional_id, acks=-1, timeout_ms=5_000, topic_data=[topic]
    )


def fetch(replica_id: int) -> Message:
    part = m.FetchRequest.FetchPartition(
        partition=0, fetch_offset=0, partition_max_bytes=1_000, current_leader_epoch=-1
    )
    topic = m.FetchRequest.FetchTopic(topic="t", partitions=[part])
    return m.FetchRequest(
        replica_id=replica_id,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1_000,
        session_epoch=-1,
        topics=[topic],
        forgotten_topics_data=[],
    )


def acl_filter() -> dict[str, Any]:
    return {
        "resource_type_filter": 6,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }


CASES: dict[str, list[Case]] = {
    "Produce": [Case(lambda: produce(None, -1), [0], 9)],
    "Fetch": [Case(lambda: fetch(-1), [0], 12), Case(lambda: fetch(5), [1], 12)],
    "ListOffsets": [
        Case(
            lambda: m.ListOffsetsRequest(
                replica_id=-1,
                topics=[
                    topic_of(
                        m.ListOffsetsRequest.ListOffsetsTopic,
                        m.ListOffsetsRequest.ListOffsetsPartition(
                            partition_index=0, timestamp=-1, current_leader_epoch=-1
                        ),
                    )
                ],
            )
        )
    ],
    "OffsetForLeaderEpoch": [
        Case(
            lambda: m.OffsetForLeaderEpochRequest(
                topics=[
                    m.OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
                        topic="t",
                        partitions=[
                            m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition(
                                partition=0, leader_epoch=0, current_leader_epoch=-1
                            )
                        ],
                    )
                ]
            )
        )
    ],
    "DeleteRecords": [
        Case(
            lambda: m.DeleteRecordsRequest(
                timeout_ms=5_000,
                topics=[
                    topic_of(
                        m.DeleteRecordsRequest.DeleteRecordsTopic,
                        m.DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=0),
                    )
                ],
            )
        )
    ],
    "DescribeProducers": [
        Case(
            lambda: m.DescribeProducersRequest(
                topics=[m.DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])]
            )
        )
    ],
    "Metadata": [
        Case(
            lambda: m.MetadataRequest(
                topics=[m.MetadataRequest.MetadataRequestTopic(name="t")],
                allow_auto_topic_creation=False,
            ),
            [0],
        )
    ],
    "DescribeTopicPartitions": [
        Case(
            lambda: m.DescribeTopicPartitionsRequest(
                topics=[m.DescribeTopicPartitionsRequest.TopicRequest(name="t")],
                response_partition_limit=10,
                cursor=None,
            )
        )
    ],
    "CreateTopics": [
        Case(
            lambda: m.CreateTopicsRequest(
                topics=[
                    m.CreateTopicsRequest.CreatableTopic(
                        name="t", num_partitions=1, replication_factor=1, assignments=[], configs=[]
                    )
                ],
                timeout_ms=10_000,
                validate_only=True,
            )
        )
    ],
    "DeleteTopics": [
        Case(lambda: m.DeleteTopicsRequest(topic_names=["absent"], timeout_ms=10_000), [0], 5)
    ],
    "CreatePartitions": [
        Case(
            lambda: m.CreatePartitionsRequest(
                topics=[
                    m.CreatePartitionsRequest.CreatePartitionsTopic(
                        name="t", count=2, assignments=None
                    )
                ],
                timeout_ms=10_000,
                validate_only=True,
            )
        )
    ],
    "DescribeConfigs": config_cases(
        m.DescribeConfigsRequest, m.DescribeConfigsRequest.DescribeConfigsResource
    ),
    "AlterConfigs": config_cases(m.AlterConfigsRequest, m.AlterConfigsRequest.AlterConfigsResource),
    "IncrementalAlterConfigs": config_cases(
        m.IncrementalAlterConfigsRequest, m.IncrementalAlterConfigsRequest.AlterConfigsResource
    ),
    "ListConfigResources": [Case(lambda: m.ListConfigResourcesRequest(resource_types=[]))],
    "ElectLeaders": [
        Case(
            lambda: m.ElectLeadersRequest(
                election_type=0,
                topic_partitions=[m.ElectLeadersRequest.TopicPartitions(topic="t", partitions=[0])],
                timeout_ms=10_000,
            ),
            version=version,
        )
        for version in (0, 2)
    ],
    "UpdateFeatures": [Case(lambda: m.UpdateFeaturesRequest(feature_updates=[]))],
    "UnregisterBroker": [Case(lambda: m.UnregisterBrokerRequest(broker_id=99))],
    "UnregisterController": [Case(lambda: m.UnregisterControllerRequest(controller_id=99))],
    "AddRaftVoter": [
        Case(lambda: m.AddRaftVoterRequest(cluster_id="other", voter_id=9, listeners=[]))
    ],
    "RemoveRaftVoter": [Case(lambda: m.RemoveRaftVoterRequest(cluster_id="other", voter_id=9))],
    "AlterPartitionReassignments": [
        Case(lambda: m.AlterPartitionReassignmentsRequest(topics=[], timeout_ms=10_000))
    ],
    "ListPartitionReassignments": [
        Case(lambda: m.ListPartitionReassignmentsRequest(topics=None, timeout_ms=10_000))
    ],
    "DescribeQuorum": [Case(lambda: m.DescribeQuorumRequest(topics=[]))],
    "DescribeLogDirs": [Case(lambda: m.DescribeLogDirsRequest(topics=None))],
    "AlterReplicaLogDirs": [
        Case(
            lambda: m.AlterReplicaLogDirsRequest(
                dirs=[
                    m.AlterReplicaLogDirsRequest.AlterReplicaLogDir(
                        path="/absent",
                        topics=[
                            m.AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(
                                name="t", partitions=[0]
                            )
                        ],
                    )
                ]
            )
        )
    ],
    "AlterLogDirs": [Case(lambda: m.AlterLogDirsRequest(operation=99, target="/absent"))],
    "DescribeAcls": [Case(lambda: m.DescribeAclsRequest(**acl_filter()))],
    "CreateAcls": [
        Case(
            lambda: m.CreateAclsRequest(
                creations=[
                    m.CreateAclsRequest.AclCreation(
                        resource_type=2,
                        resource_name="",
                        resource_pattern_type=3,
                        principal="User:x",
                        host="*",
                        operation=3,
                        permission_type=3,
                    )
                ]
            )
        )
    ],
    "DeleteAcls": [
        Case(
            lambda: m.DeleteAclsRequest(
                filters=[m.DeleteAclsRequest.DeleteAclsFilter(**acl_filter())]
            )
        )
    ],
    "DescribeUserScramCredentials": [
        Case(lambda: m.DescribeUserScramCredentialsRequest(users=None))
    ],
    "AlterUserScramCredentials": [
        Case(
            lambda: m.AlterUserScramCredentialsRequest(
                deletions=[
                    m.AlterUserScramCredentialsRequest.ScramCredentialDeletion(
                        name="absent", mechanism=1
                    )
                ],
                upsertions=[],
            )
        )
    ],
    "DescribeClientQuotas": [
        Case(lambda: m.DescribeClientQuotasRequest(components=[], strict=False))
    ],
    "AlterClientQuotas": [
        Case(
            lambda: m.AlterClientQuotasRequest(
                entries=[
                    m.AlterClientQuotasRequest.EntryData(
                        entity=[
                            m.AlterClientQuotasRequest.EntityData(
                                entity_type="user", entity_name="absent"
                            )
                        ],
                        ops=[
                            m.AlterClientQuotasRequest.OpData(key="producer_byte_rate", remove=True)
                        ],
                    )
                ],
                validate_only=True,
            )
        )
    ],
    "FindCoordinator": [
        Case(lambda: m.FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), [0]),
        Case(lambda: m.FindCoordinatorRequest(key_type=0, key="g"), [0], 3),
        Case(lambda: m.FindCoordinatorRequest(key_type=1, coordinator_keys=["x"]), [1]),
    ],
    "JoinGroup": [
        Case(
            lambda: m.JoinGroupRequest(
                group_id="g",
                session_timeout_ms=1,
                rebalance_timeout_ms=1,
                member_id="",
                group_instance_id=None,
                protocol_type="consumer",
                protocols=[],
            ),
            version=version,
        )
        for version in (0, 9)
    ],
    "SyncGroup": [
        Case(
            lambda: m.SyncGroupRequest(
                group_id="g", member_id="a", protocol_type="c", protocol_name="p", assignments=[]
            )
        )
    ],
    "Heartbeat": [Case(lambda: m.HeartbeatRequest(group_id="g", member_id="a"))],
    "LeaveGroup": [Case(lambda: m.LeaveGroupRequest(group_id="g", members=[]))],
    "OffsetCommit": [
        Case(
            lambda: m.OffsetCommitRequest(
                group_id="g",
                generation_id_or_member_epoch=-1,
                member_id="",
                topics=[
                    topic_of(
                        m.OffsetCommitRequest.OffsetCommitRequestTopic,
                        m.OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1, committed_metadata=""
                        ),
                    )
                ],
            ),
            version=9,
        )
    ],
    "OffsetFetch": [
        Case(
            lambda: m.OffsetFetchRequest(
                groups=[
                    m.OffsetFetchRequest.OffsetFetchRequestGroup(
                        group_id="g",
                        member_id=None,
                        topics=[
                            m.OffsetFetchRequest.OffsetFetchRequestTopics(
                                name="t", partition_indexes=[0]
                            )
                        ],
                    )
                ]
            ),
            [0, 1],
            9,
        ),
        *(
            Case(
                lambda: m.OffsetFetchRequest(
                    group_id="g",
                    topics=[
                        m.OffsetFetchRequest.OffsetFetchRequestTopic(
                            name="t", partition_indexes=[0]
                        )
                    ],
                ),
                [0, 1],
                version,
            )
            for version in (1, 5)
        ),
    ],
    "OffsetDelete": [
        Case(
            lambda: m.OffsetDeleteRequest(
                group_id="g",
                topics=[
                    topic_of(
                        m.OffsetDeleteRequest.OffsetDeleteRequestTopic,
                        m.OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=0),
                    )
                ],
            )
        )
    ],
    "DescribeGroups": [Case(lambda: m.DescribeGroupsRequest(groups=["g"]))],
    "ListGroups": [Case(lambda: m.ListGroupsRequest(states_filter=[], types_filter=[]))],
    "DeleteGroups": [Case(lambda: m.DeleteGroupsRequest(groups_names=["g"]))],
    "ConsumerGroupHeartbeat": [
        Case(
            lambda: m.ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id="m",
                member_epoch=-5,
                instance_id=None,
                rack_id=None,
                subscribed_topic_names=["t"],
                subscribed_topic_regex=None,
                server_assignor=None,
                topic_partitions=None,
            )
        )
    ],
    "ConsumerGroupDescribe": [Case(lambda: m.ConsumerGroupDescribeRequest(group_ids=["g"]), [0])],
    "InitProducerId": [
        Case(lambda: m.InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=0), [0]),
        Case(lambda: m.InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), [1]),
    ],
    "AddPartitionsToTxn": [
        Case(
            lambda: m.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="x",
                v3_and_below_producer_id=1,
                v3_and_below_producer_epoch=0,
                v3_and_below_topics=[
                    topic_of(m.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic, 0)
                ],
            ),
            [0, 1],
            3,
        ),
        Case(lambda: m.AddPartitionsToTxnRequest(transactions=[]), [2], 5),
    ],
    "AddOffsetsToTxn": [
        Case(
            lambda: m.AddOffsetsToTxnRequest(
                transactional_id="x", producer_id=1, producer_epoch=0, group_id="g"
            )
        )
    ],
    "EndTxn": [
        Case(lambda: m.EndTxnRequest(transactional_id="x", producer_id=1, producer_epoch=0))
    ],
    "TxnOffsetCommit": [
        Case(
            lambda: m.TxnOffsetCommitRequest(
                transactional_id="x",
                group_id="g",
                producer_id=1,
                producer_epoch=0,
                generation_id=-1,
                member_id="",
                group_instance_id=None,
                topics=[
                    topic_of(
                        m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic,
                        m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=0, committed_offset=1, committed_metadata=""
                        ),
                    )
                ],
            )
        )
    ],
    "WriteTxnMarkers": [
        Case(
            lambda: m.WriteTxnMarkersRequest(
                markers=[
                    m.WriteTxnMarkersRequest.WritableTxnMarker(
                        producer_id=1,
                        producer_epoch=0,
                        topics=[
                            m.WriteTxnMarkersRequest.WritableTxnMarkerTopic(
                                name="absent", partition_indexes=[0]
                            )
                        ],
                    )
                ]
            )
        )
    ],
    "DescribeTransactions": [Case(lambda: m.DescribeTransactionsRequest(transactional_ids=["x"]))],
    "ListTransactions": [
        Case(lambda: m.ListTransactionsRequest(state_filters=[], producer_id_filters=[]))
    ],
}


def served_apis() -> set[str]:
    return {api_name(key) for key in ApiKey}


def test_authorization_matrix_has_a_case_for_each_api() -> None:
    assert served_apis() - OTHERS == CASES.keys()


@pytest.mark.parametrize("api", CASES)
def test_api_is_refused_without_and_allowed_with_the_least_rights(
    guarded: Guarded, api: str
) -> None:
    """For each needed right: all others are granted, and the answer has the code of the row."""
    for case in CASES[api]:
        row = KAFKA_APIS[api]
        numbers = range(len(row)) if case.needs is None else case.needs
        needs: list[Need] = [row[number] for number in numbers if row[number].code is not None]
        rights = [(need.operation, need.resource_type, NAMES[need.resource_type]) for need in needs]
        if api == "DeleteTopics":
            rights = [(Op.DELETE, Kind.TOPIC, "absent")]
        for need, missing in zip(needs, rights, strict=True):
            guarded.revoke_all()
            guarded.grant(*(right for right in rights if right != missing))
            codes = codes_in(guarded.ask("alice", case.make(), case.version))
            assert need.code in codes, (api, need, codes)
        guarded.revoke_all()
        guarded.grant(*rights)
        codes = codes_in(guarded.ask("alice", case.make(), case.version))
        assert not codes & REFUSALS, (api, codes)


def test_transactional_batch_needs_the_transactional_id(guarded: Guarded) -> None:
    """The batch decides: a request without a transactional id is refused as a whole."""
    guarded.revoke_all()
    guarded.grant((Op.WRITE, Kind.TOPIC, "t"))
    records = bytearray(batch([b"v"], producer_id=7, epoch=0, sequence=0))
    records[22] |= 0x10
    part = m.ProduceRequest.PartitionProduceData(index=0, records=bytes(records))
    topic = m.ProduceRequest.TopicProduceData(name="t", partition_data=[part])
    for name in (None, "x"):
        request = m.ProduceRequest(
            transactional_id=name, acks=-1, timeout_ms=5_000, topic_data=[topic]
        )
        answer = guarded.ask("alice", request, 9)
        assert codes_in(answer) == {ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}


@pytest.mark.parametrize(
    "api", ["Metadata", "ListOffsets", "DescribeTopicPartitions", "DeleteRecords", "Fetch"]
)
def test_missing_and_forbidden_topic_have_equal_answers(guarded: Guarded, api: str) -> None:
    """All fields are compared, after the name of the missing topic is replaced."""
    guarded.revoke_all()
    case = CASES[api][0]
    answers = []
    for name in (b"t", b"u"):
        request: Any = case.make()
        for topic in request.topics:
            setattr(topic, "topic" if api == "Fetch" else "name", name.decode())
        version = SUPPORTED[request_api_key(request)][1] if case.version is None else case.version
        with guarded.connect("alice") as connection:
            answer = exchange_on(connection, request, version)
        answers.append(re.sub(" at 0x[0-9a-f]+", "", repr(answer).replace("'u'", "'t'")))
    assert answers[0] == answers[1]


def test_metadata_lists_only_topics_that_the_client_may_describe(guarded: Guarded) -> None:
    guarded.revoke_all()
    everything = m.MetadataRequest(topics=None, include_topic_authorized_operations=True)
    assert list(guarded.ask("alice", everything).topics) == []
    guarded.grant((Op.READ, Kind.TOPIC, "t"))
    (topic,) = guarded.ask("alice", everything).topics
    assert topic.name == "t"
    assert topic.topic_authorized_operations == 1 << Op.READ | 1 << Op.DESCRIBE


def test_cluster_operations_include_alter_for_the_super_user_and_are_none_for_others(
    guarded: Guarded,
) -> None:
    guarded.revoke_all()
    request = m.DescribeClusterRequest(include_cluster_authorized_operations=True)
    assert guarded.ask("alice", request).cluster_authorized_operations == 0
    operations = guarded.ask("root", request).cluster_authorized_operations
    assert operations & 1 << Op.ALTER
    assert operations & 1 << Op.CLUSTER_ACTION


def test_refusals_and_administrative_acts_are_in_the_audit(guarded: Guarded) -> None:
    guarded.revoke_all()
    guarded.ask("alice", produce(None, -1), 9)
    end = time.monotonic() + RIGHTS_S
    while True:
        lines = [json.loads(line) for line in guarded.audit.read_text().splitlines()]
        refused = [one for one in lines if one["request"] == "Produce"]
        deleted = [one for one in lines if one["request"] == "DeleteAcls"]
        if refused and deleted:
            break
        assert time.monotonic() < end, lines[-5:]
        time.sleep(0.05)
    last = refused[-1]
    assert (last["principal"], last["result"]) == ("User:CN=alice", "denied")
    assert (last["operation"], last["resource"]) == ("WRITE", "t")
    assert (last["listener"], last["host"]) == ("STRICT", "127.0.0.1")
    assert (deleted[-1]["principal"], deleted[-1]["result"]) == ("User:CN=root", "allowed")
