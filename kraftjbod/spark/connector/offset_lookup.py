"""WIRE. Requests of the driver to the cluster: the partitions of a read, and their offsets.

* A lookup needs one metadata request and one request per leader, for any number of partitions.
* No request creates a topic.
* Leader elections are awaited up to :data:`PATIENCE_S`. If no broker was ever reached, the lookup
  fails after :data:`FIRST_CONTACT_S`: the hosts or the security settings are wrong.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from confluent_kafka import (
    OFFSET_INVALID,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
)
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka import admin as client_admin

from kraftjbod.core.errors import (
    RETRIABLE_CODES,
    ConfigError,
    OperatingError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.connector.offsets import Offsets
from kraftjbod.spark.connector.options import (
    EARLIEST,
    LATEST,
    Assign,
    AtOffset,
    AtOffsets,
    AtTime,
    AtTimes,
    Position,
    SourceOptions,
    Subscribe,
    SubscribePattern,
)

T = TypeVar("T")
#: A class of the client library, which does not name it as its own to type checkers.
_Spec: Any = client_admin.OffsetSpec  # type: ignore[attr-defined] # re-exported by habit

#: Time limit for partitions without a leader, and for brokers that do not answer.
PATIENCE_S: Final = 30.0
#: Time limit for the first response of any broker, while connections fail.
FIRST_CONTACT_S: Final = 5.0
_REQUEST_S: Final = 15.0
#: The client library reports errors only when it is polled.
_POLL_S: Final = 0.05
_BACKOFF_S: Final = 0.1
#: Transient errors of the client library itself.
_TRANSIENT: Final = frozenset(
    {
        *RETRIABLE_CODES,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._NOENT,  # no leader of a partition is known
        KafkaError._RESOLVE,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._TRANSPORT,
        KafkaError._WAIT_COORD,
    }
)
#: Responses of the client library about partitions of a recently deleted topic.
_MAYBE_GONE: Final = frozenset({KafkaError._NOENT, KafkaError.UNKNOWN_TOPIC_OR_PART})


def is_transient(error: Any) -> bool:
    """Return whether ``error`` of the client library is transient."""
    return error.code() in _TRANSIENT


def quiet(settings: Mapping[str, str]) -> dict[str, Any]:
    """Return ``settings`` with a level that keeps librdkafka's log lines off standard error.

    A level in ``settings`` has priority. The errors that the source raises have the same
    information.
    """
    return {"log_level": "2", **settings}


def make_client(build: Callable[[dict[str, Any]], T], settings: Mapping[str, Any]) -> T:
    """Create a client of librdkafka.

    :param build: class of the client, called with the settings.
    :raises ConfigError: the client rejects a setting; names it.
    """
    try:
        return build(dict(settings))
    except KafkaException as e:
        raise ConfigError(f"an option kafka.* is wrong: {e.args[0].str()}") from e


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """The partitions that a query reads, as they exist now, and the ids of their topics by name."""

    partitions: frozenset[TopicPartition]
    topic_ids: Mapping[str, str]


class OffsetLookup:
    """Queries partitions and offsets for one query. The object is created on the driver and not
    sent to executors.

    Each request blocks for up to ``patience_s`` seconds, or for 5 s if connections fail and no
    broker has ever responded. Then it raises :class:`RequestTimedOutError`; for an error that is
    not transient it raises :class:`OperatingError` at once.
    """

    def __init__(self, options: SourceOptions, *, patience_s: float = PATIENCE_S) -> None:
        self._options = options
        self._patience_s = patience_s
        self._request_s = min(_REQUEST_S, patience_s)
        #: The last error that the client library reported.
        self._trouble = ""
        #: Whether any broker has responded.
        self._is_reached = False
        self._began_s = time.monotonic()
        is_committed = options.kafka.get("isolation.level") == "read_committed"
        self._isolation = (
            IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED
        )
        self._admin = self._connect()

    def assigned(self, known: Collection[str] = (), *, must_exist: bool) -> Assigned:
        """Return the existing partitions that the options name, and the ids of their topics.

        :param known: topics that the query has read before, which are included unless the option
            ``assign`` names the partitions.
        :param must_exist: whether a missing topic or partition is an error. Otherwise it is omitted
            after ``fetchOffset.numRetries`` attempts.
        :raises UnknownTopicOrPartitionError: naming the missing topic or partition.
        """
        found: dict[str, Any] = {}
        missing: list[str] = []
        for attempt in range(self._options.fetch_offset_retries):
            if attempt:
                time.sleep(self._options.fetch_offset_retry_interval_ms / 1000)
            found = self._describe({*self._named_topics(), *known})
            missing = sorted(name for name, topic in found.items() if topic is None)
            if not missing:
                break
        if missing and must_exist:
            raise UnknownTopicOrPartitionError(
                f"no such topic: {', '.join(missing)}. Create it, or name another"
            )
        there = {name: topic for name, topic in found.items() if topic is not None}
        partitions = frozenset(
            TopicPartition(name, part.id)
            for name, topic in there.items()
            for part in topic.partitions
        )
        if isinstance(self._options.topics, Assign):
            wanted = self._options.topics.partitions
            odd = sorted(p for p in wanted - partitions if p.topic in there)
            if odd and must_exist:
                raise UnknownTopicOrPartitionError(
                    f"no such partition: {', '.join(map(str, odd))}. See option assign"
                )
            partitions &= wanted
        return Assigned(
            partitions=partitions, topic_ids={n: str(topic.topic_id) for n, topic in there.items()}
        )

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first offset of each partition. Deleted partitions are omitted."""
        return self._offsets(dict.fromkeys(partitions, _Spec.earliest()))

    def latest(
        self, partitions: Iterable[TopicPartition], at_least: Offsets | None = None
    ) -> dict[TopicPartition, int]:
        """Return the offset after the last record of each partition. Deleted partitions are
        omitted.

        :param at_least: position of the query. A new leader may briefly report a lower offset, and
            is then queried again, up to ``fetchOffset.numRetries`` times.
        """
        wanted = list(partitions)
        found: dict[TopicPartition, int] = {}
        for attempt in range(self._options.fetch_offset_retries):
            if attempt:
                time.sleep(self._options.fetch_offset_retry_interval_ms / 1000)
            found = self._offsets(dict.fromkeys(wanted, _Spec.latest()))
            if all(offset <= found.get(p, offset) for p, offset in (at_least or {}).items()):
                break
        return found

    def resolve(
        self, position: Position, partitions: Collection[TopicPartition], *, is_start: bool
    ) -> dict[TopicPartition, int]:
        """Return the offset of each partition at ``position``; an offset may be outside the log.

        Deleted partitions are omitted, unless the options name an offset of 0 or more.

        An ending timestamp without a record gives the log end.

        :param is_start: whether ``position`` is the start of the query, else its end.
        :raises ConfigError: the options omit a partition of ``partitions`` or name any other. Or a
            partition has no record for a starting timestamp, and the strategy is not latest.
        """
        which = "starting" if is_start else "ending"
        match position:
            case AtOffset(offset=offset):
                places = dict.fromkeys(partitions, offset)
            case AtOffsets(offsets=offsets):
                _check_named(f"{which}Offsets", offsets.keys(), partitions)
                places = dict(offsets)
            case AtTime(timestamp_ms=time_ms):
                places = self._at_times(dict.fromkeys(partitions, time_ms), is_start=is_start)
            case AtTimes(timestamps_ms=times):
                _check_named(f"{which}OffsetsByTimestamp", times.keys(), partitions)
                places = self._at_times(times, is_start=is_start)
        first = self.earliest(p for p, offset in places.items() if offset == EARLIEST)
        last = self.latest(p for p, offset in places.items() if offset == LATEST)
        given = {p: offset for p, offset in places.items() if offset not in (EARLIEST, LATEST)}
        return {**given, **first, **last}

    def _at_times(
        self, times: Mapping[TopicPartition, int], *, is_start: bool
    ) -> dict[TopicPartition, int]:
        found = self._offsets({p: _Spec.for_timestamp(time) for p, time in times.items()})
        if is_start and not self._options.starts_latest_without_match:
            for partition, offset in sorted(found.items()):
                if offset < 0:
                    raise ConfigError(
                        f"{partition} has no record as young as {times[partition]} ms to begin at; "
                        "with startingOffsetsByTimestampStrategy=latest it begins at its end"
                    )
        return {p: offset if offset >= 0 else LATEST for p, offset in found.items()}

    def _named_topics(self) -> set[str]:
        match self._options.topics:
            case Subscribe(topics=topics):
                return set(topics)
            case Assign(partitions=partitions):
                return {partition.topic for partition in partitions}
            case SubscribePattern(pattern=pattern):
                self._ask("topics", self._reach)
                listed = self._ask(
                    "topics", lambda: self._admin.list_topics(timeout=self._request_s)
                )
                return {name for name in listed.topics if re.fullmatch(pattern, name)}

    def _describe(self, topics: Collection[str]) -> dict[str, Any]:
        """Return the client library's description of each topic; None for a topic that does not
        exist."""
        if not topics:
            return {}

        def attempt() -> dict[str, Any]:
            futures = self._admin.describe_topics(
                TopicCollection(sorted(topics)), request_timeout=self._request_s
            )
            self._wait(futures.values())
            return {name: _result(future, None) for name, future in futures.items()}

        found = self._ask("topics", attempt)
        if isinstance(self._options.topics, SubscribePattern):
            return {
                n: topic for n, topic in found.items() if topic is None or not topic.is_internal
            }
        return found

    def _offsets(self, wanted: Mapping[TopicPartition, Any]) -> dict[TopicPartition, int]:
        asked = dict(wanted)

        def attempt() -> dict[TopicPartition, int]:
            if not asked:
                return {}
            futures = self._admin.list_offsets(
                {ClientPartition(p.topic, p.partition): spec for p, spec in asked.items()},
                isolation_level=self._isolation,
                request_timeout=self._request_s,
            )
            self._wait(futures.values())
            try:
                return {
                    TopicPartition(p.topic, p.partition): _given(future.result().offset)
                    for p, future in futures.items()
                }
            except KafkaException as e:
                if e.args[0].code() in _MAYBE_GONE:
                    self._drop_deleted_partitions(asked)
                raise

        return self._ask("offsets", attempt)

    def _drop_deleted_partitions(self, asked: dict[TopicPartition, Any]) -> None:
        described = self._describe({partition.topic for partition in asked})
        there = {
            TopicPartition(name, part.id)
            for name, topic in described.items()
            if topic is not None
            for part in topic.partitions
        }
        for partition in asked.keys() - there:
            del asked[partition]

    def _reach(self) -> None:
        """Wait until any broker responds to a DescribeCluster.

        :raises KafkaException: no broker responded in time.
        :raises RequestTimedOutError: as :meth:`_wait`.
        """
        future = self._admin.describe_cluster(request_timeout=self._request_s)
        self._wait([future])
        future.result()

    def _wait(self, futures: Iterable[Any]) -> None:
        """Wait until all futures are done.

        :raises RequestTimedOutError: connections fail, and no broker has ever responded.
        """
        for future in futures:
            while not future.done():
                self._admin.poll(_POLL_S)
                self._require_contact()

    def _require_contact(self) -> None:
        patience_s = min(FIRST_CONTACT_S, self._patience_s)
        is_over = time.monotonic() - self._began_s >= patience_s
        if is_over and self._trouble and not self._is_reached:
            raise RequestTimedOutError(
                f"{self._options.kafka['bootstrap.servers']} cannot be reached (see the options "
                f"kafka.bootstrap.servers, kafka.security.protocol and kafka.ssl.*): "
                f"{self._trouble}"
            )

    def _ask(self, what: str, attempt: Callable[[], T]) -> T:
        """Call ``attempt`` until it succeeds, each time with a new client; return its result.

        A client that asked a leader with an old epoch would repeat that until its metadata expires.

        :param what: the requested data, for the error.
        :raises OperatingError: an error that is not transient.
        :raises RequestTimedOutError: the time limit is over; names the last error.
        """
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                answer = attempt()
            except KafkaException as e:
                error = e.args[0]
                if not is_transient(error):
                    raise OperatingError(f"the cluster does not give {what}: {error.str()}") from e
                if time.monotonic() >= deadline:
                    raise RequestTimedOutError(
                        f"{self._options.kafka['bootstrap.servers']} did not give {what} in "
                        f"{self._patience_s:g} s: {self._trouble or error.str()}"
                    ) from e
            else:
                self._is_reached = True
                return answer
            time.sleep(_BACKOFF_S)
            self._admin = self._connect()

    def _connect(self) -> Any:
        settings = {**quiet(self._options.kafka), "error_cb": self._on_error}
        return make_client(client_admin.AdminClient, settings)

    def _on_error(self, error: Any) -> None:
        # A more specific error is kept: "all brokers down" does not say why.
        if error.code() != KafkaError._ALL_BROKERS_DOWN or not self._trouble:
            self._trouble = error.str()


def _given(offset: int) -> int:
    """Return ``offset``.

    :raises KafkaException: it is not valid: the client library reports no error for a lost leader.
    """
    if offset == OFFSET_INVALID:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no offset was given"))
    return offset


def _result(future: Any, missing: Any) -> Any:
    """Return a future's result, or ``missing`` if the topic or partition does not exist."""
    try:
        return future.result()
    except KafkaException as e:
        if e.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return missing


def _check_named(
    option: str, named: Collection[TopicPartition], there: Collection[TopicPartition]
) -> None:
    """Check that an option with offsets by partition names exactly the partitions of the query.

    :raises ConfigError: it omits a partition, or names another one.
    """
    forgotten = sorted(set(there) - set(named))
    if forgotten:
        raise ConfigError(
            f"option {option} names no offset for {', '.join(map(str, forgotten))}: name every "
            "partition, with -1 for the end and -2 for the beginning"
        )
    odd = sorted(set(named) - set(there))
    if odd:
        raise ConfigError(
            f"option {option} names {', '.join(map(str, odd))}, which this query does not read"
        )
