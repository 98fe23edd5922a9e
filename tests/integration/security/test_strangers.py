"""Requests from non-members that only members of the cluster may send, each harmful if accepted.

The client's address is not in ``cluster.action.allowed.hosts``."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any, Final

import confluent_kafka
import pytest

from kraftjbod.core.errors import ErrorCode
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, Uuid
from kraftjbod.protocol import messages as m
from kraftjbod.protocol import rpc_codec, rpc_quorum_messages
from kraftjbod.protocol.rpc_messages import BrokerHeartbeatRequest
from tests.integration import clients, raw
from tests.integration.cluster import WAIT_S, Cluster
from tests.integration.conftest import MakeCluster

pytestmark = [pytest.mark.process, pytest.mark.clients]

STRANGER: Final = "127.0.0.66"
REFUSED: Final = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
CONFIG: Final = {
    "cluster.action.allowed.hosts": "127.0.0.1/32",
    # A stopped broker stays a member with its replicas in sync for the duration of a test.
    "broker.session.timeout.ms": "60000",
    "broker.reconnect.grace.ms": "60000",
    "replica.lag.time.max.ms": "60000",
    "storage.telemetry.enable": "true",
    "storage.telemetry.log.dir.interval.ms": "200",
}


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=2, dirs=1, config=CONFIG)


@contextlib.contextmanager
def stopped_follower(cluster: Cluster) -> Iterator[None]:
    """Pause the process of broker 2 within the block."""
    pid = cluster.brokers[2].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def topic_id(cluster: Cluster, topic: str) -> bytes:
    found = cluster.metadata().topic(topic)
    assert found is not None
    return bytes(found.topic_id)


def forge_fetches(cluster: Cluster, topic: str, epoch: int) -> list[Any]:
    """Fetch like broker 2's replica of partition 0: all of it, and then twice at its end."""
    kind = m.FetchRequest
    named = topic_id(cluster, topic)
    session_id, answers = 0, list[Any]()
    with raw.connected(cluster.brokers[1].address, STRANGER) as connection:
        for session_epoch, offset in enumerate((0, 1, 1)):
            partition = kind.FetchPartition(
                partition=0,
                current_leader_epoch=0,
                fetch_offset=offset,
                last_fetched_epoch=-1,
                log_start_offset=0,
                partition_max_bytes=1 << 20,
            )
            request = kind(
                replica_state=kind.ReplicaState(replica_id=2, replica_epoch=epoch),
                max_wait_ms=0,
                min_bytes=0,
                max_bytes=1 << 20,
                isolation_level=0,
                session_id=session_id,
                session_epoch=session_epoch,
                topics=[kind.FetchTopic(topic_id=named, partitions=[partition])],
            )
            answers.append(raw.exchange_on(connection, request, 16))
            session_id = answers[-1].session_id
    return answers


def visible(cluster: Cluster, topic: str) -> int:
    """Return the high watermark of partition 0 that the leader shows to consumers."""
    kind = m.FetchRequest
    partition = kind.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = kind(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=0,
        topics=[kind.FetchTopic(topic_id=topic_id(cluster, topic), partitions=[partition])],
    )
    answer = raw.exchange(cluster.brokers[1].address, request, 16)
    return int(answer.responses[0].partitions[0].high_watermark)


def test_fetch_with_forged_replica_id_neither_commits_nor_reads_uncommitted_records(
    cluster: Cluster,
) -> None:
    leader = cluster.brokers[1].address
    cluster.create_topic("forged", assignments={0: [1, 2]}, min_insync_replicas=1)
    epoch = cluster.metadata().brokers[BrokerId(2)].epoch
    with stopped_follower(cluster):
        written = raw.produce(leader, "forged", raw.batch([b"uncommitted"]), acks=1)
        assert written == (0, 0)
        assert visible(cluster, "forged") == 0, "the follower has not fetched it"
        answers = forge_fetches(cluster, "forged", epoch)
        assert visible(cluster, "forged") == 0, "a stranger acknowledged it for the follower"
        assert [(answer.error_code, answer.responses) for answer in answers] == [(REFUSED, [])] * 3


def open_transaction(cluster: Cluster, topic: str) -> tuple[confluent_kafka.Producer, int, int]:
    """Return a producer with an open transaction of one record, its id and its epoch."""
    settings = {"bootstrap.servers": cluster.bootstrap, "transactional.id": topic}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce(topic, b"of an open transaction", partition=0)
    producer.flush(WAIT_S)
    request = m.DescribeProducersRequest(
        topics=[m.DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0])]
    )
    answer = raw.exchange(cluster.brokers[1].address, request, 0, source=STRANGER)
    (known,) = answer.topics[0].partitions[0].active_producers
    return producer, known.producer_id, known.producer_epoch


