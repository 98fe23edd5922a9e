"""DescribeConfigs: values, sources and synonyms."""

from __future__ import annotations

from typing import Any

import pytest

from kraftjbod.broker.config_apis import ConfigApis
from kraftjbod.broker.metadata_cache import MetadataCache
from kraftjbod.broker.request_context import RequestContext
from kraftjbod.broker.topic_configs import TopicConfigs
from kraftjbod.core.config import BrokerConfig
from kraftjbod.core.ids import TopicId
from kraftjbod.metadata.records import ResourceType
from kraftjbod.protocol.kafka_codec import message

REQUEST = message("DescribeConfigsRequest")
CONTEXT = RequestContext(listener_name="PLAINTEXT", api_version=4, client_id=None)
TOPIC, DYNAMIC, STATIC, DEFAULT = int(ResourceType.TOPIC), 1, 4, 5


@pytest.fixture
def apis() -> ConfigApis:
    config = BrokerConfig.from_properties(
        {
            "process.roles": "broker",
            "node.id": "7",
            "listeners": "PLAINTEXT://127.0.0.1:9092",
            "controller.quorum.voters": "100@127.0.0.1:9093",
            "log.retention.hours": "2",
        },
        source="test",
        base_dir="/",
    )
    cache = MetadataCache(cluster_id="c")
    cache.state.topic_ids["t"] = TopicId(b"t" * 16)
    cache.state.configs[(ResourceType.TOPIC, "t")] = {"segment.bytes": "4096"}
    topic_configs = TopicConfigs(defaults=config.topic_defaults(), cache=cache)
    return ConfigApis(config=config, cache=cache, topic_configs=topic_configs)


async def described(
    apis: ConfigApis, resource_type: int, name: str, keys: list[str] | None = None
) -> tuple[Any, dict[str, Any]]:
    """The resource's result, and its entries by name."""
    resource = REQUEST.DescribeConfigsResource(
        resource_type=resource_type, resource_name=name, configuration_keys=keys
    )
    request = REQUEST(resources=[resource], include_synonyms=True)
    result = (await apis.describe_configs(request, CONTEXT)).results[0]
    return result, {entry.name: entry for entry in result.configs}


def synonyms_of(entry: Any) -> list[tuple[str, str, int]]:
    return [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]


async def test_a_topics_own_value_wins_and_names_the_brokers_as_a_synonym(apis: ConfigApis) -> None:
    _, entries = await described(apis, TOPIC, "t")
    entry = entries["segment.bytes"]
    assert (entry.value, entry.config_source) == ("4096", DYNAMIC)
    assert synonyms_of(entry) == [
        ("segment.bytes", "4096", DYNAMIC),
        ("log.segment.bytes", str(1024**3), DEFAULT),
    ]


async def test_a_value_of_the_brokers_file_is_in_force_for_its_topics(apis: ConfigApis) -> None:
    _, entries = await described(apis, TOPIC, "t")
    entry = entries["retention.ms"]
    assert (entry.value, entry.config_source) == (str(2 * 3_600_000), STATIC)
    assert synonyms_of(entry) == [("log.retention.hours", "2", STATIC)]


async def test_what_nobody_set_is_a_default(apis: ConfigApis) -> None:
    _, entries = await described(apis, TOPIC, "t")
    assert entries["min.insync.replicas"].config_source == DEFAULT
    assert entries["compression.type"].value == "producer"


async def test_only_the_keys_asked_for_are_described(apis: ConfigApis) -> None:
    _, entries = await described(apis, TOPIC, "t", ["retention.ms"])
    assert list(entries) == ["retention.ms"]


async def test_a_broker_describes_itself_with_kafkas_spelling(apis: ConfigApis) -> None:
    _, entries = await described(apis, int(ResourceType.BROKER), "7")
    assert entries["listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert entries["controller.quorum.voters"].value == "100@127.0.0.1:9093"
    assert entries["auto.create.topics.enable"].value == "true"
    assert entries["log.retention.hours"].read_only
    assert entries["log.retention.hours"].config_source == STATIC


@pytest.mark.parametrize(
    ("resource_type", "name", "code"),
    [
        pytest.param(TOPIC, "absent", 3, id="unknown topic"),
        pytest.param(int(ResourceType.BROKER), "8", 42, id="another broker"),
        pytest.param(16, "x", 42, id="unknown kind of resource"),
    ],
)
async def test_what_cannot_be_described_says_why(
    apis: ConfigApis, resource_type: int, name: str, code: int
) -> None:
    result, entries = await described(apis, resource_type, name)
    assert (result.error_code, entries) == (code, {})
    assert result.error_message
