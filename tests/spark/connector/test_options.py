"""Options of the source: the connector's names, defaults and precedence, and refused values."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.connector.options import (
    COLUMNS,
    EARLIEST,
    HEADERS,
    LATEST,
    SOURCE_OPTIONS,
    Assign,
    AtOffset,
    AtOffsets,
    AtTime,
    AtTimes,
    SourceOptions,
    Subscribe,
    SubscribePattern,
    client_settings,
    parse_source_options,
    reject_unknown,
)
from kraftjbod.spark.tables.schemas import RECORD, RECORD_WITH_HEADERS

SERVERS: Final = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def parse(is_streaming: bool | None = False, **options: str) -> SourceOptions:
    topics = {"subscribe": "t"}
    if {"subscribe", "subscribePattern", "assign"} & options.keys():
        topics = {}
    return parse_source_options({**SERVERS, **topics, **options}, is_streaming=is_streaming)


def test_columns_equal_the_record_schema() -> None:
    assert list(COLUMNS) == RECORD.names
    assert [*COLUMNS, HEADERS] == RECORD_WITH_HEADERS.names


def test_source_options_have_the_connectors_defaults() -> None:
    batch = parse()
    assert batch.starting == AtOffset(offset=EARLIEST)
    assert batch.ending == AtOffset(offset=LATEST)
    assert parse(is_streaming=True).starting == AtOffset(offset=LATEST)
    assert batch.columns == COLUMNS
    assert batch.fail_on_data_loss
    assert not batch.starts_latest_without_match
    assert batch.group_id_prefix == "spark-kafka-source"
    assert batch.max_trigger_delay_ms == 15 * 60_000
    assert (batch.fetch_offset_retries, batch.fetch_offset_retry_interval_ms) == (3, 10)
    assert batch.poll_timeout_ms == 120_000
    assert batch.min_partitions is batch.max_offsets_per_trigger is None
    assert batch.max_records_per_partition is batch.min_offsets_per_trigger is None


@given(data=st.data())
@settings(deadline=None)
def test_source_options_are_found_in_any_case(data: st.DataObject) -> None:
    def any_case(name: str) -> str:
        return "".join(data.draw(st.sampled_from((c.lower(), c.upper()))) for c in name)

    options = {
        "kafka.bootstrap.servers": "h:1",
        "subscribe": "a, b,a",
        "maxOffsetsPerTrigger": "7",
        "failOnDataLoss": "False",
        "maxTriggerDelay": "2m",
        "fetchOffset.numRetries": "9",
    }
    found = parse_source_options({any_case(n): v for n, v in options.items()}, is_streaming=True)
    assert found.topics == Subscribe(topics=("a", "b"))
    assert found.kafka == {"bootstrap.servers": "h:1"}
    assert found.max_offsets_per_trigger == 7
    assert not found.fail_on_data_loss
    assert found.max_trigger_delay_ms == 120_000
    assert found.fetch_offset_retries == 9


def test_source_options_accept_pattern_and_assignment_of_topics() -> None:
    assert parse(subscribePattern="a.*").topics == SubscribePattern(pattern="a.*")
    assert parse(assign='{"t": [0, 1]}').topics == Assign(partitions=frozenset({T0, T1}))


def test_source_options_prefer_time_over_times_over_offsets() -> None:
    every = {
        "Timestamp": "5",
        "OffsetsByTimestamp": '{"t": {"0": 6}}',
        "Offsets": '{"t": {"0": 7}}',
    }
    expected = [
        AtTime(timestamp_ms=5),
        AtTimes(timestamps_ms={T0: 6}),
        AtOffsets(offsets={T0: 7}),
    ]
    names = list(every)
    for which in ("starting", "ending"):
        for first, position in enumerate(expected):
            options = {f"{which}{name}": every[name] for name in names[first:]}
            assert getattr(parse(**options), which) == position


offsets = st.dictionaries(
    st.builds(TopicPartition, st.sampled_from(["t", "u.v"]), st.integers(0, 50)),
    st.integers(0, 2**63 - 1),
    min_size=1,
)


@given(offsets=offsets)
@settings(deadline=None)
def test_source_options_parse_offsets_in_json(offsets: dict[TopicPartition, int]) -> None:
    reported: dict[str, dict[str, int]] = {}
    for partition, offset in offsets.items():
        reported.setdefault(partition.topic, {})[str(partition.partition)] = offset
    found = parse(startingOffsets=json.dumps(reported)).starting
    assert found == AtOffsets(offsets=offsets)


@pytest.mark.parametrize(
    ("columns", "headers", "expected"),
    [
        ("value", "false", ("value",)),
        (" Offset , KEY ", "false", ("offset", "key")),
        ("timestamptype,headers", "true", ("timestampType", "headers")),
    ],
)
def test_source_options_parse_wanted_columns(
    columns: str, headers: str, expected: tuple[str, ...]
) -> None:
    assert parse(columns=columns, includeHeaders=headers).columns == expected


WRONG: Final[list[tuple[dict[str, str], str]]] = [
    ({"subcribe": "t"}, "no option 'subcribe': did you mean subscribe?"),
    ({"max_offsets_per_trigger": "1"}, "did you mean maxOffsetsPerTrigger?"),
    ({"bootstrap.servers": "h:1"}, "did you mean kafka.bootstrap.servers?"),
    ({"zzz": "t"}, "no option 'zzz'"),
    ({"subscribe": "t", "assign": '{"t": [0]}'}, "not assign and subscribe"),
    ({"subscribe": " , "}, "subscribe"),
    ({"subscribePattern": "a("}, "subscribePattern is no regular expression"),
    ({"subscribePattern": " "}, "subscribePattern is empty"),
    ({"assign": "t"}, "option assign is 't'"),
    ({"assign": '{"t": [-1]}'}, "[-1]"),
    ({"assign": '{"t": [true]}'}, "[True]"),
    ({"assign": '{"t": []}'}, "names no partition"),
    ({"startingOffsets": "erliest"}, "option startingOffsets is 'erliest'"),
    ({"startingOffsets": '{"t": {"0": -3}}'}, "t-0 has -3"),
    ({"startingOffsets": '{"t": {"x": 3}}'}, "t-x has 3"),
    ({"startingOffsets": '{"t": 3}'}, "'t' has 3"),
    ({"startingOffsets": "{}"}, "names no partition"),
    ({"startingOffsets": "[1]"}, "startingOffsets is '[1]'"),
    ({"startingOffsets": "latest"}, "startingOffsets of a batch query cannot be the latest"),
    ({"startingOffsets": '{"t": {"0": -1}}'}, "t-0 cannot be the latest"),
    ({"endingOffsets": "earliest"}, "endingOffsets of a batch query cannot be the earliest"),
    ({"endingOffsets": '{"t": {"0": -2}}'}, "t-0 cannot be the earliest"),
    ({"startingTimestamp": "yesterday"}, "option startingTimestamp is 'yesterday'"),
    ({"startingTimestamp": "\N{SUPERSCRIPT TWO}"}, "expected a whole number"),
    ({"startingTimestamp": "9" * 19}, "expected a whole number"),
    ({"startingOffsets": '{"t": {"0": 9223372036854775808}}'}, "t-0 has 9223372036854775808"),
    ({"startingOffsets": '{"t": {"\N{SUPERSCRIPT TWO}": 1}}'}, "has 1"),
    ({"startingOffsetsByTimestamp": '{"t": {"0": -1}}'}, "startingOffsetsByTimestamp: t-0 has -1"),
    ({"startingOffsetsByTimestampStrategy": "first"}, "expected error or latest"),
    ({"minPartitions": "0"}, "minPartitions is 0"),
    ({"maxRecordsPerPartition": "-1"}, "maxRecordsPerPartition is '-1'"),
    ({"failOnDataLoss": "yes"}, "failOnDataLoss is 'yes'"),
    ({"maxTriggerDelay": "soon"}, "maxTriggerDelay 'soon': expected a duration"),
    ({"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"}, "minOffsetsPerTrigger (5)"),
    ({"columns": "valeu"}, "no column 'valeu'"),
    ({"columns": "value,value"}, "each wanted column once"),
    ({"columns": "headers"}, "headers come with includeHeaders only"),
    ({"columns": ","}, "each wanted column once"),
    ({"kafka.auto.offset.reset": "earliest"}, "kafka.auto.offset.reset is not supported"),
    ({"kafka.enable.auto.commit": "true"}, "kafka.enable.auto.commit is not supported"),
    ({"kafka.key.deserializer": "x"}, "kafka.key.deserializer is not supported"),
    ({"kafka.value.deserializer": "x"}, "kafka.value.deserializer is not supported"),
    ({"kafka.interceptor.classes": "x"}, "kafka.interceptor.classes is not supported"),
    ({"kafka.ssl.truststore.location": "/x.jks"}, "use kafka.ssl.ca.location"),
    ({"kafka.sasl.jaas.config": "x required;"}, "kafka.sasl.username"),
    ({"kafka.bootstrap.servers": ""}, "kafka.bootstrap.servers is missing"),
]


@pytest.mark.parametrize(("options", "said"), WRONG, ids=[f"{o}" for o, _ in WRONG])
def test_source_options_with_invalid_values_are_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(**options)
    assert said in str(caught.value)


def test_source_options_without_topics_are_refused() -> None:
    with pytest.raises(ConfigError, match="none is there"):
        parse_source_options(SERVERS, is_streaming=False)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_source_options_of_stream_refuse_an_end(name: str) -> None:
    values = {"endingOffsets": "latest", "endingTimestamp": "1"}
    value = values.get(name, '{"t": {"0": 1}}')
    with pytest.raises(ConfigError, match=f"option {name} is for batch queries"):
        parse(is_streaming=True, **{name: value})
    assert parse(is_streaming=None, **{name: value}).ending is not None


def test_source_options_of_unknown_kind_check_common_options() -> None:
    assert parse(is_streaming=None, startingOffsets="latest").starting == AtOffset(offset=LATEST)
    with pytest.raises(ConfigError, match="minPartitions"):
        parse(is_streaming=None, minPartitions="many")


# --- settings of the client ----------------------------------------------------------------------


def client(**options: str) -> dict[str, str]:
    named = {f"kafka.{name.replace('_', '.')}": value for name, value in options.items()}
    found = client_settings({**SERVERS, **named}, forbidden={}, renamed={"max.size": "message.max"})
    assert found.pop("bootstrap.servers") == "127.0.0.1:9092"
    return found


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        ({"fetch_min_bytes": "7"}, {"fetch.min.bytes": "7"}),
        ({"fetch_max_wait_ms": "7"}, {"fetch.wait.max.ms": "7"}),
        ({"max_size": "7"}, {"message.max": "7"}),
        ({"SASL_Mechanism": "PLAIN"}, {"sasl.mechanism": "PLAIN"}),
        (
            {"ssl_endpoint_identification_algorithm": ""},
            {"ssl.endpoint.identification.algorithm": "none"},
        ),
        (
            {
                "sasl_jaas_config": "org.apache.kafka.common.security.plain.PlainLoginModule "
                r'required username="me" password="a \"b\" = c";'
            },
            {"sasl.username": "me", "sasl.password": 'a "b" = c'},
        ),
    ],
)
def test_client_settings_translate_java_names_to_librdkafka_names(
    given_: dict[str, str], expected: dict[str, str]
) -> None:
    assert client(**given_) == expected


def test_client_settings_refuse_forbidden_names_with_advice() -> None:
    with pytest.raises(ConfigError, match=r"option kafka\.acks is not supported: leave it"):
        client_settings({**SERVERS, "kafka.ACKS": "1"}, forbidden={"acks": "leave it"}, renamed={})


@given(name=st.text(max_size=20))
@settings(deadline=None)
def test_reject_unknown_refuses_exactly_the_unknown_names(name: str) -> None:
    known = {option.lower() for option in SOURCE_OPTIONS}
    options: dict[str, Any] = {name: "1"}
    if name.lower() in known or name.lower().startswith("kafka."):
        reject_unknown(options, SOURCE_OPTIONS, where="the source")
    else:
        with pytest.raises(ConfigError) as caught:
            reject_unknown(options, SOURCE_OPTIONS, where="the source")
        assert repr(name) in str(caught.value)
