"""PURE. Records of ``__storage_telemetry``: reports of brokers about log directories and replicas.

A record is one JSON object, whose keys are the fields of :class:`Origin` and of
:class:`LogDirSample` or :class:`ReplicaSample`, ``kind`` and ``schema`` (the version). A reader
accepts its own and older versions, and ignores unknown fields. Counters (``…_total``,
``io_counts``) start at 0 with each ``incarnation`` of a broker. Those of a directory also restart
when it is reattached, which changes ``since_ms``. The counters of a replica continue when it moves
to another directory of its broker.

docs/storage-telemetry.md documents the format for users.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final

TOPIC: Final = "__storage_telemetry"
SCHEMA: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Sender and time of a sample. ``incarnation`` is a new random id per broker process.

    Times of all samples (``time_ms``, ``since_ms``, ``committed_ms``) are wall-clock ms.
    """

    cluster_id: str
    broker_id: int
    rack: str | None
    incarnation: str
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirSample:
    """One log directory. Sizes are in bytes.

    * ``state``: online, saturated, stalled or offline. If offline, all figures except
      ``queued_assignments`` are 0, and the buckets are empty.
    * ``total_bytes`` and ``free_bytes`` are the file system's. ``replica_bytes`` is the size of
      replicas and future copies. ``growth_bytes_per_s`` is the rate at which free bytes shrink, as
      the broker measures it, and ``log_growth_bytes_per_s`` the growth of the directory's logs.
    * ``appended_bytes_total``: appends of leaders and followers. ``fetched_bytes_total``: bytes
      sent to consumers and followers.
    * ``io_bounds_ms`` are the upper bounds of the latency buckets, without the unbounded last one.
      ``io_counts`` counts operations per bucket (one more than bounds). ``io_total`` and
      ``io_errors_total`` count all operations and all failed ones.
    * ``latency_ms`` is the broker's moving average, ``is_slow`` whether it is rated as slow.
    * ``queued_assignments`` are waiting for the controller. ``moves_in`` and ``moves_out`` are
      replicas that are moving into or out of this directory, and ``moves_remaining_bytes`` are
      the bytes still to be copied into it.
    """

    directory_id: str
    path: str
    state: str
    is_cordoned: bool
    since_ms: int
    total_bytes: int = 0
    free_bytes: int = 0
    replica_bytes: int = 0
    replicas: int = 0
    growth_bytes_per_s: float = 0.0
    log_growth_bytes_per_s: float = 0.0
    appended_bytes_total: int = 0
    fetched_bytes_total: int = 0
    io_total: int = 0
    io_errors_total: int = 0
    io_bounds_ms: tuple[int, ...] = ()
    io_counts: tuple[int, ...] = ()
    latency_ms: float = 0.0
    is_slow: bool = False
    queued_assignments: int = 0
    moves_in: int = 0
    moves_out: int = 0
    moves_remaining_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSample:
    """One replica in its directory, or the future copy of a replica. ``brokers`` is its assignment.

    A move between directories builds a future copy, which is no leader and whose counters are 0.
    """

    directory_id: str
    path: str
    topic: str
    topic_id: str
    partition: int
    is_future: bool
    is_leader: bool
    size_bytes: int
    log_start_offset: int
    log_end_offset: int
    appended_bytes_total: int
    fetched_bytes_total: int
    brokers: tuple[int, ...]


def _reader_of(kind: type) -> tuple[tuple[str, ...], Any]:
    """Return the field names of ``kind``, and a function that reads all fields of an instance."""
    found = _readers.get(kind)
    if found is None:
        names = tuple(field.name for field in fields(kind))
        found = _readers[kind] = names, attrgetter(*names)
    return found


_readers: Final[dict[type, tuple[tuple[str, ...], Any]]] = {}
_KINDS: Final = {LogDirSample: "log_dir", ReplicaSample: "replica"}
_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode


def encode(origin: Origin, sample: LogDirSample | ReplicaSample) -> bytes:
    """Return the value of the record with ``sample``."""
    return encode_sample(_KINDS[type(sample)], origin, sample)


def encode_sample(kind: str, origin: Origin, sample: object) -> bytes:
    """Return the value of a record with ``sample``, a dataclass of plain values."""
    document: dict[str, Any] = {"schema": SCHEMA, "kind": kind}
    for said in (origin, sample):
        names, read = _reader_of(type(said))
        document.update(zip(names, read(said), strict=True))
    return _to_json(document).encode()


def record_key(origin: Origin, sample: LogDirSample | ReplicaSample) -> bytes:
    """Return the key of the record: broker and directory, or broker, topic and partition."""
    if isinstance(sample, LogDirSample):
        return f"{origin.broker_id}:{sample.directory_id}".encode()
    return f"{origin.broker_id}:{sample.topic}-{sample.partition}".encode()
