"""PURE. Records of ``__storage_telemetry``: what brokers say of their log directories and replicas.

One JSON object per record, keys as the fields here, in two kinds: :class:`LogDirSample` and
:class:`ReplicaSample`. ``schema`` is the version; a reader takes records of its own version and
older, and finds fields that it does not know harmless. Counters (``…_total``, ``io_counts``) begin
at 0 with each ``incarnation`` of a broker; a directory that comes back from OFFLINE begins anew too
and says so by another ``since_ms``. A replica's counters stay with it when it moves to another
directory of its broker. docs/storage-telemetry.md says the same for people.
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
    """Who says it, and when. ``incarnation`` is drawn anew whenever a broker process starts."""

    cluster_id: str
    broker_id: int
    rack: str | None
    incarnation: str
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LogDirSample:
    """One log directory. Sizes in bytes.

    * ``state``: online, saturated, stalled or offline. Offline: every figure is 0 but
      ``queued_assignments``, and the buckets are empty.
    * ``total_bytes``, ``free_bytes`` are the file system's; ``replica_bytes`` what replicas and
      future copies hold; ``growth_bytes_per_s`` how fast the free bytes shrink, by the broker, and
      ``log_growth_bytes_per_s`` how fast the directory's own logs grow.
    * ``appended_bytes_total``: appends of leaders and followers; ``fetched_bytes_total``: to
      consumers and followers.
    * ``io_bounds_ms`` are the upper ends of the latency buckets, the last without one left out;
      ``io_counts`` counts operations per bucket (one more than bounds); ``io_total`` and
      ``io_errors_total`` count all of them.
    * ``latency_ms`` is the broker's own moving average, ``is_slow`` its judgement.
    * ``queued_assignments`` waits for the controller; ``moves_in``/``moves_out`` are replicas on
      their way into or out of this directory, ``moves_remaining_bytes`` what those into it lack.
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
    """One replica, or the future copy of one, where it lies. ``brokers`` is its assignment.

    A future copy is what a move builds: it leads nothing, and its counters are 0.
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
    """Its fields' names, and what reads them all: four thousand replicas are a lot of fields."""
    found = _readers.get(kind)
    if found is None:
        names = tuple(field.name for field in fields(kind))
        found = _readers[kind] = names, attrgetter(*names)
    return found


_readers: Final[dict[type, tuple[tuple[str, ...], Any]]] = {}
_KINDS: Final = {LogDirSample: "log_dir", ReplicaSample: "replica"}
_to_json: Final = json.JSONEncoder(separators=(",", ":")).encode


def encode(origin: Origin, sample: LogDirSample | ReplicaSample) -> bytes:
    """The value of one record."""
    return encode_sample(_KINDS[type(sample)], origin, sample)


def encode_sample(kind: str, origin: Origin, sample: object) -> bytes:
    """The same for a sample of any kind: a dataclass of plain values."""
    document: dict[str, Any] = {"schema": SCHEMA, "kind": kind}
    for said in (origin, sample):
        names, read = _reader_of(type(said))
        document.update(zip(names, read(said), strict=True))
    return _to_json(document).encode()


def record_key(origin: Origin, sample: LogDirSample | ReplicaSample) -> bytes:
    """Records of one directory, and of one replica, have one key."""
    if isinstance(sample, LogDirSample):
        return f"{origin.broker_id}:{sample.directory_id}".encode()
    return f"{origin.broker_id}:{sample.topic}-{sample.partition}".encode()
