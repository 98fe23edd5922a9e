"""WIRE. Parses the files of ``kraftjbod-reassign-partitions``: the requested place of each replica.

The format is Kafka's JSON (KIP-113, "Scripts"). A directory is ``any``, an absolute path, or, with
kraftjbod only, ``dirid:`` and a directory id.

* A file is checked completely before any request is sent.
* Every error message names the place in the file.

The existence of brokers, topics and directories is checked elsewhere.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kraftjbod.core.errors import InvalidUuidText, KraftJbodError
from kraftjbod.core.ids import ANY_DIRECTORY, DIRECTORY_ID_PREFIX, DirectoryId, TopicPartition

_VERSION: Final = 1


class ReassignmentError(KraftJbodError):
    """The requested reassignment is impossible or malformed."""


class Replica(NamedTuple):
    """A replica of a partition on a broker.

    Replicas are ordered by broker, topic and partition, as in kafka-reassign-partitions.
    """

    broker_id: int
    topic: str
    partition: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}-{self.broker_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReassignmentPlan:
    """Brokers by partition, the preferred leader first, and directories by replica.

    A replica without an entry in ``log_dirs`` may be in any directory of its broker.
    """

    replicas: Mapping[TopicPartition, tuple[int, ...]]
    log_dirs: Mapping[Replica, str] = field(default_factory=dict)

    @property
    def topics(self) -> list[str]:
        return sorted({partition.topic for partition in self.replicas})

    @property
    def brokers(self) -> list[int]:
        return sorted({broker for brokers in self.replicas.values() for broker in brokers})

    def dirs_of(self, partition: TopicPartition) -> list[str]:
        """Return the directories of a partition's replicas, in the order of its brokers.

        ``any`` stands for a replica without an entry.
        """
        topic, index = partition
        return [
            self.log_dirs.get(Replica(broker, topic, index), ANY_DIRECTORY)
            for broker in self.replicas[partition]
        ]

    def document(self) -> dict[str, Any]:
        """Return Kafka's document, sorted by partition."""
        partitions = [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "replicas": brokers,
                "log_dirs": self.dirs_of(partition),
            }
            for partition, brokers in sorted(self.replicas.items())
        ]
        return {"version": _VERSION, "partitions": partitions}

    def as_json(self) -> str:
        """Return Kafka's document as text on one line."""
        return json.dumps(self.document(), separators=(",", ":"))


def parse_reassignment(text: str) -> ReassignmentPlan:
    """Parse the content of ``--reassignment-json-file``.

    :raises ReassignmentError: it is malformed; with the text of Kafka's tool if it has one.
    """
    replicas: dict[TopicPartition, tuple[int, ...]] = {}
    log_dirs: dict[Replica, str] = {}
    entries = _entries(text, "partitions")
    if not entries:
        raise ReassignmentError("Partition reassignment list cannot be empty")
    named = []
    for place, entry in entries:
        partition = TopicPartition(
            _field(entry, place, "topic", str), _field(entry, place, "partition", int)
        )
        brokers = _list(entry, place, "replicas", int)
        if not brokers:
            raise ReassignmentError(f"Partition replica list cannot be empty: {partition}")
        named.append(partition)
        replicas[partition] = tuple(brokers)
        for broker, log_dir in zip(brokers, _log_dirs(entry, place, partition), strict=True):
            if log_dir != ANY_DIRECTORY:
                log_dirs[Replica(broker, *partition)] = log_dir
    _refuse_duplicates(named, "Partition reassignment contains duplicate topic partitions: {}")
    doubled = [
        f"{partition} contains multiple entries for {_joined(_duplicates(brokers))}"
        for partition, brokers in replicas.items()
        if _duplicates(brokers)
    ]
    if doubled:
        raise ReassignmentError(
            "Partition replica lists may not contain duplicate entries: " + ". ".join(doubled)
        )
    return ReassignmentPlan(replicas=replicas, log_dirs=log_dirs)


def parse_topics(text: str) -> list[str]:
    """Return the topic names in the content of ``--topics-to-move-json-file``.

    :raises ReassignmentError: it is malformed.
    """
    topics: list[str] = [
        _field(entry, place, "topic", str) for place, entry in _entries(text, "topics")
    ]
    if not topics:
        raise ReassignmentError("List of topics to reassign cannot be empty")
    _refuse_duplicates(topics, "List of topics to reassign contains duplicate entries: [{}]")
    return topics


