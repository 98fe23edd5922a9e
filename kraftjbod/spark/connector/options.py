"""PURE. Options of the source, with the names, meanings and defaults of Spark's Kafka connector.

* Names are case-insensitive, as in Spark. An unknown name is an error.
* ``kafka.NAME`` is passed to the client library, librdkafka. Java's names of settings are
  translated. A setting that only Java's client has is an error that names the alternative.
* If several options give the start or end, one time for all has priority over times by partition,
  and those have priority over offsets.

This file sends no requests: offset_lookup.py applies the options to partitions.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kraftjbod.core.errors import ConfigError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.connector.durations import duration_ms

#: Special offsets in options: before the first existing record, and after the last one.
EARLIEST: Final = -2
LATEST: Final = -1
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
HEADERS: Final = "headers"

_KAFKA: Final = "kafka."
#: Names of settings in Java's client and in librdkafka.
_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
    "ssl.truststore.certificates": "ssl.ca.pem",
}
#: Settings of Java's client only, and their alternatives.
_JAVA_ONLY: Final = {
    "default.api.timeout.ms": "use kafka.socket.timeout.ms",
    "exclude.internal.topics": "internal topics are read where they are named",
    "max.poll.records": "leave it out: batches are bounded by themselves",
    "metric.reporters": "leave it out",
    "sasl.login.callback.handler.class": "use kafka.sasl.oauthbearer.method and its neighbours",
    "ssl.keystore.type": "leave it out: kafka.ssl.keystore.location is a PKCS#12 file",
    "ssl.truststore.location": "use kafka.ssl.ca.location with a PEM file",
    "ssl.truststore.password": "use kafka.ssl.ca.location with a PEM file",
    "ssl.truststore.type": "use kafka.ssl.ca.location with a PEM file",
}
#: Settings that the source controls; the connector forbids the first five as well.
_FORBIDDEN: Final = {
    "auto.offset.reset": "say startingOffsets",
    "enable.auto.commit": "offsets are kept in the query's checkpoint",
    "interceptor.classes": "change records in the query",
    "key.deserializer": "keys are bytes: cast them in the query",
    "value.deserializer": "values are bytes: cast them in the query",
    "enable.auto.offset.store": "offsets are kept in the query's checkpoint",
    "enable.partition.eof": "the source needs it",
}
_JAAS_FIELD: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')

#: Each option of the source by its proper name.
SOURCE_OPTIONS: Final = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "failOnDataLoss",
    "includeHeaders",
    "groupIdPrefix",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "kafkaConsumer.pollTimeoutMs",
    "columns",
)
#: Offsets and times are signed 64-bit numbers.
_MOST: Final = 2**63 - 1
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """Read all partitions of these topics."""

    topics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribePattern:
    """Read all partitions of the topics whose full name matches."""

    pattern: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Read these partitions."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOffset:
    """Position in every partition: :data:`EARLIEST` or :data:`LATEST`."""

    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtOffsets:
    """Position by partition: an offset, :data:`EARLIEST` or :data:`LATEST`."""

    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTime:
    """Position in every partition: the first record with at least this timestamp."""

    timestamp_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AtTimes:
    """Position by partition: the first record with at least the partition's timestamp."""

    timestamps_ms: Mapping[TopicPartition, int]