def test_write_txn_markers_from_non_member_ends_no_transaction(cluster: Cluster) -> None:
    cluster.create_topic("marked", assignments={0: [1, 2]})
    producer, producer_id, epoch = open_transaction(cluster, "marked")
    kind = m.WriteTxnMarkersRequest
    marker = kind.WritableTxnMarker(
        producer_id=producer_id,
        producer_epoch=epoch,
        transaction_result=False,
        topics=[kind.WritableTxnMarkerTopic(name="marked", partition_indexes=[0])],
        coordinator_epoch=1_000_000,
        transaction_version=0,
    )
    answer = raw.exchange(cluster.brokers[1].address, kind(markers=[marker]), 1, source=STRANGER)
    producer.commit_transaction(WAIT_S)
    # librdkafka reads only committed records.
    found = clients.read_confluent_until(cluster.bootstrap, "marked", 1)
    assert found == [b"of an open transaction"]
    (partition,) = answer.markers[0].topics[0].partitions
    assert partition.error_code == REFUSED


def test_add_partitions_to_txn_from_non_member_is_refused(cluster: Cluster) -> None:
    cluster.create_topic("added", assignments={0: [1, 2]})
    kind = m.AddPartitionsToTxnRequest
    transaction = kind.AddPartitionsToTxnTransaction(
        transactional_id="any", producer_id=1, producer_epoch=0, verify_only=True, topics=[]
    )
    answer = raw.exchange(
        cluster.brokers[1].address, kind(transactions=[transaction]), 5, source=STRANGER
    )
    assert answer.error_code == REFUSED
    by_producer = kind(
        v3_and_below_transactional_id="any",
        v3_and_below_producer_id=1,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name="added", partitions=[0])],
    )
    answer = raw.exchange(cluster.brokers[1].address, by_producer, 3, source=STRANGER)
    (partition,) = answer.results_by_topic_v3_and_below[0].results_by_partition
    assert partition.partition_error_code != REFUSED


def test_voter_change_from_non_member_is_refused_by_broker(cluster: Cluster) -> None:
    directory = os.urandom(16)
    add = m.AddRaftVoterRequest(
        cluster_id=None,
        timeout_ms=1000,
        voter_id=666,
        voter_directory_id=directory,
        listeners=[m.AddRaftVoterRequest.Listener(name="CONTROLLER", host=STRANGER, port=1)],
    )
    remove = m.RemoveRaftVoterRequest(cluster_id=None, voter_id=100, voter_directory_id=directory)
    for request in (add, remove):
        answer = raw.exchange(cluster.brokers[1].address, request, 0, source=STRANGER)
        assert answer.error_code == REFUSED, answer
        assert STRANGER in answer.error_message
        honest = raw.exchange(cluster.brokers[1].address, request, 0)
        assert honest.error_code != REFUSED, honest


def test_controller_refuses_heartbeat_voter_change_and_fetch_from_non_member(
    cluster: Cluster,
) -> None:
    broker = cluster.metadata().brokers[BrokerId(1)]
    forged = BrokerHeartbeatRequest(
        broker_id=BrokerId(1),
        broker_epoch=broker.epoch,
        current_metadata_offset=0,
        want_fence=True,
        want_shut_down=False,
    )
    voter = rpc_quorum_messages.AddRaftVoterRequestRpc(
        voter_id=BrokerId(666),
        directory_id=DirectoryId(bytes(Uuid.random(os.urandom))),
        endpoints=(f"CONTROLLER://{STRANGER}:1",),
    )
    observer = rpc_quorum_messages.FetchMetadataRequest(
        broker_id=BrokerId(666),
        broker_epoch=BrokerEpoch(-1),
        fetch_offset=0,
        max_wait_ms=0,
        max_bytes=1 << 20,
    )
    for request in (forged, voter, observer):
        answer = raw.rpc(cluster.local.controller.address, request, source=STRANGER)
        assert answer.error is not None and answer.error.code is REFUSED, (request.api, answer)
    assert set(rpc_codec.REQUESTS) > {forged.api, voter.api, observer.api}
    refusal = cluster.wait_event(cluster.local.controller, "cluster_action_refused")
    assert (refusal["api"], refusal["peer"].rpartition(":")[0]) == (forged.api, STRANGER)


def test_telemetry_topics_refuse_produce_from_non_member(cluster: Cluster) -> None:
    topic = "__storage_telemetry"
    cluster.wait("samples", lambda: cluster.metadata().topic(topic) is not None)
    cluster.wait_whole(topic)
    leader = cluster.brokers[cluster.partitions(topic)[0].leader].address
    records = raw.batch([b"forged"])
    answer = raw.exchange(leader, raw.produce_request(topic, records), 9, source=STRANGER)
    (partition,) = answer.responses[0].partition_responses
    assert partition.error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
