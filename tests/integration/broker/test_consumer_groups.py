"""Consumer groups with foreign clients: sharing, commits, leaving, and a failed coordinator
disk."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from kraftjbod.broker.internal.coordinators import java_hash
from kraftjbod.testing.local_cluster import LocalCluster
from kraftjbod.testing.mounts import DiskKitError
from tests.integration.cluster import WAIT_S, Cluster
from tests.integration.conftest import MakeCluster
from tests.integration.tools import tool

pytestmark = [pytest.mark.process, pytest.mark.clients]

QUICK = {"group.initial.rebalance.delay.ms": "200"}
PARTITIONS = 4
RECORDS = 200


@pytest.fixture(scope="module")
def cluster(make_shared_cluster: MakeCluster) -> Cluster:
    return make_shared_cluster(brokers=3, dirs=2, config=QUICK)


def write(bootstrap: str, topic: str, count: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(WAIT_S) == 0


def read_by_confluent(bootstrap: str, topic: str, group: str, count: int) -> int:
    """Let two members of a group read ``count`` records, commit and leave."""
    configured = {
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    members = [confluent_kafka.Consumer(configured) for _ in range(2)]
    for member in members:
        member.subscribe([topic])
    read, end_s = 0, time.monotonic() + WAIT_S
    shares: list[int] = []
    while read < count or shares != [PARTITIONS // 2] * 2:
        assert time.monotonic() < end_s, (read, shares)
        for member in members:
            message = member.poll(0.05)
            if message is not None and message.error() is None:
                read += 1
        shares = [len(member.assignment()) for member in members]
    for member in members:
        member.commit(asynchronous=False)
        member.close()
    return read


def read_by_kafka_python(bootstrap: str, topic: str, group: str, count: int) -> int:
    member = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    read = 0
    while read < count:
        read += sum(map(len, member.poll(timeout_ms=1_000).values()))
    member.commit()
    member.close()
    return read


def read_by_aiokafka(bootstrap: str, topic: str, group: str, count: int) -> int:
    async def reading() -> int:
        member = aiokafka.AIOKafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
        )
        await member.start()
        try:
            read = 0
            while read < count:
                read += sum(map(len, (await member.getmany(timeout_ms=1_000)).values()))
            await member.commit()
        finally:
            await member.stop()
        return read

    return asyncio.run(reading())


@pytest.mark.parametrize("read", [read_by_confluent, read_by_kafka_python, read_by_aiokafka])
def test_group_resumes_at_committed_offsets(cluster: Cluster, read: Callable[..., int]) -> None:
    topic = group = read.__name__
    cluster.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    write(cluster.bootstrap, topic, RECORDS)
    assert read(cluster.bootstrap, topic, group, RECORDS) == RECORDS
    write(cluster.bootstrap, topic, PARTITIONS)
    assert read(cluster.bootstrap, topic, group, PARTITIONS) == PARTITIONS


@pytest.mark.timeout(180)
def test_close_commits_offset_of_manually_assigned_consumer(
    cluster: Cluster,
) -> None:
    """Before groups were supported, the close waited for a coordinator, and the offset was lost."""
    cluster.create_topic("assigned", partitions=PARTITIONS, replication_factor=3)
    write(cluster.bootstrap, "assigned", PARTITIONS)
    config = {"bootstrap.servers": cluster.bootstrap, "group.id": "assigns"}
    first = confluent_kafka.Consumer(config)
    first.assign([confluent_kafka.TopicPartition("assigned", 0, 0)])
    message = first.poll(WAIT_S)
    assert message is not None and message.error() is None
    first.close()
    second = confluent_kafka.Consumer(config)
    (committed,) = second.committed([confluent_kafka.TopicPartition("assigned", 0)], WAIT_S)
    second.close()
    assert committed.offset == 1


def test_consumer_groups_tool_lists_describes_resets_and_deletes(cluster: Cluster) -> None:
    """Columns and lines were compared with those of Kafka 4.3's tool on the same cluster."""

    def run(*words: str, fails: bool = False) -> list[str]:
        done = tool("consumer-groups", cluster, *words)
        assert done.returncode == fails, done
        return (done.stderr if fails else done.stdout).split("\n")

    cluster.create_topic("tooled", partitions=PARTITIONS, replication_factor=3)
    write(cluster.bootstrap, "tooled", 2 * PARTITIONS)
    configured = {"bootstrap.servers": cluster.bootstrap, "group.id": "tools", "client.id": "cl"}
    member = confluent_kafka.Consumer({**configured, "auto.offset.reset": "earliest"})
    member.subscribe(["tooled"])
    read = 0
    while read < 2 * PARTITIONS:
        message = member.poll(WAIT_S)
        assert message is not None and message.error() is None
        read += 1
    member.commit(asynchronous=False)
    asked = ("--topic-partitions", "tooled:1-3", "--exclude-internal-topics")
    ends = tool("get-offsets", cluster, *asked).stdout
    assert ends == "tooled:1:2\ntooled:2:2\n", "the range ends before 3"
    begin = tool("get-offsets", cluster, "--topic", "tool.*", "--partitions", "3", "--time", "-2")
    assert begin.stdout == "tooled:3:0\n"
    assert "tools" in run("--list")
    assert any(line.split() == ["tools", "Stable"] for line in run("--list", "--state", "stable"))
    _, heads, *rows, _ = run("--describe", "--group", "tools")
    assert heads.split()[3:6] == ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert {tuple(row.split()[:6]) for row in rows} == {
        ("tools", "tooled", str(number), "2", "2", "0") for number in range(PARTITIONS)
    }
    assert all(row.split()[7:] == ["/127.0.0.1", "cl"] for row in rows)
    members = run("--describe", "--group", "tools", "--members", "--verbose")[2].split()
    assert members[4::2] == [str(PARTITIONS), _all_of("tooled"), "-"]
    scope = ("--reset-offsets", "--group", "tools", "--topic", "tooled:0,1")
    assert "current state is Stable" in run(*scope, "--to-earliest", "--execute", fails=True)[0]
    asked_json = ("--json", "--describe", "--group", "tools")
    (document,) = _groups(run(*asked_json, "--members"))
    (only,) = document["members"]
    assert (only["clientId"], len(only["partitions"])) == ("cl", PARTITIONS)
    (document,) = _groups(run(*asked_json, "--state"))
    assert (document["state"], document["memberCount"]) == ("Stable", 1)
    assert document["coordinator"]["broker"] in cluster.brokers
    assert {"group": "tools", "type": "classic", "state": "Stable"} in _groups(
        run("--json", "--list")
    )
    member.close()
    to_zero = [["tools", "tooled", "0", "0"], ["tools", "tooled", "1", "0"]]
    assert [line.split() for line in run(*scope, "--to-earliest")[2:4]] == to_zero
    assert run(*scope, "--shift-by", "-1", "--execute", "--export")[:2] == [
        "tooled,0,1",
        "tooled,1,1",
    ]
    rows = run("--describe", "--group", "tools")[2:4]
    assert [row.split()[3:7] for row in rows] == [["1", "2", "1", "-"]] * 2
    (document,) = _groups(run(*asked_json))
    assert [one["lag"] for one in document["partitions"]] == [1, 1] + [0] * (PARTITIONS - 2)
    (document,) = _groups(run("--json", *scope, "--to-latest"))
    assert document["isExecuted"] is False
    assert [one["newOffset"] for one in document["partitions"]] == [2, 2]
    deleted = run("--delete-offsets", "--group", "tools", "--topic", "tooled:0")
    assert deleted[3].split() == ["tooled", "0", "Successful"]
    assert run("--delete", "--group", "tools")[0] == (
        "Deletion of requested consumer groups ('tools') was successful."
    )
    assert "'tools' does not exist" in run("--describe", "--group", "tools", fails=True)[0]


