"""A broker in a hundred lines, behind the real Kafka door: what the tools are tested against.

One broker, memory for logs, errors on demand. Nothing is replicated.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from click.testing import CliRunner, Result

from kraftjbod.core.errors import ErrorCode
from kraftjbod.net.kafka_server import ConnectionInfo, kafka_server
from kraftjbod.net.listener import Listener
from kraftjbod.protocol.kafka_codec import ApiKey, Message, RequestHeader, api_name, message
from kraftjbod.protocol.record_batch import batches, read_header, stamp

BROKER_ID = 7


class Topic:
    """Partitions are byte strings of whole batches."""

    def __init__(self, topic_id: bytes, partitions: int, configs: dict[str, str]) -> None:
        self.topic_id = topic_id
        self.logs = [bytearray() for _ in range(partitions)]
        self.configs = configs

    def end(self, partition: int) -> int:
        last = max(batches(self.logs[partition]), default=None)
        return 0 if last is None else last[1].next_offset


class MiniBroker:
    """State, and one method per API."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.asked: list[str] = []
        #: Error codes to answer with before an API works, by its name.
        self.fail_next: defaultdict[str, list[int]] = defaultdict(list)
        self.server = self._make_server(port=0)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.port}"

    async def start_again(self) -> None:
        """After a close: the same address, the same topics."""
        self.server = self._make_server(self.server.port)
        await self.server.start()

    def _make_server(self, port: int) -> Listener:
        return kafka_server(host="127.0.0.1", port=port, handler=self._handle)

    def create(self, name: str, partitions: int = 1, **configs: str) -> Topic:
        topic_id = bytes(15) + bytes([200 - len(self.topics)])
        self.topics[name] = Topic(topic_id, partitions, configs)
        return self.topics[name]

    async def _handle(
        self, header: RequestHeader, body: Message, _: ConnectionInfo
    ) -> Message | None:
        name = api_name(header.api_key)
        self.asked.append(name)
        planned = self.fail_next[name]
        code = planned.pop(0) if planned else ErrorCode.NONE
        method: Callable[[Any, int], Any] = getattr(self, f"_{ApiKey(header.api_key).name.lower()}")
        return method(body, code)  # type: ignore[no-any-return] # one method per API

    def _name(self, entry: Any) -> str:
        named: str = getattr(entry, "name", "") or getattr(entry, "topic", "")
        return named or next(n for n, t in self.topics.items() if t.topic_id == entry.topic_id)

    def _metadata(self, body: Any, code: int) -> Any:
        response = message("MetadataResponse")
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

    def _topic_metadata(self, name: str, code: int) -> Any:
        response = message("MetadataResponse")
        topic = self.topics.get(name)
        if topic is None:
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return response.MetadataResponseTopic(name=name, error_code=unknown)
        partitions = [
            response.MetadataResponsePartition(
                partition_index=index,
                leader_id=BROKER_ID if code == ErrorCode.NONE else -1,
                replica_nodes=[BROKER_ID, 8],
                isr_nodes=[BROKER_ID],
                offline_replicas=[8],
            )
            for index in range(len(topic.logs))
        ]
        return response.MetadataResponseTopic(
            name=name, topic_id=topic.topic_id, partitions=partitions, is_internal=name[0] == "_"
        )

    def _init_producer_id(self, _: Any, code: int) -> Any:
        return message("InitProducerIdResponse")(error_code=code, producer_id=5, producer_epoch=0)

    def _produce(self, body: Any, code: int) -> Any:
        response = message("ProduceResponse")
        [data] = body.topic_data
        [part] = data.partition_data
        topic = self.topics[self._name(data)]
        base = topic.end(part.index)
        if code == ErrorCode.NONE:
            batch = bytearray(part.records)
            header = read_header(batch)
            known = [old for _, old in batches(topic.logs[part.index])]
            same = [old for old in known if old.base_sequence == header.base_sequence >= 0]
            if same:
                base = same[0].base_offset
            else:
                stamp(batch, 0, base_offset=base, leader_epoch=0)
                topic.logs[part.index] += batch
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
        response = message("FetchResponse")
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
        response = message("ListOffsetsResponse")
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

    def _create_topics(self, body: Any, code: int) -> Any:
        response = message("CreateTopicsResponse")
        [wanted] = body.topics
        if wanted.name in self.topics:
            code = ErrorCode.TOPIC_ALREADY_EXISTS
        if not code:
            count = len(wanted.assignments) or max(1, wanted.num_partitions)
            self.create(wanted.name, count, **{c.name: c.value for c in wanted.configs})
        told = f"Topic '{wanted.name}' already exists." if code else None
        result = response.CreatableTopicResult(
            name=wanted.name, error_code=code, error_message=told
        )
        return response(topics=[result])

    def _delete_topics(self, body: Any, code: int) -> Any:
        response = message("DeleteTopicsResponse")
        names = [*body.topic_names, *(topic.name for topic in body.topics)]
        for name in names:
            del self.topics[name]
        return response(
            responses=[response.DeletableTopicResult(name=name, error_code=code) for name in names]
        )

    def _create_partitions(self, body: Any, code: int) -> Any:
        response = message("CreatePartitionsResponse")
        [wanted] = body.topics
        logs = self.topics[wanted.name].logs
        logs.extend(bytearray() for _ in range(wanted.count - len(logs)))
        return response(
            results=[response.CreatePartitionsTopicResult(name=wanted.name, error_code=code)]
        )

    def _describe_configs(self, body: Any, code: int) -> Any:
        response = message("DescribeConfigsResponse")
        return response(
            results=[
                response.DescribeConfigsResult(
                    error_code=code,
                    resource_type=2,
                    resource_name=resource.resource_name,
                    configs=[
                        response.DescribeConfigsResourceResult(
                            name=key, value=value, config_source=source
                        )
                        for source, configs in (
                            (1, self.topics[resource.resource_name].configs),
                            (5, {"retention.bytes": "-1"}),
                        )
                        for key, value in configs.items()
                    ],
                )
                for resource in body.resources
            ]
        )

    def _describe_log_dirs(self, _: Any, code: int) -> Any:
        response = message("DescribeLogDirsResponse")
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
            log_dir="/d1", topics=topics, total_bytes=4096, usable_bytes=1024
        )
        dead = response.DescribeLogDirsResult(
            log_dir="/d2", error_code=ErrorCode.KAFKA_STORAGE_ERROR
        )
        return response(error_code=code, results=[good, dead])


@asynccontextmanager
async def mini_broker() -> AsyncIterator[MiniBroker]:
    broker = MiniBroker()
    await broker.server.start()
    try:
        yield broker
    finally:
        await broker.server.close(timeout_ms=1000)


async def invoke(tool: Any, *words: str, stdin: bytes = b"") -> Result:
    """Run a tool as from a shell; it gets a loop of its own in another thread."""
    return await asyncio.to_thread(CliRunner().invoke, tool, words, input=stdin)
