"""A scripted broker behind a real Kafka listener, against which the tools are tested.

It is a single broker that keeps logs in memory, returns errors on demand, and replicates
nothing."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from click.testing import CliRunner, Result

from kraftjbod.core.errors import ErrorCode
from kraftjbod.net.connection_context import ConnectionContext
from kraftjbod.net.kafka_server import kafka_server
from kraftjbod.net.listener import Listener
from kraftjbod.protocol.kafka_codec import (
    ApiFeatures,
    ApiKey,
    Message,
    RequestHeader,
    api_name,
)
from kraftjbod.protocol.messages import (
    AlterLogDirsResponse,
    AlterPartitionReassignmentsResponse,
    AlterReplicaLogDirsResponse,
    CreatePartitionsResponse,
    CreateTopicsResponse,
    DeleteRecordsResponse,
    DeleteTopicsResponse,
    DescribeClusterResponse,
    DescribeConfigsResponse,
    DescribeLogDirsResponse,
    DescribeTopicPartitionsResponse,
    ElectLeadersResponse,
    FetchResponse,
    FindCoordinatorResponse,
    IncrementalAlterConfigsResponse,
    InitProducerIdResponse,
    ListOffsetsResponse,
    ListPartitionReassignmentsResponse,
    MetadataResponse,
    ProduceResponse,
    UnregisterBrokerResponse,
    UpdateFeaturesResponse,
)
from kraftjbod.protocol.record_batch import batches, read_header, stamp_header

BROKER_ID = 7
# Id of /d1. Like Kafka's directories, /d2 reports no id and no figures.
DIRECTORY_ID = bytes(15) + b"\xc8"

_TOPIC = 2
_BROKER = 4


class Topic:
    """A topic whose partitions are byte strings of whole batches."""

    def __init__(self, topic_id: bytes, partitions: int, configs: dict[str, str]) -> None:
        self.topic_id = topic_id
        self.logs = [bytearray() for _ in range(partitions)]
        self.configs = configs
        self.leader_epoch = 0
        # Partitions whose replicas are all in sync.
        self.in_sync: set[int] = set()

    def end(self, partition: int) -> int:
        last = max(batches(self.logs[partition]), default=None)
        return 0 if last is None else last[1].next_offset


class MiniBroker:
    """State of the broker, and one method per API."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.asked: list[str] = []
        # Recorded requests about replicas, features and brokers.
        self.moves: dict[str, list[tuple[str, int]]] = {}
        self.reassigned: dict[tuple[str, int], Any] = {}
        self.broker_configs: dict[str, str] = {}
        self.features = {"metadata.version": 14}
        # Operation, target and force of each AlterLogDirs request.
        self.log_dir_orders: list[tuple[int, str, bool]] = []
        # Topic, partition and offset of each DeleteRecords entry.
        self.deletions: list[tuple[str, int, int]] = []
        # Types of the requested elections.
        self.elections: list[int] = []
        # ``fencing``: broker id to whether it is fenced. ``gives_id``: whether this broker reports
        # its id.
        self.fencing = {BROKER_ID: False, 8: True}
        self.gives_id = True
        # Error codes that the next requests of an API receive, by the API's name.
        self.fail_next: defaultdict[str, list[int]] = defaultdict(list)
        self.server = self._make_server(port=0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def start_again(self) -> None:
        """Start a server at the same address, with the same topics, after a close."""
        self.server = self._make_server(self.server.port)
        await self.server.start()

    def _make_server(self, port: int) -> Listener:
        return kafka_server(
            host="127.0.0.1",
            port=port,
            handler=self._handle,
            features=lambda: ApiFeatures({"metadata.version": (7, 34)}, self.features, epoch=5),
        )

    def create(self, name: str, partitions: int = 1, **configs: str) -> Topic:
        topic_id = bytes(15) + bytes([200 - len(self.topics)])
        self.topics[name] = Topic(topic_id, partitions, configs)
        return self.topics[name]

    async def _handle(
        self, header: RequestHeader, body: Message, _: ConnectionContext
    ) -> Message | None:
        name = api_name(header.api_key)
        self.asked.append(name)
        # Every tool asks for the brokers before its own first request.
        is_contact = header.api_key == ApiKey.METADATA and body.topics == []
        planned = [] if is_contact else self.fail_next[name]
        code = planned.pop(0) if planned else ErrorCode.NONE
        method: Callable[[Any, int], Any] = getattr(self, f"_{ApiKey(header.api_key).name.lower()}")
        return method(body, code)  # type: ignore[no-any-return] # one method per API

    def _name(self, entry: Any) -> str:
        named: str = getattr(entry, "name", "") or getattr(entry, "topic", "")
        return named or next(n for n, t in self.topics.items() if t.topic_id == entry.topic_id)

    def _metadata(self, body: Any, code: int) -> Any:
        response = MetadataResponse
        names = list(self.topics) if body.topics is None else [t.name for t in body.topics]
        broker = response.MetadataResponseBroker(
            node_id=BROKER_ID, host="127.0.0.1", port=self.server.port
        )
        return response(
            brokers=[broker],
            cluster_id="mini",
            controller_id=BROKER_ID,
            topics=[self._topic_metadata(name, code) for name in names],
        )

    def _find_coordinator(self, body: Any, _: int) -> Any:
        """Answer that no coordinator is available; librdkafka asks even when it joins no group."""
        return FindCoordinatorResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, node_id=-1)

    def _describe_topic_partitions(self, body: Any, code: int) -> Any:
        """Describe one partition at a time; broker 8 is an eligible leader of each."""
        response = DescribeTopicPartitionsResponse
        names = sorted(topic.name for topic in body.topics)
        name, index = names[0], 0
        if body.cursor is not None:
            name, index = body.cursor.topic_name, body.cursor.partition_index
        part = response.DescribeTopicPartitionsResponsePartition(
            partition_index=index, leader_id=BROKER_ID, eligible_leader_replicas=[8]
        )
        part.last_known_elr = []
        reported = response.DescribeTopicPartitionsResponseTopic(name=name, partitions=[part])
        cursor, later = None, [other for other in names if other > name]
        if index + 1 < len(self.topics[name].logs):
            cursor = response.Cursor(topic_name=name, partition_index=index + 1)
        elif later:
            cursor = response.Cursor(topic_name=later[0], partition_index=0)
        return response(topics=[reported], next_cursor=cursor)

    def _topic_metadata(self, name: str, code: int) -> Any:
        response = MetadataResponse
        topic = self.topics.get(name)
        if topic is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return response.MetadataResponseTopic(name=name, error_code=unknown)
        partitions = [
            response.MetadataResponsePartition(
                partition_index=index,
                leader_id=BROKER_ID if code == ErrorCode.NONE else -1,
                leader_epoch=topic.leader_epoch,
                replica_nodes=[BROKER_ID, 8],
                isr_nodes=[BROKER_ID, 8] if index in topic.in_sync else [BROKER_ID],
                offline_replicas=[] if index in topic.in_sync else [8],
            )
            for index in range(len(topic.logs))
        ]
        return response.MetadataResponseTopic(
            name=name, topic_id=topic.topic_id, partitions=partitions, is_internal=name[0] == "_"
        )

    def _init_producer_id(self, _: Any, code: int) -> Any:
        return InitProducerIdResponse(error_code=code, producer_id=5, producer_epoch=0)

    def _produce(self, body: Any, code: int) -> Any:
        response = ProduceResponse
        [data] = body.topic_data
        [part] = data.partition_data
        topic = self.topics[self._name(data)]
        base = topic.end(part.index)
        if code == ErrorCode.NONE:
            batch = bytes(part.records)
            header = read_header(batch)
            known = [old for _, old in batches(topic.logs[part.index])]
            same = [old for old in known if old.base_sequence == header.base_sequence >= 0]
            if same:
                base = same[0].base_offset
            else:
                head = stamp_header(batch, 0, base_offset=base, leader_epoch=0)
                topic.logs[part.index] += head + batch[len(head) :]
        if body.acks == 0:
            return None
        result = response.PartitionProduceResponse(
            index=part.index, error_code=code, base_offset=base, current_leader=None
        )
        return response(
            responses=[
                response.TopicProduceResponse(
                    name=data.name, topic_id=data.topic_id, partition_responses=[result]
                )
            ]
        )

    def _fetch(self, body: Any, code: int) -> Any:
        response = FetchResponse
        [wanted] = body.topics
        topic = self.topics[self._name(wanted)]
        parts = [
            response.PartitionData(
                partition_index=part.partition,
                error_code=code,
                high_watermark=topic.end(part.partition),
                records=b"" if code else self._from(topic.logs[part.partition], part.fetch_offset),
            )
            for part in wanted.partitions
        ]
        answer = response.FetchableTopicResponse(
            topic=wanted.topic, topic_id=wanted.topic_id, partitions=parts
        )
        return response(responses=[answer])

    @staticmethod
    def _from(log: bytearray, offset: int) -> bytes:
        places = [place for place, header in batches(log) if header.next_offset > offset]
        return bytes(log[places[0] :]) if places else b""

    def _list_offsets(self, body: Any, code: int) -> Any:
        response = ListOffsetsResponse
        [wanted] = body.topics
        topic = self.topics[wanted.name]
        parts = [
            response.ListOffsetsPartitionResponse(
                partition_index=part.partition_index,
                error_code=code,
                offset=0 if part.timestamp == -2 else topic.end(part.partition_index),
            )
            for part in wanted.partitions
        ]
        return response(
            topics=[response.ListOffsetsTopicResponse(name=wanted.name, partitions=parts)]
        )

    def _delete_records(self, body: Any, code: int) -> Any:
        response = DeleteRecordsResponse
        results = []
        for topic in body.topics:
            for part in topic.partitions:
                self.deletions.append((topic.name, part.partition_index, part.offset))
                end = self.topics[topic.name].end(part.partition_index)
                refused = code or (ErrorCode.OFFSET_OUT_OF_RANGE if part.offset > end else 0)
                low = end if part.offset < 0 else part.offset
                results.append(
                    response.DeleteRecordsTopicResult(
                        name=topic.name,
                        partitions=[
                            response.DeleteRecordsPartitionResult(
                                partition_index=part.partition_index,
                                low_watermark=-1 if refused else low,
                                error_code=refused,
                            )
                        ],
                    )
                )
        return response(topics=results)

    def _create_topics(self, body: Any, code: int) -> Any:
        response = CreateTopicsResponse
        [wanted] = body.topics
        if wanted.name in self.topics:
            code = ErrorCode.TOPIC_ALREADY_EXISTS
        if not code:
            count = len(wanted.assignments) or max(1, wanted.num_partitions)
            self.create(wanted.name, count, **{c.name: c.value for c in wanted.configs})
        reported = f"Topic '{wanted.name}' already exists." if code else None
        min_isr = response.CreatableTopicConfigs(name="min.insync.replicas", value="2")
        result = response.CreatableTopicResult(
            name=wanted.name,
            error_code=code,
            error_message=reported,
            replication_factor=wanted.replication_factor,
            configs=[] if code else [min_isr],
        )
        return response(topics=[result])

    def _delete_topics(self, body: Any, code: int) -> Any:
        response = DeleteTopicsResponse
        names = [*body.topic_names, *(topic.name for topic in body.topics)]
        for name in names:
            del self.topics[name]
        return response(
            responses=[response.DeletableTopicResult(name=name, error_code=code) for name in names]
        )

    def _create_partitions(self, body: Any, code: int) -> Any:
        response = CreatePartitionsResponse
        [wanted] = body.topics
        logs = self.topics[wanted.name].logs
        logs.extend(bytearray() for _ in range(wanted.count - len(logs)))
        return response(
            results=[response.CreatePartitionsTopicResult(name=wanted.name, error_code=code)]
        )

    def _configs_of(self, resource: Any) -> dict[str, str]:
        if resource.resource_type == _BROKER:
            return self.broker_configs
        return self.topics[resource.resource_name].configs

    def _describe_configs(self, body: Any, code: int) -> Any:
        response = DescribeConfigsResponse
        entry = response.DescribeConfigsResourceResult
        results = []
        for resource in body.resources:
            own = 1 if resource.resource_type == _TOPIC else 2
            configs = [
                entry(name=key, value=value, config_source=own)
                for key, value in self._configs_of(resource).items()
            ]
            configs.append(entry(name="retention.bytes", value="-1", config_source=5))
            for one in configs if body.include_synonyms else ():
                one.synonyms = [
                    response.DescribeConfigsSynonym(
                        name=one.name, value=one.value, source=one.config_source
                    )
                ]
            results.append(
                response.DescribeConfigsResult(
                    error_code=code,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=configs,
                )
            )
        return response(results=results)

    def _incremental_alter_configs(self, body: Any, code: int) -> Any:
        response = IncrementalAlterConfigsResponse
        for resource in () if code or body.validate_only else body.resources:
            configs = self._configs_of(resource)
            for change in resource.configs:
                if change.config_operation == 0:
                    configs[change.name] = change.value
                else:
                    configs.pop(change.name, None)
        return response(
            responses=[
                response.AlterConfigsResourceResponse(
                    error_code=code,
                    error_message="not so" if code else None,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                )
                for resource in body.resources
            ]
        )

    def _update_features(self, body: Any, code: int) -> Any:
        response = UpdateFeaturesResponse
        if not code and not body.validate_only:
            self.features |= {u.feature: u.max_version_level for u in body.feature_updates}
        return response(error_code=code, error_message="too high" if code else None)

    def _alter_replica_log_dirs(self, body: Any, code: int) -> Any:
        response = AlterReplicaLogDirsResponse
        results = []
        for log_dir in body.dirs:
            wanted = [(t.name, index) for t in log_dir.topics for index in t.partitions]
            self.moves.setdefault(log_dir.path, []).extend(wanted)
            results += [
                response.AlterReplicaLogDirTopicResult(
                    topic_name=topic,
                    partitions=[
                        response.AlterReplicaLogDirPartitionResult(
                            partition_index=index,
                            error_code=code,
                            error_message=f"{log_dir.path} is cordoned"
                            if code == ErrorCode.KAFKA_STORAGE_ERROR
                            else None,
                        )
                    ],
                )
                for topic, index in wanted
            ]
        return response(results=results)

    def _alter_log_dirs(self, body: Any, code: int) -> Any:
        self.log_dir_orders.append((body.operation, body.target, body.force))
        response = AlterLogDirsResponse
        if code:
            return response(error_code=code, message=f"{body.target}: not like this")
        return response(message="directory is as it shall be", directory_id=DIRECTORY_ID)

    def _alter_partition_reassignments(self, body: Any, code: int) -> Any:
        response = AlterPartitionReassignmentsResponse
        for topic in body.topics:
            for part in topic.partitions:
                self.reassigned[topic.name, part.partition_index] = part
        return response(
            responses=[
                response.ReassignableTopicResponse(
                    name=topic.name,
                    partitions=[
                        response.ReassignablePartitionResponse(
                            partition_index=part.partition_index,
                            error_code=code,
                            error_message="no such thing" if code else None,
                        )
                        for part in topic.partitions
                    ],
                )
                for topic in body.topics
            ]
        )

    def _list_partition_reassignments(self, body: Any, code: int) -> Any:
        response = ListPartitionReassignmentsResponse
        wanted = None
        if body.topics is not None:
            wanted = {(t.name, index) for t in body.topics for index in t.partition_indexes}
        return response(
            error_code=code,
            topics=[
                response.OngoingTopicReassignment(
                    name=topic,
                    partitions=[
                        response.OngoingPartitionReassignment(
                            partition_index=index,
                            replicas=[*part.replicas, BROKER_ID],
                            adding_replicas=part.replicas,
                            removing_replicas=[BROKER_ID],
                        )
                    ],
                )
                for (topic, index), part in self.reassigned.items()
                if part.replicas is not None and (wanted is None or (topic, index) in wanted)
            ],
        )

    def _describe_log_dirs(self, _: Any, code: int) -> Any:
        response = DescribeLogDirsResponse
        topics = [
            response.DescribeLogDirsTopic(
                name=name,
                partitions=[
                    response.DescribeLogDirsPartition(partition_index=i, partition_size=len(log))
                    for i, log in enumerate(topic.logs)
                ],
            )
            for name, topic in self.topics.items()
        ]
        good = response.DescribeLogDirsResult(
            log_dir="/d1",
            topics=topics,
            total_bytes=4096,
            usable_bytes=1024,
            directory_id=DIRECTORY_ID,
            state="online",
            queued_assignments=0,
            reserve_bytes=40,
            growth_bytes_per_second=-2048,
            log_growth_bytes_per_second=1024,
            seconds_until_full=7200,
            latency_ms=61.25,
            is_slow=True,
            last_scrub_ms=1_700_000_000_000,
            scrub_errors=2,
        )
        dead = response.DescribeLogDirsResult(
            log_dir="/d2",
            error_code=ErrorCode.KAFKA_STORAGE_ERROR,
            reason="[Errno 5] Input/output error",
            assigned_replicas=3,
        )
        own_id = BROKER_ID if self.gives_id else -1
        return response(
            error_code=code, results=[good, dead], broker_id=own_id, lost_replicas=["foo-1"]
        )

    def _elect_leaders(self, body: Any, code: int) -> Any:
        """Partition 0 has its preferred leader already, and partition 2 cannot elect one."""
        response, outcomes = ElectLeadersResponse, {0: 84, 1: 0, 2: 80}
        named = body.topic_partitions
        if named is None:
            named = [body.TopicPartitions(topic="t", partitions=[1])]
        self.elections.append(body.election_type)
        return response(
            error_code=code,
            replica_election_results=[
                response.ReplicaElectionResult(
                    topic=topic.topic,
                    partition_result=[
                        response.PartitionResult(
                            partition_id=index,
                            error_code=outcomes[index],
                            error_message="no" if outcomes[index] else None,
                        )
                        for index in topic.partitions
                    ],
                )
                for topic in named
            ],
        )

    def _unregister_broker(self, body: Any, code: int) -> Any:
        if not code and self.fencing.pop(body.broker_id, None) is None:
            code = ErrorCode.BROKER_ID_NOT_REGISTERED
        return UnregisterBrokerResponse(error_code=code, error_message="not there" if code else "")

    def _describe_cluster(self, body: Any, code: int) -> Any:
        response = DescribeClusterResponse
        return response(
            error_code=code,
            cluster_id="mini",
            controller_id=BROKER_ID,
            brokers=[
                response.DescribeClusterBroker(
                    broker_id=broker_id,
                    host="127.0.0.1",
                    port=1,
                    is_fenced=is_fenced,
                    log_dirs=[
                        response.DescribeClusterLogDir(
                            directory_id=DIRECTORY_ID, path="/d1", replicas=2
                        )
                    ],
                )
                for broker_id, is_fenced in self.fencing.items()
                if body.include_fenced_brokers or not is_fenced
            ],
        )


@asynccontextmanager
async def mini_broker() -> AsyncIterator[MiniBroker]:
    broker = MiniBroker()
    await broker.server.start()
    try:
        yield broker
    finally:
        await broker.server.close(timeout_ms=1000)


async def invoke(tool: Any, *words: str, stdin: bytes = b"") -> Result:
    """Run a tool as from a shell, in another thread with its own event loop."""
    return await asyncio.to_thread(CliRunner().invoke, tool, words, input=stdin)
