"""PURE. Kafka's small text files: offset checkpoints, leader epochs, topic id, clean shutdown mark.

This module formats and parses the texts. ``vfs.write_atomically`` replaces each file atomically.

A malformed file raises :class:`CorruptCheckpointError` with its path. The caller decides how to
continue, since each file can be rebuilt or omitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from kraftjbod.core.errors import InvalidUuidText, KraftJbodError
from kraftjbod.core.ids import UNKNOWN_BROKER_EPOCH, BrokerEpoch, TopicId, TopicPartition, Uuid

_VERSION: Final = "0"
_TOPIC_ID_KEY: Final = "topic_id"


class CorruptCheckpointError(KraftJbodError):
    """A checkpoint file is malformed. The message names the file."""


def format_offsets(offsets: Mapping[TopicPartition, int]) -> bytes:
    """Return the content of an offset checkpoint: version, count, ``topic partition offset``
    lines.
    """
    lines = (f"{tp.topic} {tp.partition} {offset}" for tp, offset in sorted(offsets.items()))
    return _format_lines(lines)


def parse_offsets(text: str, path: str) -> dict[TopicPartition, int]:
    """Parse the text of an offset checkpoint.

    :raises CorruptCheckpointError: wrong version or count, or a malformed line.
    """
    offsets: dict[TopicPartition, int] = {}
    for line in _parse_lines(text, path):
        match line.split(" "):
            case [topic, partition, offset] if partition.isdecimal() and _is_int(offset):
                offsets[TopicPartition(topic, int(partition))] = int(offset)
            case _:
                raise CorruptCheckpointError(f"{path}: malformed line {line!r}")
    return offsets


def format_leader_epochs(entries: Iterable[tuple[int, int]]) -> bytes:
    """Return the content of ``leader-epoch-checkpoint``: version, count, ``epoch start_offset``
    lines.
    """
    return _format_lines(f"{epoch} {start_offset}" for epoch, start_offset in entries)


def parse_leader_epochs(text: str, path: str) -> list[tuple[int, int]]:
    """Parse the text of ``leader-epoch-checkpoint`` into pairs of epoch and start offset.

    :raises CorruptCheckpointError: wrong version or count, or a malformed line.
    """
    entries = []
    for line in _parse_lines(text, path):
        match line.split(" "):
            case [epoch, start_offset] if epoch.isdecimal() and start_offset.isdecimal():
                entries.append((int(epoch), int(start_offset)))
            case _:
                raise CorruptCheckpointError(f"{path}: malformed line {line!r}")
    return entries


def format_partition_metadata(topic_id: TopicId) -> bytes:
    return f"version: {_VERSION}\n{_TOPIC_ID_KEY}: {topic_id}".encode()


def parse_partition_metadata(text: str, path: str) -> TopicId:
    """Return the topic id in the text of ``partition.metadata``.

    :raises CorruptCheckpointError: the text has no valid topic id.
    """
    for line in text.splitlines():
        key, _, value = line.partition(": ")
        if key == _TOPIC_ID_KEY:
            try:
                return TopicId.parse(value.strip())
            except InvalidUuidText as e:
                raise CorruptCheckpointError(f"{path}: {e}") from e
    raise CorruptCheckpointError(f"{path}: no {_TOPIC_ID_KEY}")


class CleanShutdown(NamedTuple):
    """Content of a clean shutdown mark: epoch and incarnation of the broker that closed the
    directory.

    The epoch alone is ambiguous: it is an offset, and another metadata log may have the same one.
    """

    broker_epoch: BrokerEpoch = UNKNOWN_BROKER_EPOCH
    incarnation_id: Uuid | None = None


NO_CLEAN_SHUTDOWN: Final = CleanShutdown()


def format_clean_shutdown(stop: CleanShutdown) -> bytes:
    stopped = {"version": 0, "brokerEpoch": stop.broker_epoch}
    named = {} if stop.incarnation_id is None else {"incarnationId": str(stop.incarnation_id)}
    return json.dumps(stopped | named).encode()


def parse_clean_shutdown(text: str, path: str) -> CleanShutdown:
    """Parse the text of the clean shutdown mark. Missing fields give epoch -1 and no incarnation.

    :raises CorruptCheckpointError: the text is no JSON object, or a field is invalid.
    """
    try:
        content = json.loads(text)
    except ValueError as e:
        raise CorruptCheckpointError(f"{path}: {e}") from e
    if not isinstance(content, dict):
        raise CorruptCheckpointError(f"{path}: no JSON object")
    epoch, incarnation = content.get("brokerEpoch", -1), content.get("incarnationId")
    try:
        return CleanShutdown(
            BrokerEpoch(int(epoch)), None if incarnation is None else Uuid.parse(str(incarnation))
        )
    except (TypeError, ValueError, InvalidUuidText) as e:
        raise CorruptCheckpointError(f"{path}: {e}") from e


def _format_lines(lines: Iterable[str]) -> bytes:
    listed = list(lines)
    return "\n".join([_VERSION, str(len(listed)), *listed, ""]).encode()


def _parse_lines(text: str, path: str) -> Iterator[str]:
    lines = text.splitlines()
    if len(lines) < 2 or lines[0] != _VERSION:
        raise CorruptCheckpointError(f"{path}: expected version {_VERSION} and a count")
    if lines[1] != str(len(lines) - 2):
        raise CorruptCheckpointError(f"{path}: {lines[1]} entries claimed, {len(lines) - 2} found")
    return iter(lines[2:])


def _is_int(text: str) -> bool:
    return text.removeprefix("-").isdecimal()
