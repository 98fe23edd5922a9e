"""Test of clients that send records and read them without a group."""

from __future__ import annotations

import pytest

from kraftjbod.testing.local_cluster import LocalCluster
from tests.clients.conftest import Start
from tests.clients.judge import PARTITIONS, check_topic
from tests.clients.programs import Client

RECORDS = 200


@pytest.mark.scenario("sends and reads")
def test_client_reads_sent_records_at_acknowledged_offsets(
    client: Client, cluster: LocalCluster, start: Start
) -> None:
    topic = str(client)
    cluster.create_topic(topic, partitions=PARTITIONS)
    senders = [
        start("produce", topic, 0, RECORDS, 0),
        start("idempotent", topic, RECORDS, RECORDS, 0),
    ]
    for sender in senders:
        sender.wait()
    check_topic(client, start, topic, senders)
