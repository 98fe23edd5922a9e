"""kafka-python. See ``tests/clients/programs.py`` for the verbs."""

from __future__ import annotations

import itertools
import sys
import time
from typing import Any

import kafka
from kafka.admin import (
    ConfigResource,
    ConfigResourceType,
    KafkaAdminClient,
    NewPartitions,
    NewTopic,
    OffsetSpec,
)
from kafka.errors import KafkaError

from tests.clients.python.lines import (
    ABORTED,
    BURST,
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
    bursts,
    input_ended,
    owns,
    settled,
    tell,
)

bootstrap, verb, *arguments = sys.argv[1:]
SERVERS = bootstrap.split(",")


def produce(topic: str, first: str, count: str, pause_ms: str, **more: Any) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=SERVERS, acks="all", **more)
    for burst in bursts(int(first), int(count)):
        texts = [str(number).encode() for number in burst]
        sending = [producer.send(topic, key=text, value=text) for text in texts]
        for number, future in zip(burst, sending, strict=True):
            sent = future.get(timeout=120)
            tell("sent", [sent.partition, sent.offset, number])
        time.sleep(int(pause_ms) / 1000)
    producer.close()


def tell_record(record: Any) -> None:
    tell("read", [record.partition, record.offset, int(record.value)])


def read(topic: str, count: str) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=SERVERS, group_id=None)
    found = consumer.partitions_for_topic(topic)
    consumer.assign([kafka.TopicPartition(topic, p) for p in found])
    consumer.seek_to_beginning()
    for record in itertools.islice(consumer, int(count)):
        tell_record(record)
    consumer.close()


class _Owner(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    def on_partitions_revoked(self, revoked: Any) -> None:
        owns([])

    def on_partitions_assigned(self, assigned: Any) -> None:
        owns(p.partition for p in assigned)


def group(topic: str, name: str) -> None:
    ended = input_ended()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=SERVERS,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    consumer.subscribe([topic], listener=_Owner())
    while not ended.is_set():
        records = list(itertools.chain(*consumer.poll(timeout_ms=100).values()))
        for record in records:
            tell_record(record)
        if records:
            try:
                consumer.commit()
            except KafkaError as e:
                tell("uncommitted", repr(e))
    consumer.close()
    tell("left")


def copy(source: str, target: str, name: str, count: str) -> None:
    reader = kafka.KafkaConsumer(
        source,
        bootstrap_servers=SERVERS,
        group_id=name,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=SESSION_TIMEOUT_MS,
        heartbeat_interval_ms=HEARTBEAT_MS,
    )
    writer = kafka.KafkaProducer(bootstrap_servers=SERVERS, transactional_id=name)
    writer.init_transactions()
    copied, turn = 0, 0
    while copied < int(count):
        found = reader.poll(timeout_ms=200, max_records=BURST)
        records = list(itertools.chain(*found.values()))
        offsets = {
            where: kafka.OffsetAndMetadata(own[-1].offset + 1, "", -1)
            for where, own in found.items()
        }
        is_copied = not records
        while not is_copied:
            turn += 1
            is_copied = turn % ABORTED != 0
            writer.begin_transaction()
            for one in records:
                writer.send(target, key=one.key, value=one.value)
            writer.send_offsets_to_transaction(offsets, reader.group_metadata())
            writer.flush()
            (writer.commit_transaction if is_copied else writer.abort_transaction)()
            tell("committed" if is_copied else "aborted", len(records))
        copied += len(records)
    reader.close()
    writer.close()


def admin(topic: str, name: str) -> None:
    client = KafkaAdminClient(bootstrap_servers=SERVERS)
    resource = (ConfigResourceType.TOPIC, topic)

    def retention() -> str:
        wanted = [ConfigResource(*resource, configs={"retention.ms": None})]
        described = client.describe_configs(wanted, config_filter="all")
        value: str = described["topic"][topic]["retention.ms"]["value"]
        return value

    def partitions() -> int:
        (described,) = client.describe_topics([topic])
        return len(described["partitions"])

    def is_listed() -> bool:
        return name in {each["group_id"] for each in client.list_groups()}

    made = NewTopic(topic, 3, 3, topic_configs={"retention.ms": "3600000"})
    client.create_topics([made])
    tell("create_topic", settled(lambda: [partitions(), retention()], [3, "3600000"]))
    client.alter_configs([ConfigResource(*resource, configs={"retention.ms": "7200000"})])
    tell("alter_config", settled(retention, "7200000"))
    client.create_partitions({topic: NewPartitions(4)})
    tell("create_partitions", settled(partitions, 4))
    tell("list_groups", is_listed())
    described = client.describe_groups([name])[name]
    tell("describe_group", [described["group_state"].lower(), len(described["members"])])
    committed = client.list_group_offsets(name)[name]
    tell("group_offsets", sum(each.offset for each in committed.values()))
    zero = kafka.TopicPartition(topic, 0)
    tell("list_offsets", client.list_partition_offsets({zero: OffsetSpec.LATEST})[zero].offset)
    client.delete_groups([name])
    tell("delete_group", is_listed())
    client.delete_topics([topic])
    tell("delete_topic", settled(lambda: topic in client.list_topics(), False))


tell("version", kafka.__version__)
match verb:
    case "idempotent":
        produce(*arguments, enable_idempotence=True)
    case _:
        verbs = {"produce": produce, "read": read, "group": group, "copy": copy, "admin": admin}
        verbs[verb](*arguments)
