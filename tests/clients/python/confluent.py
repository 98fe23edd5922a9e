"""confluent-kafka: librdkafka in Python. See ``tests/clients/programs.py`` for the verbs."""

from __future__ import annotations

import sys
import time
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

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

options = [word for word in sys.argv[1:] if word.startswith("--")]
bootstrap, verb, *arguments = sys.argv[1 + len(options) :]
CLASSIC = {"session.timeout.ms": SESSION_TIMEOUT_MS, "heartbeat.interval.ms": HEARTBEAT_MS}
#: With the consumer protocol the brokers set session timeout and heartbeat interval.
PROTOCOL = {"group.protocol": "consumer"} if options == ["--group-protocol=consumer"] else CLASSIC


def produce(topic: str, first: str, count: str, pause_ms: str, **more: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", **more})

    def on_delivery(error: Any, message: Any) -> None:
        if error is not None:
            raise SystemExit(f"not sent: {error}")
        tell("sent", [message.partition(), message.offset(), int(message.value())])

    for burst in bursts(int(first), int(count)):
        for number in burst:
            text = str(number).encode()
            producer.produce(topic, key=text, value=text, on_delivery=on_delivery)
        producer.flush()
        time.sleep(int(pause_ms) / 1000)


def read(topic: str, count: str) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "not-used"})
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign(
        [TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING) for p in partitions]
    )
    for _ in range(int(count)):
        tell_record(consumer.poll())
    consumer.unassign()
    consumer.close()


def tell_record(message: Any) -> None:
    if message.error():
        raise SystemExit(str(message.error()))
    tell("read", [message.partition(), message.offset(), int(message.value())])


def group(topic: str, name: str) -> None:
    ended = input_ended()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **PROTOCOL,
        }
    )
    owned = set[int]()

    # The consumer protocol reports changes of the assignment, the classic one the whole assignment.
    def changed(change: Any, parts: list[Any]) -> None:
        change({p.partition for p in parts})
        owns(owned)

    consumer.subscribe(
        [topic],
        on_assign=lambda _, parts: changed(owned.update, parts),
        on_revoke=lambda _, parts: changed(owned.difference_update, parts),
        on_lost=lambda _, parts: changed(owned.difference_update, parts),
    )
    while not ended.is_set():
        messages = consumer.consume(100, timeout=0.1)
        for message in messages:
            tell_record(message)
        if messages:
            try:
                consumer.commit(asynchronous=False)
            except confluent_kafka.KafkaException as e:
                tell("uncommitted", str(e))
    consumer.close()
    tell("left")


def copy(source: str, target: str, name: str, count: str) -> None:
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": name,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **PROTOCOL,
        }
    )
    reader.subscribe([source])
    writer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    writer.init_transactions()
    copied, turn = 0, 0
    while copied < int(count):
        records = [one for one in reader.consume(BURST, 0.2) if one.error() is None]
        is_copied = not records
        while not is_copied:
            turn += 1
            is_copied = turn % ABORTED != 0
            writer.begin_transaction()
            for one in records:
                writer.produce(target, key=one.key(), value=one.value())
            offsets = reader.position(reader.assignment())
            writer.send_offsets_to_transaction(offsets, reader.consumer_group_metadata())
            writer.flush()
            (writer.commit_transaction if is_copied else writer.abort_transaction)()
            tell("committed" if is_copied else "aborted", len(records))
        copied += len(records)
    reader.close()


def admin(topic: str, name: str) -> None:
    client = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, topic)

    def done(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result()

    def retention() -> str:
        value: str = done(client.describe_configs([resource]))["retention.ms"].value
        return value

    def partitions() -> int:
        return len(client.list_topics(topic, timeout=10).topics[topic].partitions)

    new = NewTopic(topic, 3, 3, config={"retention.ms": "3600000"})
    done(client.create_topics([new]))
    tell("create_topic", settled(lambda: [partitions(), retention()], [3, "3600000"]))
    entry = ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(entry)
    done(client.incremental_alter_configs([resource]))
    tell("alter_config", settled(retention, "7200000"))
    done(client.create_partitions([NewPartitions(topic, 4)]))
    tell("create_partitions", settled(partitions, 4))
    listed = client.list_consumer_groups().result().valid
    tell("list_groups", name in {each.group_id for each in listed})
    described = done(client.describe_consumer_groups([name]))
    tell("describe_group", [described.state.name.lower(), len(described.members)])
    offsets = done(
        client.list_consumer_group_offsets([confluent_kafka.ConsumerGroupTopicPartitions(name)])
    )
    tell("group_offsets", sum(p.offset for p in offsets.topic_partitions))
    wanted = {TopicPartition(topic, 0): OffsetSpec.latest()}
    tell("list_offsets", done(client.list_offsets(wanted)).offset)
    done(client.delete_consumer_groups([name]))
    listed = client.list_consumer_groups().result().valid
    tell("delete_group", name in {each.group_id for each in listed})
    done(client.delete_topics([topic]))
    tell("delete_topic", settled(lambda: topic in client.list_topics(timeout=10).topics, False))


tell("version", confluent_kafka.__version__)
match verb:
    case "idempotent":
        produce(*arguments, **{"enable.idempotence": True})
    case _:
        verbs = {"produce": produce, "read": read, "group": group, "copy": copy, "admin": admin}
        verbs[verb](*arguments)
