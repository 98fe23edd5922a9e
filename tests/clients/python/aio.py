"""aiokafka. See ``tests/clients/programs.py`` for the verbs."""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError

from tests.clients.python.lines import (
    ABORTED,
    BURST,
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
    SETTLING_S,
    bursts,
    input_ended,
    owns,
    tell,
)

bootstrap, verb, *arguments = sys.argv[1:]


async def produce(topic: str, first: str, count: str, pause_ms: str, **more: Any) -> None:
    async with aiokafka.AIOKafkaProducer(
        bootstrap_servers=bootstrap, acks="all", **more
    ) as producer:
        for burst in bursts(int(first), int(count)):
            texts = [str(number).encode() for number in burst]
            sending = [await producer.send(topic, key=text, value=text) for text in texts]
            for number, future in zip(burst, sending, strict=True):
                sent = await future
                tell("sent", [sent.partition, sent.offset, number])
            await asyncio.sleep(int(pause_ms) / 1000)


def tell_record(record: Any) -> None:
    tell("read", [record.partition, record.offset, int(record.value)])


async def read(topic: str, count: str) -> None:
    async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        found = await consumer._client._wait_on_metadata(topic)
        consumer.assign([aiokafka.TopicPartition(topic, p) for p in found])
        await consumer.seek_to_beginning()
        for _ in range(int(count)):
            tell_record(await consumer.getone())


class _Owner(aiokafka.ConsumerRebalanceListener):
    def on_partitions_revoked(self, revoked: Any) -> None:
        owns([])

    def on_partitions_assigned(self, assigned: Any) -> None:
        owns(p.partition for p in assigned)


async def group(topic: str, name: str) -> None:
    ended = input_ended()
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    consumer.subscribe([topic], listener=_Owner())
    async with consumer:
        while not ended.is_set():
            records = list(itertools.chain(*(await consumer.getmany(timeout_ms=100)).values()))
            for record in records:
                tell_record(record)
            if records:
                try:
                    await consumer.commit()
                except KafkaError as e:
                    tell("uncommitted", repr(e))
    tell("left")


async def copy(source: str, target: str, name: str, count: str) -> None:
    reader = aiokafka.AIOKafkaConsumer(
        source,
        bootstrap_servers=bootstrap,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    writer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=name)
    copied, turn = 0, 0
    async with reader, writer:
        while copied < int(count):
            found = await reader.getmany(timeout_ms=200, max_records=BURST)
            records = list(itertools.chain(*found.values()))
            offsets = {where: own[-1].offset + 1 for where, own in found.items()}
            is_copied = not records
            while not is_copied:
                turn += 1
                is_copied = turn % ABORTED != 0
                await writer.begin_transaction()
                for one in records:
                    await writer.send(target, key=one.key, value=one.value)
                await writer.send_offsets_to_transaction(offsets, name)
                await writer.flush()
                await (writer.commit_transaction if is_copied else writer.abort_transaction)()
                tell("committed" if is_copied else "aborted", len(records))
            copied += len(records)


async def admin(topic: str, name: str) -> None:
    """Administer topic and group. aiokafka cannot delete groups."""
    client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await client.start()

    async def retention() -> str:
        wanted = [ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": None})]
        (answer,) = await client.describe_configs(wanted)
        value: str = answer.resources[0][4][0][1]
        return value

    async def partitions() -> int:
        (described,) = await client.describe_topics([topic])
        return len(described["partitions"])

    async def settled(ask: Callable[[], Awaitable[Any]], wanted: Any) -> Any:
        """As in lines.py."""
        async with asyncio.timeout(SETTLING_S):
            while await ask() != wanted:
                await asyncio.sleep(0.1)
        return wanted

    async def made_as_wanted() -> list[object]:
        return [await partitions(), await retention()]

    async def is_there() -> bool:
        return topic in await client.list_topics()

    made = NewTopic(topic, 3, 3, topic_configs={"retention.ms": "3600000"})
    await client.create_topics([made])
    tell("create_topic", await settled(made_as_wanted, [3, "3600000"]))
    changed = ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})
    await client.alter_configs([changed])
    tell("alter_config", await settled(retention, "7200000"))
    await client.create_partitions({topic: NewPartitions(4)})
    tell("create_partitions", await settled(partitions, 4))
    tell("list_groups", name in {each[0] for each in await client.list_consumer_groups()})
    (answer,) = await client.describe_consumer_groups([name])
    _, _, state, _, _, members, *_ = answer.groups[0]
    tell("describe_group", [state.lower(), len(members)])
    committed = await client.list_consumer_group_offsets(name)
    tell("group_offsets", sum(each.offset for each in committed.values()))
    await client.delete_topics([topic])
    tell("delete_topic", await settled(is_there, False))
    await client.close()


tell("version", aiokafka.__version__)
match verb:
    case "idempotent":
        asyncio.run(produce(*arguments, enable_idempotence=True))
    case _:
        verbs = {"produce": produce, "read": read, "group": group, "copy": copy, "admin": admin}
        asyncio.run(verbs[verb](*arguments))
