"""``TopicConfigs``: broker defaults, overridden by the values of the topic."""

from __future__ import annotations

from structlog.testing import capture_logs

from kraftjbod.broker.cluster.metadata_cache import MetadataCache
from kraftjbod.broker.cluster.topic_configs import TopicConfigs
from kraftjbod.core.ids import TopicId, TopicPartition
from kraftjbod.core.topic_config import TopicConfig
from kraftjbod.metadata.records import ConfigRecord, ResourceType
from kraftjbod.protocol.messages import DescribeConfigsRequest
from tests.unit.broker.broker_rig import TP, brokers, partition, topic

DEFAULTS = TopicConfig(retention_ms=1000, min_insync_replicas=2)


def configs(**own: str) -> tuple[TopicConfigs, MetadataCache]:
    cache = MetadataCache(cluster_id="c")
    cache.state.configs[(ResourceType.TOPIC, "t")] = {
        key.replace("_", "."): value for key, value in own.items()
    }
    return TopicConfigs(defaults=DEFAULTS, cache=cache), cache


def test_topic_config_without_own_values_is_the_default() -> None:
    made, _ = configs(retention_ms="5")
    assert made.get("other") is DEFAULTS


def test_topic_config_own_values_override_defaults() -> None:
    made, _ = configs(retention_ms="5")
    assert (made.get("t").retention_ms, made.get("t").min_insync_replicas) == (5, 2)


def test_topic_config_change_is_visible_after_forget() -> None:
    made, cache = configs(retention_ms="5")
    assert made.get("t").retention_ms == 5
    cache.state.configs[(ResourceType.TOPIC, "t")] = {"retention.ms": "7"}
    made.forget("t")
    assert made.get("t").retention_ms == 7


def test_topic_config_unreadable_value_is_ignored_with_warning_and_others_apply() -> None:
    """The other values remain: with the default retention the topic could lose records."""
    made, _ = configs(segment_bytes="soon", retention_ms="-1")
    with capture_logs() as logged:
        assert made.get("t") == DEFAULTS.model_copy(update={"retention_ms": -1})
    assert logged[0]["event"] == "topic_config_unusable"


def broker_config(broker: str, **values: str | None) -> list[ConfigRecord]:
    return [
        ConfigRecord(
            resource_type=ResourceType.BROKER,
            resource_name=broker,
            name=key.replace("_", "."),
            value=value,
        )
        for key, value in values.items()
    ]


async def test_topic_defaults_change_with_dynamic_broker_configs() -> None:
    """Cluster-wide values, then values of the broker; without them the static values apply
    again."""
    async with brokers(log_retention_hours="24", log_cleanup_policy="delete,compact") as (rig,):
        own = ConfigRecord(
            resource_type=ResourceType.TOPIC, resource_name="t", name="segment.ms", value="7"
        )
        await rig.follow(topic(), partition(), own)
        other, other_id = TP._replace(topic="other"), TopicId(b"o" * 16)
        await rig.follow(topic("other", other_id), partition(topic_id=other_id))

        def in_force(tp: TopicPartition = TP) -> TopicConfig:
            handle = rig.logs.get(tp)
            assert handle is not None
            return handle.config

        assert in_force(other).retention_ms == 24 * 3_600_000
        changed = {"log_retention_ms": "60000", "log_cleanup_policy": "delete"}
        await rig.follow(*broker_config("", **changed, compression_type="zstd", log_roll_ms="9"))
        for tp in (TP, other):
            assert in_force(tp).retention_ms == 60_000
            assert in_force(tp).compression_type == "zstd"
            assert not in_force(tp).cleanup_policy.is_compact
        assert (in_force().segment_ms, in_force(other).segment_ms) == (7, 9)
        # A topic created later uses these defaults, too.
        late, late_id = TP._replace(topic="late"), TopicId(b"l" * 16)
        await rig.follow(topic("late", late_id), partition(topic_id=late_id))
        assert in_force(late).retention_ms == 60_000
        await rig.follow(*broker_config("1", log_retention_ms="50000"))
        assert {in_force(tp).retention_ms for tp in (TP, other, late)} == {50_000}
        gone = dict.fromkeys(("log_retention_ms", "log_cleanup_policy", "compression_type"))
        await rig.follow(*broker_config("", **gone), *broker_config("1", log_retention_ms=None))
        assert in_force(late).retention_ms == 24 * 3_600_000
        assert in_force(late).compression_type == "producer"
        assert str(in_force().cleanup_policy) == "compact,delete"


async def test_describe_configs_of_a_topic_lists_changed_broker_default_as_synonym() -> None:
    async with brokers() as (rig,):
        await rig.follow(topic(), partition(), *broker_config("", message_max_bytes="2000"))
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=ResourceType.TOPIC,
            resource_name="t",
            configuration_keys=["max.message.bytes"],
        )
        for records, expected in (
            ([], [("message.max.bytes", "2000", 3), ("message.max.bytes", "1048588", 5)]),
            (broker_config("", message_max_bytes=None), [("message.max.bytes", "1048588", 5)]),
        ):
            await rig.follow(*records)
            request = DescribeConfigsRequest(resources=[resource], include_synonyms=True)
            (entry,) = (await rig.ask(request, 4)).results[0].configs
            assert entry.value == expected[0][1]
            assert [(s.name, s.value, s.source) for s in entry.synonyms] == expected
