"""``kraftjbod-topics``, against a scripted broker behind a real listener."""

from __future__ import annotations

import json

import pytest

from kraftjbod.cli.topics_tool import TopicCommandError, main, parse_assignment
from kraftjbod.core.errors import ErrorCode
from kraftjbod.protocol.kafka_codec import SUPPORTED, ApiKey
from tests.unit.cli.mini_broker import invoke, mini_broker


async def test_create_prints_kafkas_line_and_refuses_existing_topic() -> None:
    async with mini_broker() as broker:
        words = ("--bootstrap-server", broker.address, "--create", "--topic", "foo")
        result = await invoke_ok(*words, "--partitions", "3", "--config", "retention.ms=5")
        assert result == "Created topic foo.\n"
        assert len(broker.topics["foo"].logs) == 3
        assert broker.topics["foo"].configs == {"retention.ms": "5"}
        assert await invoke_ok(*words, "--if-not-exists") == ""
        again = await invoke(main, *words)
        assert again.exit_code == 1
        assert again.stderr == "error: Topic 'foo' already exists.\n"


async def test_create_warns_if_one_broker_down_stops_writes_with_acks_all() -> None:
    """With Kafka's default of 1 for min.insync.replicas, such a topic would still accept writes."""
    async with mini_broker() as broker:
        words = ("--bootstrap-server", broker.address, "--create", "--replication-factor")
        two = await invoke_ok(*words, "2", "--topic", "two")
        created, warning = two.splitlines()
        assert created == "Created topic two."
        assert warning.startswith(
            "It takes writes with acks=all only while all 2 replicas are in sync "
            "(min.insync.replicas is 2): with one broker down producers get NOT_ENOUGH_REPLICAS."
        )
        assert await invoke_ok(*words, "3", "--topic", "three") == "Created topic three.\n"
        assert await invoke_ok(*words, "1", "--topic", "one") == "Created topic one.\n"
        document = await invoke_ok(*words, "2", "--topic", "json", "--json")
        assert json.loads(document) == {"created": "json"}


async def test_create_warns_of_a_name_that_could_collide_in_metric_names() -> None:
    async with mini_broker() as broker:
        reported = await invoke_ok(
            "--bootstrap-server", broker.address, "--create", "--topic", "a.b"
        )
        assert reported.startswith("WARNING: Due to limitations in metric names")


async def test_list_and_describe_print_kafkas_columns() -> None:
    async with mini_broker() as broker:
        broker.create("foo", 2, **{"retention.ms": "5"})
        broker.create("__hidden")
        at = ("--bootstrap-server", broker.address)
        assert await invoke_ok(*at, "--list") == "__hidden\nfoo\n"
        assert await invoke_ok(*at, "--list", "--exclude-internal") == "foo\n"
        assert await invoke_ok(*at, "--list", "--topic", "f.*,bar") == "foo\n"
        assert await invoke_ok(*at, "--describe", "--topic", "foo") == (
            "Topic: foo\tTopicId: AAAAAAAAAAAAAAAAAAAAyA\tPartitionCount: 2\t"
            "ReplicationFactor: 2\tConfigs: retention.ms=5\n"
            "\tTopic: foo\tPartition: 0\tLeader: 7\tReplicas: 7,8\tIsr: 7"
            "\tElr: 8\tLastKnownElr: \tOffline: 8\n"
            "\tTopic: foo\tPartition: 1\tLeader: 7\tReplicas: 7,8\tIsr: 7"
            "\tElr: 8\tLastKnownElr: \tOffline: 8\n"
        )
        document = json.loads(await invoke_ok(*at, "--describe", "--topic", "foo", "--json"))
        assert document["topics"][0]["partitions"][1]["offline_replicas"] == [8]
        assert document["topics"][0]["partitions"][1]["eligible_leader_replicas"] == [8]


