"""``core/config_model.py``: fields by Kafka's key names."""

from __future__ import annotations

import pytest
from pydantic import Field, SecretStr

from kraftjbod.core.config import BrokerConfig, ControllerConfig
from kraftjbod.core.config_model import (
    BOUNDS,
    ConfigType,
    KeyedModel,
    config_meanings,
    config_text,
    config_types,
    list_items,
    parse_model,
    secret_text,
    split_list,
    stored_values,
    typed_value,
    unknown_keys,
)
from kraftjbod.core.errors import ConfigError
from kraftjbod.core.topic_config import BROKER_KEYS, TopicConfig


class Sample(KeyedModel):
    some_bytes: int = Field(default=1, ge=0)


def test_parse_model_maps_dotted_keys_to_fields() -> None:
    sample = parse_model(Sample, {"some.bytes": "7"}, "here")
    assert sample.by_key() == {"some.bytes": 7}
    assert Sample.keys() == {"some.bytes"}
    assert unknown_keys(Sample, {"some.bytes": "1", "b": "", "a": ""}) == ["a", "b"]


def test_parse_model_names_key_of_invalid_value() -> None:
    with pytest.raises(ConfigError, match=r"here: some\.bytes: .*greater than or equal to 0"):
        parse_model(Sample, {"some.bytes": "-1"}, "here")


def test_parse_model_refuses_nul_character() -> None:
    with pytest.raises(ConfigError, match=r"here: log\.dirs contains a NUL character"):
        parse_model(Sample, {"log.dirs": "/a\0b"}, "here")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (ConfigType.INT, " 5 ", 5),
        (ConfigType.INT, "+5", 5),
        (ConfigType.LONG, "-9223372036854775808", -(2**63)),
        (ConfigType.DOUBLE, "1e3", 1000.0),
        (ConfigType.BOOLEAN, "True ", True),
        (ConfigType.STRING, " gzip ", "gzip"),
    ],
)
def test_typed_value_parses_text_as_kafka_does(kind: ConfigType, text: str, value: object) -> None:
    assert typed_value(kind, text) == value


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (ConfigType.SHORT, "32768"),
        (ConfigType.INT, "2147483648"),
        (ConfigType.INT, "1_000"),
        (ConfigType.INT, ""),
        (ConfigType.LONG, "9" * 20),
        (ConfigType.LONG, "9" * 30_000),
        (ConfigType.DOUBLE, "nan"),
        (ConfigType.BOOLEAN, "yes"),
        (ConfigType.BOOLEAN, "1"),
    ],
)
def test_typed_value_refuses_text_that_kafka_refuses(kind: ConfigType, text: str) -> None:
    with pytest.raises(ValueError, match=r"is no|neither") as refused:
        typed_value(kind, text)
    assert len(str(refused.value)) < 200


def test_stored_values_beyond_their_type_are_clamped() -> None:
    """Earlier versions accepted them, and a default in their place could delete records."""
    stored = {
        "retention.ms": "9" * 20,
        "min.insync.replicas": "9" * 11,
        "unclean.leader.election.enable": "yes",
        "segment.bytes": "soon",
        "no.such.key": "9" * 20,
    }
    assert stored_values(stored, TopicConfig) == {
        "retention.ms": str(2**63 - 1),
        "min.insync.replicas": str(2**31 - 1),
        "unclean.leader.election.enable": "true",
        "segment.bytes": "soon",
        "no.such.key": "9" * 20,
    }


def test_list_items_are_comma_separated() -> None:
    assert list_items(" a, b,,c ") == ["a", "b", "c"]
    assert split_list("a,b") == ("a", "b")
    assert split_list(("a",)) == ("a",)


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        ("retention.bytes", ConfigType.LONG),
        ("retention.ms", ConfigType.LONG),
        ("max.compaction.lag.ms", ConfigType.LONG),
        ("segment.bytes", ConfigType.INT),
        ("min.insync.replicas", ConfigType.INT),
        ("cleanup.policy", ConfigType.LIST),
        ("min.cleanable.dirty.ratio", ConfigType.DOUBLE),
        ("unclean.leader.election.enable", ConfigType.BOOLEAN),
        ("compression.type", ConfigType.STRING),
    ],
)
def test_config_types_of_topic_keys_are_kafkas(key: str, kind: ConfigType) -> None:
    """The type does not depend on the value: retention.bytes=-1 is a LONG as well."""
    assert config_types(TopicConfig)[key] is kind


def test_config_types_of_broker_key_and_its_topic_key_agree() -> None:
    hours = {"log.retention.hours", "log.roll.hours", "log.roll.jitter.hours"}
    hours.add("log.retention.minutes")
    for topic_key, keys in BROKER_KEYS.items():
        for key in set(keys) - hours:
            assert config_types(BrokerConfig)[key] is config_types(TopicConfig)[topic_key], key
    assert config_types(BrokerConfig)["log.roll.ms"] is ConfigType.LONG, "although it is not set"
    assert config_types(BrokerConfig)["listeners"] is ConfigType.LIST


@pytest.mark.parametrize("model", [TopicConfig, BrokerConfig, ControllerConfig])
def test_config_types_and_meanings_cover_keys(model: type[KeyedModel]) -> None:
    assert config_types(model).keys() == model.keys()
    meanings = config_meanings(model)
    of_topics = {key for keys in BROKER_KEYS.values() for key in keys}
    assert model.keys() - meanings.keys() <= of_topics
    assert all("\n" not in text for text in meanings.values())


@pytest.mark.parametrize("model", [TopicConfig, BrokerConfig, ControllerConfig])
def test_config_types_of_numbers_hold_their_defaults(model: type[KeyedModel]) -> None:
    """A larger default needs ``Long`` in the field's annotation."""
    for field in model.model_fields.values():
        bounds = BOUNDS.get(config_types(model)[str(field.alias)])
        if bounds is not None and isinstance(field.default, int):
            assert bounds[0] <= field.default <= bounds[1], field.alias


def test_secret_text_has_the_text_that_config_text_hides() -> None:
    assert secret_text(SecretStr("canary")) == "canary"
    assert "canary" not in config_text(SecretStr("canary"))
    assert secret_text(True) == "true"
