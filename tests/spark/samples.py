"""Samples as brokers send them, with default values for all fields."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructType

from kraftjbod.protocol.telemetry.storage_telemetry import LogDirSample, Origin, ReplicaSample
from kraftjbod.spark.tables.schemas import LOG_DIR_SAMPLES, REPLICA_SAMPLES

# A round minute; times in tests are seconds after it.
START: Final = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
START_MS: Final = int(START.timestamp() * 1000)
GIB: Final = 1 << 30
BOUNDS: Final = (1, 2, 4, 8)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def origin(seconds: float = 0, *, broker_id: int = 1, **changes: Any) -> Origin:
    fields: dict[str, Any] = {
        "cluster_id": "cluster",
        "broker_id": broker_id,
        "rack": None,
        "incarnation": "first",
        "time_ms": START_MS + round(seconds * 1000),
    }
    return Origin(**{**fields, **changes})


def log_dir(path: str = "/d1", **changes: Any) -> LogDirSample:
    fields: dict[str, Any] = {
        "directory_id": f"id-of-{path}",
        "path": path,
        "state": "online",
        "is_cordoned": False,
        "since_ms": START_MS,
        "total_bytes": 100 * GIB,
        "free_bytes": 60 * GIB,
        "replica_bytes": 30 * GIB,
        "replicas": 3,
        "growth_bytes_per_s": 0.0,
        "appended_bytes_total": 0,
        "fetched_bytes_total": 0,
        "io_total": 0,
        "io_errors_total": 0,
        "io_bounds_ms": BOUNDS,
        "io_counts": (0,) * (len(BOUNDS) + 1),
        "latency_ms": 1.0,
        "is_slow": False,
        "queued_assignments": 0,
        "moves_in": 0,
        "moves_out": 0,
        "moves_remaining_bytes": 0,
    }
    return LogDirSample(**{**fields, **changes})


def replica(topic: str = "t", partition: int = 0, **changes: Any) -> ReplicaSample:
    fields: dict[str, Any] = {
        "directory_id": "id-of-/d1",
        "path": "/d1",
        "topic": topic,
        "topic_id": f"id-of-{topic}",
        "partition": partition,
        "is_future": False,
        "is_leader": True,
        "size_bytes": 0,
        "log_start_offset": 0,
        "log_end_offset": 0,
        "appended_bytes_total": 0,
        "fetched_bytes_total": 0,
        "brokers": (1, 2),
    }
    return ReplicaSample(**{**fields, **changes})


def log_dir_frame(spark: SparkSession, said: Sequence[tuple[Origin, LogDirSample]]) -> DataFrame:
    return _frame(spark, said, LOG_DIR_SAMPLES)


def replica_frame(spark: SparkSession, said: Sequence[tuple[Origin, ReplicaSample]]) -> DataFrame:
    return _frame(spark, said, REPLICA_SAMPLES)


def _frame(
    spark: SparkSession,
    said: Sequence[tuple[Origin, LogDirSample | ReplicaSample]],
    schema: StructType,
) -> DataFrame:
    return spark.createDataFrame([row(*one, schema) for one in said], schema)


def row(who: Origin, sample: LogDirSample | ReplicaSample, schema: StructType) -> Row:
    """Return a sample as a row of its table."""
    values = []
    for name in schema.names:
        sent = f"{name}_ms" if name in ("time", "since") else name
        value = getattr(who, sent) if hasattr(who, sent) else getattr(sample, sent)
        if name in ("time", "since"):
            value = at((value - START_MS) / 1000)
        values.append(list(value) if isinstance(value, tuple) else value)
    return Row(*schema.names)(*values)