def test_consumer_groups_tool_describes_group_of_consumer_protocol(cluster: Cluster) -> None:
    cluster.create_topic("newer", partitions=PARTITIONS, replication_factor=3)
    configured = {"bootstrap.servers": cluster.bootstrap, "group.id": "newer", "client.id": "cl"}
    member = confluent_kafka.Consumer({**configured, "group.protocol": "consumer"})
    member.subscribe(["^newer"])
    while len(member.assignment()) < PARTITIONS:
        member.poll(0.1)
    done = tool("consumer-groups", cluster, "--describe", "--group", "newer", "--state")
    assert done.stdout.split()[-3:] == ["uniform", "Stable", "1"]
    asked = ("--describe", "--group", "newer", "--members", "--verbose")
    done = tool("consumer-groups", cluster, *asked)
    epoch, *assigned = done.stdout.split("\n")[2].split()[5:]
    assert assigned == [_all_of("newer"), epoch, _all_of("newer")], done.stdout
    member.close()


_READER = """
import sys, confluent_kafka
bootstrap, = sys.argv[1:]
member = confluent_kafka.Consumer({
    "bootstrap.servers": bootstrap, "group.id": "pair", "group.protocol": "consumer",
})
member.subscribe(["pair"])
while True:
    member.poll(0.1)
    print(len(member.assignment()), flush=True)
"""