async def test_describe_without_describe_topic_partitions_shows_no_elr(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with mini_broker() as broker:
        broker.create("foo")
        monkeypatch.delitem(SUPPORTED, ApiKey.DESCRIBE_TOPIC_PARTITIONS)
        reported = await invoke_ok("--bootstrap-server", broker.address, "--describe")
        assert "Elr: N/A\tLastKnownElr: N/A" in reported


async def test_describe_filters_under_replicated_and_unavailable_partitions() -> None:
    async with mini_broker() as broker:
        broker.create("foo")
        at = ("--bootstrap-server", broker.address, "--describe")
        shown = await invoke_ok(*at, "--under-replicated-partitions")
        assert shown.startswith("\tTopic: foo\tPartition: 0")
        assert await invoke_ok(*at, "--unavailable-partitions") == ""
        broker.fail_next["Metadata"] = [ErrorCode.LEADER_NOT_AVAILABLE]
        assert "Leader: none" in await invoke_ok(*at, "--unavailable-partitions")


async def test_describe_filters_by_min_isr_and_overrides() -> None:
    """Each partition has one of two replicas in sync."""
    async with mini_broker() as broker:
        broker.create("at", 2, **{"min.insync.replicas": "1"})
        broker.create("under", 2, **{"min.insync.replicas": "2"})
        broker.create("plain")
        at = ("--bootstrap-server", broker.address, "--describe")
        under = await invoke_ok(*at, "--under-min-isr-partitions")
        assert {line.split("\t")[1] for line in under.splitlines()} == {"Topic: under"}
        just = await invoke_ok(*at, "--at-min-isr-partitions", "--topic", "at|under")
        assert {line.split("\t")[1] for line in just.splitlines()} == {"Topic: at"}
        overrides = (await invoke_ok(*at, "--topics-with-overrides")).splitlines()
        assert [line.split("\t")[0] for line in overrides] == ["Topic: at", "Topic: under"]


async def test_describe_compares_isr_with_the_configured_min_isr_as_kafkas_tool() -> None:
    """Kafka's tool does not limit ``min.insync.replicas`` to the replication factor, which is 2."""
    async with mini_broker() as broker:
        broker.create("two", **{"min.insync.replicas": "3"}).in_sync = {0}
        at = ("--bootstrap-server", broker.address, "--describe")
        under = await invoke_ok(*at, "--under-min-isr-partitions")
        assert under.startswith("\tTopic: two\tPartition: 0")
        assert await invoke_ok(*at, "--at-min-isr-partitions") == ""


async def test_describe_under_min_isr_includes_partitions_without_leader() -> None:
    """As Kafka's tool: the ISR is large enough here, but no broker leads."""
    async with mini_broker() as broker:
        broker.create("at", **{"min.insync.replicas": "1"})
        at = ("--bootstrap-server", broker.address, "--describe")
        broker.fail_next["Metadata"] = [ErrorCode.LEADER_NOT_AVAILABLE]
        assert "Leader: none" in await invoke_ok(*at, "--under-min-isr-partitions")
        assert await invoke_ok(*at, "--under-min-isr-partitions") == ""


async def test_describe_by_topic_id_equals_describe_by_name() -> None:
    async with mini_broker() as broker:
        broker.create("foo")
        broker.create("bar")
        at = ("--bootstrap-server", broker.address, "--describe")
        text = await invoke_ok(*at, "--topic", "foo")
        topic_id = text.split("TopicId: ")[1].split("\t")[0]
        assert await invoke_ok(*at, "--topic-id", topic_id) == text
        missing = await invoke(main, *at, "--topic-id", "nowhere")
        assert missing.exit_code == 1 and "TopicId 'nowhere' does not exist" in missing.stderr


async def test_alter_adds_partitions_and_delete_removes_topic() -> None:
    async with mini_broker() as broker:
        broker.create("foo")
        at = ("--bootstrap-server", broker.address)
        assert await invoke_ok(*at, "--alter", "--topic", "foo", "--partitions", "4") == ""
        assert len(broker.topics["foo"].logs) == 4
        assert await invoke_ok(*at, "--delete", "--topic", "foo") == ""
        assert broker.topics == {}
        missing = await invoke(main, *at, "--delete", "--topic", "foo")
        assert (missing.exit_code, missing.stderr.count("\n")) == (1, 1)
        assert "Topic 'foo' does not exist as expected" in missing.stderr
        assert await invoke_ok(*at, "--delete", "--topic", "foo", "--if-exists") == ""


@pytest.mark.parametrize(
    "words",
    [
        ("--topic", "foo"),
        ("--create",),
        ("--alter", "--topic", "foo"),
        ("--list", "--topic-id", "foo"),
        ("--describe", "--topic-id", "foo", "--topic", "foo"),
        ("--create", "--topic", "foo", "--config", "nonsense"),
        ("--create", "--topic", "foo", "--partitions", "1", "--replica-assignment", "1"),
    ],
)
async def test_topics_tool_with_wrong_options_exits_with_2(words: tuple[str, ...]) -> None:
    assert (await invoke(main, "--bootstrap-server", "127.0.0.1:1", *words)).exit_code == 2


def test_parse_assignment_reads_brokers_by_partition() -> None:
    assert parse_assignment("1:2,2:3") == {0: (1, 2), 1: (2, 3)}
    for text in ("1:x", "1:1", "1:2,3"):
        with pytest.raises(TopicCommandError):
            parse_assignment(text)


async def invoke_ok(*words: str) -> str:
    result = await invoke(main, *words)
    assert result.exit_code == 0, result.output
    return result.stdout
