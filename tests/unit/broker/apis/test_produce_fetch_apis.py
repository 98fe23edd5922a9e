"""Produce and Fetch over a real listener, on memory disks."""

from __future__ import annotations

import asyncio
import gc
from errno import EAGAIN
from typing import Any

import pytest
from structlog.testing import capture_logs

from kraftjbod.core.errors import ConnectionLostError, ErrorCode
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.request_limits import MAX_ITEMS_PER_REQUEST
from kraftjbod.metadata.records import PartitionChangeRecord, RemoveTopicRecord
from kraftjbod.protocol.kafka_codec import Message
from kraftjbod.protocol.messages import FetchRequest, MetadataRequest, ProduceRequest
from kraftjbod.testing.faults import DiskFault
from kraftjbod.testing.simulation.memory_vfs import MemVfs
from tests.faults.rig import batch, headers_of
from tests.faults.vfs_fault import Fault, FaultVfs
from tests.unit.broker.broker_rig import (
    TIMEOUT_MS,
    TOPIC_ID,
    TP,
    brokers,
    dir_of,
    fetch,
    only,
    partition,
    produce,
    topic,
)
from tests.unit.broker.gates import Gate, until
from tests.unit.broker.impaired_dirs import fill

BY_NAME = 12


async def test_fetch_returns_produced_batches() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        for base_offset, sent in ((0, batch(3)), (3, batch(2))):
            written = only(await rig.ask(produce(sent), BY_NAME))
            assert (written.error_code, written.base_offset) == (0, base_offset)
        read = only(await rig.ask(fetch(), BY_NAME))
        assert (read.error_code, read.high_watermark, read.log_start_offset) == (0, 5, 0)
        assert [h.base_offset for h in headers_of(read.records)] == [0, 3]


async def test_produce_and_fetch_use_topic_ids_in_new_versions() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        request = produce(batch())
        request.topic_data[0].topic_id = topic().topic_id
        assert only(await rig.ask(request, 13)).error_code == 0
        request = fetch()
        request.topics[0].topic_id = topic().topic_id
        assert only(await rig.ask(request, 16)).records
        request.topics[0].topic_id = b"?" * 16
        assert only(await rig.ask(request, 16)).error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_produce_returns_an_error_per_partition() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        request = produce(batch())
        request.topic_data += produce(batch(), tp=TopicPartition("absent", 0)).topic_data
        response = await rig.ask(request, BY_NAME)
        codes = [t.partition_responses[0].error_code for t in response.responses]
        assert codes == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]


async def test_produce_damaged_or_missing_records_are_rejected() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        damaged = bytearray(batch())
        damaged[-1] ^= 1
        assert only(await rig.ask(produce(bytes(damaged)), 9)).error_code == (
            ErrorCode.CORRUPT_MESSAGE
        )
        assert only(await rig.ask(produce(None), 9)).error_code == ErrorCode.INVALID_RECORD


async def test_produce_with_unknown_acks_returns_invalid_required_acks() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        bad = only(await rig.ask(produce(batch(), acks=2), BY_NAME))
        assert bad.error_code == ErrorCode.INVALID_REQUIRED_ACKS


async def test_produce_with_acks_0_appends_without_response() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        connection = await rig.connect()
        assert (
            await connection.request(produce(batch(), acks=0), timeout_ms=1000, version=9) is None
        )
        answered = only(
            await connection.request(produce(batch(), acks=1), timeout_ms=1000, version=9)
        )
        assert answered.base_offset == 1


async def test_acks_0_produce_that_fails_closes_the_connection() -> None:
    """A closed connection is the only error that the client can notice.

    Otherwise the client would send to a broker that lost the partition until its metadata expires.
    """
    with capture_logs() as logged:
        async with brokers() as (rig,):
            await rig.follow(topic(), partition())
            connection = await rig.connect()
            unled = produce(batch(), tp=TopicPartition("absent", 0), acks=0)
            assert await connection.request(unled, timeout_ms=1000, version=9) is None
            with pytest.raises(ConnectionLostError):
                await connection.request(produce(batch()), timeout_ms=5000, version=9)
    (event,) = [e for e in logged if e["event"] == "acks_0_produce_failed"]
    assert (event["partition"], event["code"]) == ("absent-0", "UNKNOWN_TOPIC_OR_PARTITION")


