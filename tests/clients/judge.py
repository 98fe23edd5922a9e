"""Checks of the records and offsets that client programs wrote."""

from __future__ import annotations

import time

import kafka
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from kraftjbod.testing.local_cluster import LocalCluster
from tests.clients.conftest import Start
from tests.clients.programs import Client
from tests.clients.running import WAIT_S, Running

#: Partition count of each tested topic.
PARTITIONS = 6


def check_topic(client: Client, start: Start, topic: str, senders: list[Running]) -> None:
    """Assert that each sent number is in the topic once, at the acknowledged offset."""
    sent = [each for sender in senders for each in sender.values("sent")]
    reader = read_all(client, start, topic, len(sent))
    found = {number: (partition, offset) for partition, offset, number in reader.values("read")}
    assert sorted(reader.numbers) == sorted(number for *_, number in sent)
    acknowledged = {
        number: (partition, offset) for partition, offset, number in sent if offset >= 0
    }
    assert {number: found[number] for number in acknowledged} == acknowledged


def read_all(client: Client, start: Start, topic: str, count: int) -> Running:
    if "read" in client.lacks:
        reader = start("group", topic, f"all-of-{topic}")
        reader.wait_until("all is read", lambda: len(reader.numbers) >= count)
        reader.end_input()
    else:
        reader = start("read", topic, count)
    reader.wait()
    return reader


def committed_numbers(cluster: LocalCluster, topic: str, count: int) -> list[int]:
    """Read all of ``topic`` and return its committed numbers, at least ``count``.

    :raises AssertionError: fewer are readable after ``WAIT_S``.
    """
    reader = kafka.KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers.split(","),
        group_id=None,
        isolation_level="read_committed",
    )
    parts = [kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
    reader.assign(parts)
    reader.seek_to_beginning()
    numbers: list[int] = []
    deadline = time.monotonic() + WAIT_S
    try:
        # The last markers are written after the response to EndTxn.
        while len(numbers) < count or not _is_at_end(reader, parts):
            assert time.monotonic() < deadline, f"{len(numbers)} of {count}"
            for records in reader.poll(timeout_ms=200).values():
                numbers += [int(record.value) for record in records]
    finally:
        reader.close()
    return numbers


def _is_at_end(reader: kafka.KafkaConsumer, parts: list[kafka.TopicPartition]) -> bool:
    ends = reader.end_offsets(parts)
    return all(reader.position(part) >= ends[part] for part in parts)


def committed(cluster: LocalCluster, group: str, *, at_least: int = 0) -> int:
    """Return the sum of the group's committed offsets.

    :param at_least: wait for this sum, since offsets of a transaction become visible after its end.

    kafka-python reads them: confluent-kafka 2.16 crashes if a group has no offsets.
    """
    deadline = time.monotonic() + WAIT_S
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers.split(","))
    try:
        while True:
            try:
                found = admin.list_group_offsets(group)[group]
            except KafkaError:
                # The client does not look for a coordinator that was elected just now.
                if time.monotonic() > deadline:
                    raise
            else:
                total = sum(each.offset for each in found.values())
                if total >= at_least or time.monotonic() > deadline:
                    return total
                time.sleep(0.1)
    finally:
        admin.close()