Topics = Subscribe | SubscribePattern | Assign
Position = AtOffset | AtOffsets | AtTime | AtTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The parsed options of a query. ``kafka`` has settings by librdkafka's names.

    ``starts_latest_without_match``: a partition without a record that is recent enough starts at
    its end. Otherwise that is an error.
    """

    topics: Topics
    starting: Position
    ending: Position
    kafka: Mapping[str, str]
    columns: tuple[str, ...]
    starts_latest_without_match: bool
    fail_on_data_loss: bool
    group_id_prefix: str
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    fetch_offset_retries: int
    fetch_offset_retry_interval_ms: int
    poll_timeout_ms: int


def parse_source_options(options: Mapping[str, str], *, is_streaming: bool | None) -> SourceOptions:
    """Parse the options of a read.

    :param is_streaming: None if unknown; then options of both kinds are accepted.
    :raises ConfigError: naming the option that is unknown, missing, wrong or not applicable.
    """
    given = {name.lower(): value for name, value in options.items()}
    reject_unknown(options, SOURCE_OPTIONS, where="the source")
    if is_streaming:
        for name in _BATCH_ONLY:
            if name.lower() in given:
                raise ConfigError(f"option {name} is for batch queries: a stream has no end")
    starting = _position(given, "starting", AtOffset(offset=LATEST if is_streaming else EARLIEST))
    ending = _position(given, "ending", AtOffset(offset=LATEST))
    if is_streaming is False:
        _check_places("startingOffsets", starting, LATEST, "the latest offset: nothing to read")
        _check_places("endingOffsets", ending, EARLIEST, "the earliest offset: nothing to read")
    min_offsets = _positive(given, "minOffsetsPerTrigger")
    max_offsets = _positive(given, "maxOffsetsPerTrigger")
    if min_offsets and max_offsets and min_offsets > max_offsets:
        raise ConfigError(
            f"minOffsetsPerTrigger ({min_offsets}) is higher than maxOffsetsPerTrigger "
            f"({max_offsets})"
        )
    strategy = _word(given, "startingOffsetsByTimestampStrategy", ("error", "latest"), "error")
    return SourceOptions(
        topics=_topics(given),
        starting=starting,
        ending=ending,
        kafka=source_settings(options),
        columns=_columns(given),
        starts_latest_without_match=strategy == "latest",
        fail_on_data_loss=flag(given, "failOnDataLoss", default=True),
        group_id_prefix=given.get("groupidprefix", "spark-kafka-source"),
        min_partitions=_positive(given, "minPartitions"),
        max_records_per_partition=_positive(given, "maxRecordsPerPartition"),
        max_offsets_per_trigger=max_offsets,
        min_offsets_per_trigger=min_offsets,
        max_trigger_delay_ms=duration_ms(
            given.get("maxtriggerdelay", "15m"), "option maxTriggerDelay", bare_unit="ms"
        ),
        fetch_offset_retries=_positive(given, "fetchOffset.numRetries") or 3,
        fetch_offset_retry_interval_ms=_positive(given, "fetchOffset.retryIntervalMs") or 10,
        poll_timeout_ms=_positive(given, "kafkaConsumer.pollTimeoutMs") or 120_000,
    )


def reject_unknown(options: Mapping[str, str], known: Iterable[str], *, where: str) -> None:
    """Check that each option is known or is ``kafka.NAME``.

    :param where: names the reader of the options, for the error.
    :raises ConfigError: an option is unknown; suggests a similar name.
    """
    by_lower = {name.lower(): name for name in known}
    for name in options:
        if name.lower() in by_lower or name.lower().startswith(_KAFKA):
            continue
        candidates = [*by_lower, "kafka.bootstrap.servers"]
        near = difflib.get_close_matches(name.lower(), candidates, n=1)
        meant = f"did you mean {by_lower.get(near[0], near[0])}?" if near else "see its options"
        raise ConfigError(f"{where} has no option {name!r}: {meant}")


def source_settings(options: Mapping[str, str]) -> dict[str, str]:
    """Return the ``kafka.`` options of a read as librdkafka's settings, like
    :func:`client_settings`.
    """
    return client_settings(options, forbidden=_FORBIDDEN, renamed={})


def client_settings(
    options: Mapping[str, str], *, forbidden: Mapping[str, str], renamed: Mapping[str, str]
) -> dict[str, str]:
    """Return the ``kafka.`` options as librdkafka's settings.

    :param forbidden: settings that users must not change, and the alternatives.
    :param renamed: librdkafka's names by Java's, in addition to the names that readers and writers
        share.
    :raises ConfigError: naming the option; also if ``kafka.bootstrap.servers`` is missing.
    """
    names = {**_RENAMED, **renamed}
    settings: dict[str, str] = {}
    for option, value in options.items():
        name = option.lower()
        if not name.startswith(_KAFKA):
            continue
        name = name.removeprefix(_KAFKA)
        if name in forbidden:
            raise ConfigError(f"option kafka.{name} is not supported: {forbidden[name]}")
        if name in _JAVA_ONLY:
            raise ConfigError(f"option kafka.{name} is of Java's client only: {_JAVA_ONLY[name]}")
        if name == "sasl.jaas.config":
            settings.update(_jaas(value))
        elif name == "ssl.endpoint.identification.algorithm":
            settings[name] = value or "none"
        else:
            settings[names.get(name, name)] = value
    if not settings.get("bootstrap.servers"):
        raise ConfigError("option kafka.bootstrap.servers is missing: name a broker as HOST:PORT")
    return settings


def _jaas(value: str) -> dict[str, str]:
    """Return user name and password of Java's login configuration, as librdkafka's settings.

    :raises ConfigError: the configuration has no user name or no password.
    """
    found = {match[1]: re.sub(r"\\(.)", r"\1", match[2]) for match in _JAAS_FIELD.finditer(value)}
    if found.keys() != {"username", "password"}:
        raise ConfigError(
            "option kafka.sasl.jaas.config: only a login with username and password is understood; "
            "use kafka.sasl.username, kafka.sasl.password and what librdkafka has for others"
        )
    return {f"sasl.{name}": text for name, text in found.items()}


# --- topics and positions ------------------------------------------------------------------------


def _topics(given: Mapping[str, str]) -> Topics:
    ways = [name for name in ("assign", "subscribe", "subscribePattern") if name.lower() in given]
    if len(ways) != 1:
        said = f"not {' and '.join(ways)}" if ways else "none is there"
        raise ConfigError(f"give one of assign, subscribe and subscribePattern: {said}")
    way, value = ways[0], given[ways[0].lower()].strip()
    if way == "assign":
        return Assign(partitions=frozenset(_partitions(value)))
    if not value:
        raise ConfigError(f"option {way} is empty: name a topic")
    if way == "subscribe":
        names = tuple(dict.fromkeys(filter(None, (part.strip() for part in value.split(",")))))
        if not names:
            raise ConfigError(f"option subscribe names no topic: {value!r}")
        return Subscribe(topics=names)
    try:
        re.compile(value)
    except re.error as e:
        raise ConfigError(f"option subscribePattern is no regular expression: {e}") from e
    return SubscribePattern(pattern=value)


def _partitions(text: str) -> Iterable[TopicPartition]:
    example = 'expected JSON like {"topic": [0, 1]}'
    found = _json("assign", text, example)
    for topic, indexes in found.items():
        if not isinstance(indexes, list) or not all(_is_natural(index) for index in indexes):
            raise ConfigError(f"option assign: partitions of {topic!r} are {indexes}: {example}")
        yield from (TopicPartition(topic, index) for index in indexes)
    if not any(found.values()):
        raise ConfigError(f"option assign names no partition: {example}")


def _position(given: Mapping[str, str], which: str, default: AtOffset) -> Position:
    """Return the start or the end that the options give.

    :param which: ``starting`` or ``ending``.
    """
    time = _natural(given, f"{which}Timestamp")
    if time is not None:
        return AtTime(timestamp_ms=time)
    name = f"{which}OffsetsByTimestamp"
    if name.lower() in given:
        return AtTimes(timestamps_ms=_by_partition(name, given[name.lower()], lowest=0))
    name = f"{which}Offsets"
    if name.lower() not in given:
        return default
    text = given[name.lower()].strip()
    match text.lower():
        case "earliest":
            return AtOffset(offset=EARLIEST)
        case "latest":
            return AtOffset(offset=LATEST)
    return AtOffsets(offsets=_by_partition(name, text, lowest=EARLIEST))


def _by_partition(name: str, text: str, *, lowest: int) -> dict[TopicPartition, int]:
    """Parse ``{"topic": {"0": 23}}`` to numbers by partition.

    :raises ConfigError: the text has another form, or a number is below ``lowest``.
    """
    example = 'expected JSON like {"topic": {"0": 23, "1": 42}}'
    if name.endswith("Offsets"):
        example = f"expected earliest, latest, or {example.removeprefix('expected ')}"
    numbers = {}
    for topic, own in _json(name, text, example).items():
        if not isinstance(own, dict):
            raise ConfigError(f"option {name}: {topic!r} has {own}: {example}")
        for index, number in own.items():
            is_in_range = _is_integer(number) and lowest <= number <= _MOST
            if not index.isdecimal() or not is_in_range:
                raise ConfigError(f"option {name}: {topic}-{index} has {number}: {example}")
            numbers[TopicPartition(topic, int(index))] = number
    if not numbers:
        raise ConfigError(f"option {name} names no partition: {example}")
    return numbers


def _check_places(name: str, position: Position, bad: int, why: str) -> None:
    """Check that a batch does not start at the end, or end at the beginning.

    :param bad: :data:`LATEST` for a start, :data:`EARLIEST` for an end.
    :raises ConfigError: a position is ``bad``.
    """
    match position:
        case AtOffset(offset=offset) if offset == bad:
            raise ConfigError(f"option {name} of a batch query cannot be {why}")
        case AtOffsets(offsets=offsets):
            for partition, offset in offsets.items():
                if offset == bad:
                    raise ConfigError(f"option {name}: {partition} cannot be {why}")


# --- single values -------------------------------------------------------------------------------


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns of the option ``columns``, in the connector's order.

    Without the option, return all columns.

    :raises ConfigError: the option names an unknown column, or a column twice.
    """
    every: tuple[str, ...] = COLUMNS
    if flag(given, "includeHeaders", default=False):
        every = (*COLUMNS, HEADERS)
    if "columns" not in given:
        return every
    by_lower = {name.lower(): name for name in every}
    wanted = [part.strip().lower() for part in given["columns"].split(",") if part.strip()]
    for name in wanted:
        if name == HEADERS and HEADERS not in every:
            raise ConfigError("option columns: headers come with includeHeaders only")
        if name not in by_lower:
            raise ConfigError(f"option columns: there is no column {name!r} in {', '.join(every)}")
    if not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError("option columns: name each wanted column once, with commas between")
    return tuple(by_lower[name] for name in wanted)


def _json(name: str, text: str, example: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as e:
        raise ConfigError(f"option {name} is {text!r}: {example} ({e})") from e
    if not isinstance(found, dict):
        raise ConfigError(f"option {name} is {text!r}: {example}")
    return found


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_natural(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _natural(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) > _MOST:
        raise ConfigError(f"option {name} is {text!r}: expected a whole number")
    return int(text)


def _positive(given: Mapping[str, str], name: str) -> int | None:
    number = _natural(given, name)
    if number == 0:
        raise ConfigError(f"option {name} is 0: expected a number above it")
    return number


def flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return a boolean option.

    :param given: the options by names in lower case.
    :raises ConfigError: the option is neither true nor false.
    """
    return _word(given, name, ("true", "false"), str(default).lower()) == "true"


def _word(given: Mapping[str, str], name: str, words: tuple[str, ...], default: str) -> str:
    text = given.get(name.lower(), default).strip().lower()
    if text not in words:
        raise ConfigError(f"option {name} is {text!r}: expected {' or '.join(words)}")
    return text