def parse_broker_list(text: str) -> list[int]:
    """Parse ``1,2,3`` to broker ids.

    :raises ReassignmentError: a part is not a broker id, or a duplicate; the message names it.
    """
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not (part.isascii() and part.isdigit()):
            raise ReassignmentError(f"Broker list {text!r}: {part!r} is not a broker id")
    brokers = [int(part) for part in parts]
    _refuse_duplicates(brokers, "Broker list contains duplicate entries: [{}]")
    return brokers


def _entries(text: str, key: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the objects in the list ``key`` of a version 1 document, each with its place in the
    file.

    :raises ReassignmentError: the document is malformed.
    """
    try:
        document = json.loads(text)
    except ValueError as e:
        raise ReassignmentError(f"The input string is not a valid JSON: {e}") from e
    if not isinstance(document, dict):
        raise ReassignmentError(f"expected an object with {key!r}, found {_shown(document)}")
    version = document.get("version", _VERSION)
    if version != _VERSION:
        raise ReassignmentError(f"Not supported version field value {version}")
    entries = document.get(key, [])
    if not isinstance(entries, list):
        raise ReassignmentError(f"{key}: expected a list, found {_shown(entries)}")
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise ReassignmentError(f"{key}[{index}]: expected an object, found {_shown(entry)}")
    return [(f"{key}[{index}]", entry) for index, entry in enumerate(entries)]


_KINDS: Final = {str: "a name", int: "a number >= 0"}


def _field(entry: Mapping[str, Any], place: str, name: str, kind: type[Any]) -> Any:
    if name not in entry:
        raise ReassignmentError(f"{place}: {name!r} is missing")
    return _checked(entry[name], f"{place}.{name}", kind)


def _list(entry: Mapping[str, Any], place: str, name: str, kind: type[Any]) -> list[Any]:
    values = entry.get(name)
    if not isinstance(values, list):
        raise ReassignmentError(f"{place}.{name}: expected a list, found {_shown(values)}")
    return [_checked(value, f"{place}.{name}[{index}]", kind) for index, value in enumerate(values)]


def _checked(value: Any, place: str, kind: type[Any]) -> Any:
    # In Python, JSON's true is an int.
    is_bad_number = isinstance(value, bool) or (
        kind is int and isinstance(value, int) and value < 0
    )
    if not isinstance(value, kind) or is_bad_number or value == "":
        raise ReassignmentError(f"{place}: expected {_KINDS[kind]}, found {_shown(value)}")
    return value


def _log_dirs(entry: Mapping[str, Any], place: str, partition: TopicPartition) -> list[str]:
    """Return the directories of an entry, in the order of its replicas.

    :raises ReassignmentError: they are malformed.
    """
    replicas = entry["replicas"]
    if "log_dirs" not in entry:
        return [ANY_DIRECTORY] * len(replicas)
    log_dirs = _list(entry, place, "log_dirs", str)
    if len(log_dirs) != len(replicas):
        raise ReassignmentError(
            f"Size of replicas list [{_joined(replicas)}] is different from size of log dirs list"
            f" [{_joined(log_dirs)}] for partition {partition}"
        )
    return [
        _checked_log_dir(log_dir, f"{place}.log_dirs[{index}]")
        for index, log_dir in enumerate(log_dirs)
    ]


def _checked_log_dir(text: str, place: str) -> str:
    try:
        if text == ANY_DIRECTORY or DirectoryId.from_reference(text) is not None:
            return text
    except InvalidUuidText as e:
        raise ReassignmentError(f"{place}: {e}") from e
    if not text.startswith("/"):
        raise ReassignmentError(
            f"{place}: {text!r} is neither {ANY_DIRECTORY!r} nor an absolute path"
            f" nor {DIRECTORY_ID_PREFIX}<id>"
        )
    return text.rstrip("/") or "/"


def _refuse_duplicates(values: Sequence[Any], complaint: str) -> None:
    doubled = _duplicates(values)
    if doubled:
        raise ReassignmentError(complaint.format(_joined(doubled)))


def _duplicates(values: Iterable[Any]) -> list[Any]:
    return [value for value, times in Counter(values).items() if times > 1]


def _joined(values: Iterable[Any]) -> str:
    return ", ".join(map(str, values))


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
