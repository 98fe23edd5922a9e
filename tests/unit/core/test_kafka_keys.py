"""``core/kafka_keys.py``: every public key of Kafka 4.3 is served, refused, or known to have no
effect.

``kafka_4_3_keys.tsv`` lists the keys of Kafka's own ConfigDefs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.config_model import BOUNDS, ConfigType, KeyedModel, config_types, parse_model
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.group_config import GroupOverrides
from kraftjbod.core.kafka_keys import (
    ALIASES,
    REFUSED,
    WITHOUT_EFFECT,
    canonical_key,
    canonical_keys,
    ignored_keys,
    require_servable,
    why_without_effect,
)
from kraftjbod.core.security_keys import names_security
from kraftjbod.core.topic_config import TopicConfig

NODES = (BrokerConfig, ControllerConfig)
MODELS: dict[str, tuple[type[KeyedModel], ...]] = {
    "broker": NODES,
    "topic": (TopicConfig,),
    "group": (GroupOverrides,),
}
# Minimum values that are higher here than in Kafka, with the reason.
HIGHER_LEAST = {
    "sasl.oauthbearer.clock.skew.seconds": "a negative skew refuses tokens early",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": "less than a second floods the provider",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": "a wait without time is a loop",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": "likewise",
    "connections.max.idle.ms": "no connection may stay idle without limit",
    "controller.quorum.election.timeout.ms": "less than 100 ms elects on any pause",
    "controller.quorum.request.timeout.ms": "no request is answered in 0 ms",
    "group.initial.rebalance.delay.ms": "a negative delay means nothing",
    "group.max.session.timeout.ms": "a session without duration means nothing",
    "group.min.session.timeout.ms": "a session without duration means nothing",
    "log.cleaner.backoff.ms": "an idle cleaner would not sleep",
    "log.cleaner.dedupe.buffer.size": "a pass could hold no keys",
    "log.cleaner.threads": "log.cleaner.enable=false says it",
    "log.flush.offset.checkpoint.interval.ms": "checkpoints would be written without a pause",
    "log.flush.scheduler.interval.ms": "logs would be looked at without a pause",
    "max.connections": "no client could connect",
    "max.incremental.fetch.session.cache.slots": "followers need one session at least",
    "offset.metadata.max.bytes": "a negative size means nothing",
    "offsets.load.buffer.size": "no batch would fit",
    "offsets.topic.segment.bytes": "a segment holds a kibibyte at least",
    "queued.max.request.bytes": "requests in memory always have a limit",
    "replica.fetch.backoff.ms": "a fetch that fails would be repeated without a pause",
    "replica.fetch.max.bytes": "a fetch asks for something",
    "replica.fetch.min.bytes": "a negative size means nothing",
    "replica.fetch.response.max.bytes": "a fetch asks for something",
    "socket.request.max.bytes": "no request would fit",
    "sasl.server.max.receive.size": "no request of a login would fit",
    "connections.max.reauth.ms": "Kafka's ConfigDef has no bound, and less makes no sense",
    "transaction.state.log.load.buffer.size": "no batch would fit",
    "transaction.state.log.segment.bytes": "a segment holds a kibibyte at least",
    **dict.fromkeys(
        (
            "broker.heartbeat.interval.ms",
            "broker.session.timeout.ms",
            "default.replication.factor",
            "initial.broker.registration.timeout.ms",
            "replica.fetch.wait.max.ms",
            "replica.high.watermark.checkpoint.interval.ms",
            "replica.lag.time.max.ms",
            "replica.socket.timeout.ms",
            "request.timeout.ms",
            "log.flush.interval.ms",
            "log.roll.jitter.ms",
            "log.roll.ms",
            "num.replica.alter.log.dirs.threads",
        ),
        "Kafka's ConfigDef has no bound, and less makes no sense",
    ),
}
# Minimum values that are lower here than in Kafka, with the reason.
LOWER_LEAST = {
    "log.segment.bytes": "small segments show retention and compaction in tests; before 4.0: 14",
    "segment.bytes": "likewise",
    "metadata.log.segment.bytes": "likewise",
}


class KafkaKey(NamedTuple):
    of: str
    key: str
    type: str
    bounds: str


def kafka_keys() -> Iterator[KafkaKey]:
    for line in Path(__file__).with_name("kafka_4_3_keys.tsv").read_text().splitlines()[1:]:
        yield KafkaKey(*line.split("\t"))


def served() -> list[tuple[KafkaKey, type[KeyedModel]]]:
    return [
        (one, model)
        for one in kafka_keys()
        for model in MODELS[one.of]
        if one.key in model.keys()  # noqa: SIM118 - a class method
    ]


def is_accepted(model: type[KeyedModel], key: str, text: str) -> bool:
    """Return whether the model accepts ``key``; errors about other, missing keys do not count."""
    try:
        parse_model(model, {key: text}, "file")
    except ConfigError as e:
        return not str(e).startswith(f"file: {key}: ") and f"; {key}: " not in str(e)
    return True


def test_each_broker_key_of_kafka_is_either_served_refused_or_without_effect() -> None:
    known = frozenset().union(*(model.keys() for model in NODES))
    for one in kafka_keys():
        if one.of != "broker":
            continue
        ways = {
            "served": canonical_key(one.key) in known,
            "refused": one.key in REFUSED or (names_security(one.key) and one.key not in known),
            "without effect": why_without_effect(one.key) is not None,
        }
        assert sum(ways.values()) == 1, (one.key, ways)


def test_bounds_that_differ_from_kafka_belong_to_served_keys() -> None:
    numbers = {one.key for one, model in served() if config_types(model)[one.key] in BOUNDS}
    assert HIGHER_LEAST.keys() | LOWER_LEAST.keys() <= numbers


def test_keys_refused_or_without_effect_are_public_keys_of_kafka() -> None:
    public = {one.key for one in kafka_keys()}
    for key in (*WITHOUT_EFFECT, *REFUSED):
        assert any(name.startswith(key) if key.endswith(".") else name == key for name in public)


def test_every_topic_key_of_kafka_is_served() -> None:
    assert {one.key for one in kafka_keys() if one.of == "topic"} == TopicConfig.keys()


@pytest.mark.parametrize(("one", "model"), served(), ids=lambda v: getattr(v, "key", ""))
def test_served_keys_have_kafkas_types_and_bounds_except_listed_keys(
    one: KafkaKey, model: type[KeyedModel]
) -> None:
    kind = config_types(model)[one.key]
    if kind is ConfigType.BOOLEAN:
        accepted = [
            text for text in ("true", "FALSE ", "yes", "1") if is_accepted(model, one.key, text)
        ]
        assert accepted == ["FALSE "] if one.key == "remote.storage.enable" else ["true", "FALSE "]
    if one.type == "CLASS":
        return
    assert kind.name == one.type
    if kind not in BOUNDS or one.key == "compression.gzip.level":
        return
    least, most = BOUNDS[kind]
    below, dots, above = one.bounds.strip("[]").partition(",...")
    if dots:
        least = int(below)
        most = int(above.strip(",") or most)
        assert is_accepted(model, one.key, str(most))
        assert not is_accepted(model, one.key, str(most + 1))
    assert not is_accepted(model, one.key, str(BOUNDS[kind][1] + 1)), "beyond its type"
    assert not is_accepted(model, one.key, "1_000")
    assert not is_accepted(model, one.key, "2.0")
    if one.key in LOWER_LEAST:
        assert is_accepted(model, one.key, str(least - 1))
    elif one.key in HIGHER_LEAST:
        assert not is_accepted(model, one.key, str(least))
    else:
        assert is_accepted(model, one.key, str(least)), least
        assert not is_accepted(model, one.key, str(least - 1)), least - 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("create.topic.policy.class.name", "org.example.Policy"),
        ("alter.config.policy.class.name", "org.example.Policy"),
        ("remote.log.storage.system.enable", "true"),
        ("group.coordinator.rebalance.protocols", "classic"),
        ("max.connection.creation.rate", "10"),
    ],
)
def test_node_refuses_key_that_must_not_be_ignored(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match=rf"f: {key} is {value}: "):
        require_servable({key: value}, source="f")


def test_node_accepts_refused_key_with_neutral_value() -> None:
    values = {
        "create.topic.policy.class.name": " ",
        "remote.log.storage.system.enable": "False",
        "group.coordinator.rebalance.protocols": "classic, consumer,streams",
        "max.connection.creation.rate": "2147483647",
    }
    require_servable(values, source="f")
    assert ignored_keys(BrokerConfig, values) == []


def test_aliases_become_the_keys_of_the_models() -> None:
    given = {"intra.broker.throttled.rate": "5", "broker.id": "1", "node.id": "1"}
    assert canonical_keys(given, source="f") == {
        "replica.alter.log.dirs.io.max.bytes.per.second": "5",
        "node.id": "1",
    }
    assert set(ALIASES.values()) <= BrokerConfig.keys()
    with pytest.raises(ConfigError, match=r"f: broker\.id and node\.id are one key"):
        canonical_keys({"node.id": "1", "broker.id": "2"}, source="f")


def test_ignored_keys_give_reason_or_suggestion() -> None:
    values = {"num.io.threads": "8", "log.dir.relod": "1", "ssl.protocol": "x", "broker.id": "1"}
    texts = list(map(str, ignored_keys(BrokerConfig, values | {"log.retention.mss": "1"})))
    assert texts[0].startswith("there is no key log.dir.relod")
    assert texts[1] == (
        "there is no key log.retention.mss, and it is ignored: did you mean log.retention.ms?"
    )
    assert texts[2].startswith("num.io.threads has no effect here, because one event loop")
    assert len(texts) == 3
