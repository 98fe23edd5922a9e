"""A coordinator that was replaced and does not know it yet."""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from kraftjbod.broker.groups.records.group_records import OFFSETS_TOPIC
from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.messages import FindCoordinatorRequest, OffsetFetchRequest
from kraftjbod.testing.simulation import SimulatedCluster
from tests.unit.broker.groups.group_rig import commit

#: OffsetCommit and OffsetFetch: topics by name.
_BY_NAME = 9


async def committed(kafka: ClusterClient, broker_id: int, offset: int) -> bool:
    answer = await kafka.request(broker_id, commit(offset), max_version=_BY_NAME)
    return answer.topics[0].partitions[0].error_code == ErrorCode.NONE


async def fetched(kafka: ClusterClient, broker_id: int) -> tuple[int, int]:
    """Return the committed offset and the error code."""
    kinds = OffsetFetchRequest
    topic = kinds.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    group = kinds.OffsetFetchRequestGroup(group_id="g", topics=[topic])
    answer = await kafka.request(broker_id, kinds(groups=[group]), max_version=_BY_NAME)
    (found,) = answer.groups
    if found.error_code:
        return -1, found.error_code
    return found.topics[0].partitions[0].committed_offset, 0


async def led_by(kafka: ClusterClient) -> int:
    metadata = await kafka.refresh_metadata([OFFSETS_TOPIC])
    return metadata.leader(OFFSETS_TOPIC, 0)


async def first_commit(kafka: ClusterClient) -> int:
    """Commit an offset and return the coordinator of the group."""
    await create_topic(kafka, "t", partitions=1, replication_factor=3)
    await kafka.request_from_any_broker(FindCoordinatorRequest(coordinator_keys=["g"]))
    leader = await kafka.retry(lambda: led_by(kafka))
    while not await committed(kafka, leader, 13):
        await asyncio.sleep(0.1)
    return leader


async def next_commit(kafka: ClusterClient, former: int) -> int:
    """Commit with the coordinator after ``former`` and return it."""
    while (leader := await led_by(kafka)) == former:
        await asyncio.sleep(0.1)
    while not await committed(kafka, leader, 14):
        await asyncio.sleep(0.1)
    return leader


async def answers_of(kafka: ClusterClient, broker_id: int) -> list[tuple[int, int]]:
    answers = []
    for _ in range(200):
        answers.append(await fetched(kafka, broker_id))
        await asyncio.sleep(0.001)
    return answers


def test_offset_fetch_from_a_paused_and_replaced_coordinator_returns_no_offset() -> None:
    """The session of the former coordinator is renewed before its metadata shows the new leader."""
    config = {"offsets.topic.num.partitions": "1"}
    with SimulatedCluster(seed=3, controllers=1, brokers=3, log_dirs=1, config=config) as cluster:
        cluster.start()
        client, other = cluster.client("client"), cluster.client("other")
        former = client.run(first_commit(client.kafka))
        other.run(led_by(other.kafka))
        assert other.run(fetched(other.kafka, former)) == (13, 0)
        resume = cluster.broker(former).pause_process()
        present = client.run(next_commit(client.kafka, former))
        cluster.network.delay(f"broker-{former}", cluster.controller().name, 50)
        asking = other.begin(answers_of(other.kafka, former))
        cluster.run_for(100)
        resume()
        cluster.run_until(asking)
        answers = asking.result()
        assert (13, 0) not in answers
        assert answers[-1] == (-1, ErrorCode.NOT_COORDINATOR)
        # A coordinator without a controller cannot confirm its session and reads the log instead.
        cluster.controller().kill()
        cluster.run_for(15_000)
        assert other.run(fetched(other.kafka, present)) == (14, 0)


SPLITS = {
    "rejects": {"rejects": True},
    "drops": {},
    "drops, and the next controller announces shorter sessions": {"next_session_ms": 3_000},
}


@pytest.mark.parametrize("split", SPLITS.values(), ids=SPLITS)
def test_coordinator_cut_off_with_active_controller_returns_no_replaced_offset(
    split: dict[str, Any],
) -> None:
    """A firewall rule separates the coordinator and the active controller from all others.

    The other controllers elect a leader immediately, because their connections to it break. The
    deposed controller answers heartbeats until its lease expires.
    """
    config = {"offsets.topic.num.partitions": "1", "broker.heartbeat.interval.ms": "300"}
    with SimulatedCluster(seed=3, controllers=3, brokers=3, log_dirs=1, config=config) as cluster:
        for controller in cluster.controllers:
            controller.properties["broker.session.timeout.ms"] = "9000"
        cluster.start()
        client, other = cluster.client("client"), cluster.client("other")
        former = client.run(first_commit(client.kafka))
        other.run(led_by(other.kafka))
        assert other.run(fetched(other.kafka, former)) == (13, 0)
        active = next(one for one in cluster.controllers if one.is_active)
        for controller in cluster.controllers:
            if controller is not active and "next_session_ms" in split:
                controller.kill()
                controller.properties["broker.session.timeout.ms"] = str(split["next_session_ms"])
                controller.start()
                cluster.run_for(2_000)
        assert active.is_active
        here = {active.name, f"broker-{former}", "other"}
        for a, b in product(here, cluster.hosts.keys() - here):
            cluster.network.partition(a, b, rejects=split.get("rejects", False))
            if a == active.name and b.startswith("controller"):
                cluster.network.reset_connections(a, b)
        client.run(next_commit(client.kafka, former))
        answers = [other.run(fetched(other.kafka, former)) for _ in range(3)]
        assert (13, 0) not in answers