@pytest.mark.long
def test_consumer_protocol_member_takes_over_partitions_of_killed_member(
    make_cluster: MakeCluster,
) -> None:
    quick = {
        "group.consumer.session.timeout.ms": "5000",
        "group.consumer.heartbeat.interval.ms": "500",
    }
    cluster = make_cluster(brokers=1, dirs=1, config=quick)
    cluster.create_topic("pair", partitions=PARTITIONS)
    member = confluent_kafka.Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": "pair",
            "group.protocol": "consumer",
        }
    )
    changes: list[str] = []
    member.subscribe(["pair"], on_lost=lambda *_: changes.append("lost"))

    def poll_until(count: int, is_reached: Callable[[], bool] = lambda: True) -> None:
        end_s = time.monotonic() + WAIT_S
        while len(member.assignment()) != count or not is_reached():
            assert time.monotonic() < end_s, (member.assignment(), shares)
            member.poll(0.1)

    shares: list[int] = []
    poll_until(PARTITIONS)
    words = (sys.executable, "-c", _READER, cluster.bootstrap)
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        reading = threading.Thread(
            target=lambda out: shares.extend(map(int, out)), args=(other.stdout,)
        )
        reading.start()
        try:
            # A member gives partitions up only while it is polled, so it is polled until the other
            # has them.
            poll_until(PARTITIONS // 2, lambda: shares[-1:] == [PARTITIONS // 2])
        finally:
            other.kill()
            reading.join()
    assert set(shares) <= {0, PARTITIONS // 2}
    poll_until(PARTITIONS)
    assert changes == []
    member.close()


def _groups(lines: list[str]) -> Any:
    return json.loads(lines[0])["groups"]


def _all_of(topic: str) -> str:
    return f"{topic}:{','.join(map(str, range(PARTITIONS)))}"


def test_failed_disk_of_coordinator_removes_no_member() -> None:
    with LocalCluster(brokers=3, dirs=2, config=QUICK) as cluster:
        cluster.create_topic("t", partitions=PARTITIONS)
        changes: list[str] = []
        member = confluent_kafka.Consumer(
            {
                "bootstrap.servers": cluster.bootstrap_servers,
                "group.id": "g",
                "enable.auto.commit": False,
                "heartbeat.interval.ms": 200,
            }
        )
        member.subscribe(
            ["t"],
            on_assign=lambda *_: changes.append("assigned"),
            on_lost=lambda *_: changes.append("lost"),
            on_revoke=lambda *_: changes.append("revoked"),
        )

        def poll_until(is_reached: Callable[[], bool]) -> None:
            end_s = time.monotonic() + WAIT_S
            while not is_reached():
                assert time.monotonic() < end_s, cluster.last_words()
                member.poll(0.05)

        def leader() -> int:
            listed = member.list_topics("__consumer_offsets", timeout=WAIT_S)
            of_partition: int = listed.topics["__consumer_offsets"].partitions[index].leader
            return of_partition

        poll_until(lambda: bool(member.assignment()))
        index = abs(java_hash("g")) % 50
        before = leader()
        name = f"__consumer_offsets-{index}"
        broker = cluster.broker(before)
        (dying,) = [d for d in (broker.dir(0), broker.dir(1)) if (d.path / name).exists()]
        try:
            dying.fail("eio")
        except DiskKitError:
            dying.fail("chmod")
        poll_until(lambda: leader() not in (before, -1))
        wanted = [confluent_kafka.TopicPartition("t", 0, 7)]

        def is_committed() -> bool:
            try:
                member.commit(offsets=wanted, asynchronous=False)
            except confluent_kafka.KafkaException as e:
                # The next coordinator loads for some milliseconds; librdkafka leaves the retry to
                # the user.
                assert (
                    e.args[0].code() == confluent_kafka.KafkaError.COORDINATOR_LOAD_IN_PROGRESS
                ), e
                return False
            return True

        # The member finds the next coordinator automatically, in the same generation.
        poll_until(is_committed)
        (committed,) = member.committed(wanted, timeout=WAIT_S)
        assert (committed.offset, changes) == (7, ["assigned"])
        member.close()