async def test_waiting_fetch_completes_when_records_arrive() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        waiting = asyncio.create_task(rig.ask(fetch(max_wait_ms=60_000), BY_NAME))
        while not len(rig.parts.hosted.consumer_fetches):
            await asyncio.sleep(0)
        await rig.ask(produce(batch()), BY_NAME)
        assert only(await waiting).records


async def test_fetch_without_new_records_ends_after_max_wait() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        read = only(await rig.ask(fetch(max_wait_ms=1), BY_NAME))
        assert (read.error_code, bytes(read.records)) == (0, b"")


async def test_fetch_returns_first_batch_above_max_bytes() -> None:
    """KIP-74."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(body=b"x" * 500)), BY_NAME)
        request = fetch()
        request.max_bytes = 10
        assert len(only(await rig.ask(request, BY_NAME)).records) > 500


async def test_fetch_with_offset_out_of_range_returns_without_waiting() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        read = only(await rig.ask(fetch(7, max_wait_ms=60_000), BY_NAME))
        assert read.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def in_session(session_id: int, epoch: int, *named: FetchRequest, max_wait_ms: int = 0) -> Message:
    request = fetch(max_wait_ms=max_wait_ms)
    request.topics = [topic for each in named for topic in each.topics]
    request.session_id, request.session_epoch = session_id, epoch
    return request


async def test_consumer_fetch_session_returns_only_changed_partitions_until_all_are_forgotten() -> (
    None
):
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), partition(1))
        other = TopicPartition(TP.topic, 1)
        opened = await rig.ask(in_session(0, 0, fetch(), fetch(tp=other)), BY_NAME)
        assert opened.session_id > 0
        assert [p.partition_index for t in opened.responses for p in t.partitions] == [0, 1]
        session = opened.session_id
        quiet = await rig.ask(in_session(session, 1), BY_NAME)
        assert (quiet.session_id, quiet.responses) == (session, [])

        # A fetch without named partitions waits for records of any partition of the session.
        waiting = asyncio.create_task(rig.ask(in_session(session, 2, max_wait_ms=60_000), BY_NAME))
        while not len(rig.parts.hosted.consumer_fetches):
            await asyncio.sleep(0)
        await rig.ask(produce(batch(2), tp=other), BY_NAME)
        news = only(await waiting)
        assert (news.partition_index, news.high_watermark, bool(news.records)) == (1, 2, True)
        assert (await rig.ask(in_session(session, 3, fetch(2, tp=other)), BY_NAME)).responses == []

        # Forgotten partitions are omitted; the session ends with its last partition.
        forgets = in_session(session, 4, fetch(7))
        names = FetchRequest.ForgottenTopic(topic=TP.topic, partitions=[1])
        forgets.forgotten_topics_data = [names]
        wrong = only(await rig.ask(forgets, BY_NAME))
        assert (wrong.partition_index, wrong.error_code) == (0, ErrorCode.OFFSET_OUT_OF_RANGE)
        ends = in_session(session, 5)
        ends.forgotten_topics_data = [FetchRequest.ForgottenTopic(topic=TP.topic, partitions=[0])]
        ended = await rig.ask(ends, BY_NAME)
        assert (ended.session_id, ended.error_code, ended.responses) == (0, 0, [])
        lost = await rig.ask(in_session(session, 6), BY_NAME)
        assert lost.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_fetch_session_with_wrong_id_epoch_or_version_is_rejected() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        session = (await rig.ask(in_session(0, 0, fetch()), BY_NAME)).session_id
        for session_id, epoch, version, code in (
            (session ^ 1, 1, BY_NAME, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
            (session, 2, BY_NAME, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
            (session, 1, 16, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        ):
            refused = await rig.ask(in_session(session_id, epoch), version)
            assert (refused.error_code, refused.responses) == (code, [])
        # A full fetch that names the session ends it.
        assert only(await rig.ask(in_session(session, -1, fetch()), BY_NAME)).error_code == 0
        lost = await rig.ask(in_session(session, 1), BY_NAME)
        assert lost.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_idempotent_produce_retry_returns_the_first_base_offset() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        records = batch(2, producer=(9, 0, 0))
        first = only(await rig.ask(produce(records), BY_NAME))
        again = only(await rig.ask(produce(records), BY_NAME))
        assert (first.base_offset, again.base_offset, again.error_code) == (0, 0, 0)
        gap = only(await rig.ask(produce(batch(1, producer=(9, 0, 7))), BY_NAME))
        assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


async def test_produce_with_hanging_directory_fails_only_its_partitions() -> None:
    sick = FaultVfs(MemVfs())
    async with brokers(1, sick, MemVfs(), log_dir_io_suspect_ms="50") as (rig,):
        await rig.follow(topic(), partition(), partition(1, directories=[rig.dirs[1].directory_id]))
        sick.inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"write_at"})))
        try:
            request = produce(batch())
            request.topic_data += produce(batch(), tp=TopicPartition(TP.topic, 1)).topic_data
            response = await rig.ask(request, BY_NAME)
            codes = [t.partition_responses[0].error_code for t in response.responses]
            assert codes == [ErrorCode.KAFKA_STORAGE_ERROR, 0]
        finally:
            sick.clear()


#: Behaves as if the page cache were empty.
COLD = Fault(errno=EAGAIN, kinds=frozenset({"read_cached_at"}))


async def test_fetch_of_uncached_records_returns_them_from_disk() -> None:
    cold = FaultVfs(MemVfs())
    async with brokers(1, cold, MemVfs()) as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch(3)), BY_NAME)
        cold.inject(COLD)
        read = only(await rig.ask(fetch(), BY_NAME))
        assert [header.base_offset for header in headers_of(read.records)] == [0]


async def test_fetch_with_hanging_disk_read_leaves_only_that_partition_empty() -> None:
    sick = FaultVfs(MemVfs())
    async with brokers(1, sick, MemVfs(), log_dir_io_suspect_ms="50") as (rig,):
        await rig.follow(topic(), partition(), partition(1, directories=[rig.dirs[1].directory_id]))
        other = TopicPartition(TP.topic, 1)
        for tp in (TP, other):
            await rig.ask(produce(batch(), tp=tp), BY_NAME)
        sick.inject(COLD)
        with Gate(sick, "read_at", "*.log"):
            request = fetch(max_wait_ms=60_000)
            request.topics += fetch(tp=other).topics
            response = await rig.ask(request, BY_NAME)
            parts = [t.partitions[0] for t in response.responses]
            assert [(p.error_code, len(p.records) > 0) for p in parts] == [(0, False), (0, True)]


async def test_waiting_consumer_fetch_completes_on_commit_not_on_append() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(replicas=(1, 2)))
        waiting = asyncio.create_task(rig.ask(fetch(max_wait_ms=60_000), BY_NAME))
        await until(lambda: len(rig.parts.hosted.consumer_fetches))
        await rig.ask(produce(batch(), acks=1), BY_NAME)
        assert len(rig.parts.hosted.consumer_fetches) == 1
        rig.replay(PartitionChangeRecord(topic_id=TOPIC_ID, partition_id=0, isr=(rig.broker_id,)))
        assert only(await waiting).high_watermark == 1


async def test_produce_requests_of_one_connection_append_in_order() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        connection = await rig.connect()
        writes = [
            connection.request(
                produce(batch(producer=(9, 0, n)), acks=1), timeout_ms=TIMEOUT_MS, version=BY_NAME
            )
            for n in range(30)
        ]
        written = [only(response) for response in await asyncio.gather(*writes)]
        assert [(p.error_code, p.base_offset) for p in written] == [(0, n) for n in range(30)]


async def test_waiting_fetch_of_a_deleted_topic_ends_immediately() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        waiting = asyncio.create_task(rig.ask(fetch(max_wait_ms=60_000), BY_NAME))
        await until(lambda: len(rig.parts.hosted.consumer_fetches))
        rig.replay(RemoveTopicRecord(topic_id=topic().topic_id))
        assert only(await waiting).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_disk_read_failure_after_the_fetch_ended_fails_only_the_directory() -> None:
    """The rig treats unhandled errors of the event loop as bugs, as the daemon does."""
    sick = FaultVfs(MemVfs())
    async with brokers(1, sick, MemVfs(), log_dir_io_suspect_ms="20") as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch()), BY_NAME)
        sick.inject(COLD)
        sick.inject(Fault(effect=DiskFault.HANG_EIO, kinds=frozenset({"read_at"})))
        await rig.ask(fetch(max_wait_ms=1), BY_NAME)
        sick.release()
        await until(lambda: not rig.dirs[0].is_online)
        gc.collect()


@pytest.mark.parametrize("version", [9, 10, 12])
async def test_produce_to_wrong_broker_returns_leader_hint_since_version_10(version: int) -> None:
    """KIP-951"""
    async with brokers(2) as (rig, other):
        await rig.follow(topic(), partition(replicas=(1, 2), leader=2, epoch=3))
        response = await rig.ask(produce(batch()), version)
        part = only(response)
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        if version < 10:
            assert part.current_leader is None
        else:
            leader = part.current_leader
            assert (leader.leader_id, leader.leader_epoch) == (2, 3)
            (node,) = response.node_endpoints
            assert (node.node_id, node.host, node.port) == (2, "127.0.0.1", other.listener.port)


@pytest.mark.parametrize(("version", "says"), [(11, (0, 0)), (12, (1, 0)), (16, (1, 1))])
async def test_fetch_from_wrong_broker_returns_leader_hint_by_version(
    version: int, says: tuple[int, int]
) -> None:
    """KIP-951: the leader since version 12, its endpoint since version 16."""
    async with brokers(2) as (rig, _):
        await rig.follow(topic(), partition(replicas=(1, 2), leader=2, epoch=3))
        request = fetch()
        request.topics[0].topic_id = topic().topic_id
        response = await rig.ask(request, version)
        part = only(response)
        assert part.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        has_leader = part.current_leader is not None and part.current_leader.leader_id == 2
        assert (int(has_leader), len(getattr(response, "node_endpoints", ()) or ())) == says


@pytest.mark.parametrize("version", [12, 16])
async def test_follower_serves_debug_consumer_fetches_and_refuses_ordinary_ones(
    version: int,
) -> None:
    async with brokers(2) as (rig, _):
        await rig.follow(topic(), partition(replicas=(1, 2), leader=2))
        for replica_id, code in (
            (-2, ErrorCode.NONE),
            (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        ):
            request = fetch()
            request.topics[0].topic_id = topic().topic_id
            if version < 15:
                request.replica_id = replica_id
            else:
                state = FetchRequest.ReplicaState
                request.replica_state = state(replica_id=replica_id, replica_epoch=-1)
            assert only(await rig.ask(request, version)).error_code == code


async def test_produce_to_full_directory_fails_only_its_partitions_with_reason() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), partition(1, directories=[dir_of(1, 2)]))
        await fill(rig.dirs[0])
        request = produce(batch())
        request.topic_data += produce(batch(), tp=TP._replace(partition=1)).topic_data
        response = await rig.ask(request, BY_NAME)
        full, fine = (one.partition_responses[0] for one in response.responses)
        assert (full.error_code, fine.error_code) == (ErrorCode.KAFKA_STORAGE_ERROR, 0)
        assert "saturated" in full.error_message and full.base_offset == -1


async def test_fetch_of_uncached_records_stays_within_max_bytes_for_repeated_partitions() -> None:
    cold = FaultVfs(MemVfs())
    sent = batch()
    async with brokers(1, cold, MemVfs(), fetch_max_bytes="1024") as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(sent), BY_NAME)
        cold.inject(COLD)
        request = fetch()
        request.topics[0].partitions[0].partition_max_bytes = len(sent)
        request.topics[0].partitions *= 100
        for limit in (1024, 512):
            response = await rig.ask(request, BY_NAME)
            sizes = [len(part.records or b"") for part in response.responses[0].partitions]
            assert len(sent) <= sum(sizes) <= limit
            request.max_bytes = 512


async def test_produce_above_partition_limit_is_rejected_per_partition() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        request = produce(batch())
        beyond = ProduceRequest.PartitionProduceData(index=9, records=None)
        request.topic_data[0].partition_data += [beyond] * MAX_ITEMS_PER_REQUEST
        connection = await rig.connect()
        response = await connection.request(request, timeout_ms=60_000, version=BY_NAME)
        answers = response.responses[0].partition_responses
        assert len(answers) == MAX_ITEMS_PER_REQUEST + 1
        assert answers[0].error_code == 0
        assert answers[-1].error_code == ErrorCode.INVALID_REQUEST


async def test_fetch_above_partition_limit_reads_the_last_partition_in_a_later_fetch() -> None:
    """INVALID_REQUEST for the remaining partitions would be fatal to a Java consumer.

    A consumer that names its partitions in the same order each time must not starve the last ones.
    """
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        await rig.ask(produce(batch()), BY_NAME)
        request = fetch()
        named = request.topics[0].partitions[0]
        named.current_leader_epoch = -1
        empty = FetchRequest.FetchPartition(
            partition=named.partition, fetch_offset=1, partition_max_bytes=100
        )
        request.topics[0].partitions = [empty] * (2 * MAX_ITEMS_PER_REQUEST - 1) + [named]
        connection = await rig.connect()
        for _ in range(100):
            response = await connection.request(request, timeout_ms=60_000, version=BY_NAME)
            answers = response.responses[0].partitions
            assert len(answers) == 2 * MAX_ITEMS_PER_REQUEST
            assert {part.error_code for part in answers} == {0}
            read = [part for part in answers if part.high_watermark >= 0]
            assert len(read) == MAX_ITEMS_PER_REQUEST
            if answers[-1].records:
                break
        else:
            pytest.fail("the last partition was never read")


@pytest.mark.parametrize(
    ("request_", "version", "code"),
    [
        (fetch(), 5, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (fetch(), 6, ErrorCode.KAFKA_STORAGE_ERROR),
        (produce(batch()), 3, ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (produce(batch()), 4, ErrorCode.KAFKA_STORAGE_ERROR),
    ],
)
async def test_storage_error_for_old_clients_is_not_leader_or_follower(
    request_: Any, version: int, code: ErrorCode
) -> None:
    """KIP-112: an unknown code is fatal to old clients; after this one they look for the leader."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        rig.dirs[0].go_offline("test")
        rig.parts.manager.mark_offline(rig.dirs[0])
        assert only(await rig.ask(request_, version)).error_code == code


async def test_produce_sent_with_a_slower_request_is_appended_in_order() -> None:
    """All requests arrive in one read, before the task of the first one has started."""
    async with brokers() as (rig,):
        await rig.follow(topic(), partition())
        connection = await rig.connect()
        metadata = connection.request(MetadataRequest(), timeout_ms=TIMEOUT_MS)
        produces = [
            connection.request(produce(batch()), timeout_ms=TIMEOUT_MS, version=BY_NAME)
            for _ in range(2)
        ]
        _, *written = await asyncio.gather(metadata, *produces)
        assert [only(response).base_offset for response in written] == [0, 1]
