"""A generated day of a cluster in the real tables, for a report.

Broker 2's ``d1`` fails, broker 1's ``d3`` fills up, broker 3's ``d0`` stalls for a while, broker
3's ``d2`` is cordoned and emptied, broker 1's ``d0`` is slow. All other directories are healthy."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kraftjbod.spark.tables import schemas as tables

GIB: Final = 1024**3
TIB: Final = 1024**4
BEGIN: Final = datetime(2026, 11, 21, 0, 0, tzinfo=UTC)
HOURS: Final = 24
TOTAL: Final = 4 * TIB
# Names that a page must escape.
HOSTILE_PATH: Final = '/data/<img src=x onerror="alert(1)">&$x^2$'
HOSTILE_TOPIC: Final = "</script><script>alert(2)</script>"

Rows = Sequence[Mapping[str, Any]]


def write_table(folder: Path, name: str, schema: StructType, rows: Rows) -> None:
    """Write one Parquet file with the table's schema; columns that a row omits are null."""
    table = pa.Table.from_pylist(list(rows), schema=to_arrow_schema(schema, timezone="UTC"))
    (folder / name).mkdir(parents=True, exist_ok=True)
    pq.write_table(table, folder / name / "part-0.parquet")


def write_day(folder: Path, *, step_minutes: int = 10, brokers: int = 3, dirs: int = 4) -> None:
    """Write every table of a report."""
    windows = day_windows(step_minutes, brokers, dirs)
    write_table(folder, "log_dir_windows", tables.LOG_DIR_WINDOWS, windows)
    write_table(folder, "log_dir_samples", tables.LOG_DIR_SAMPLES, [_sample(w) for w in windows])
    write_table(folder, "log_dir_forecasts", tables.LOG_DIR_FORECASTS, forecasts(windows))
    write_table(folder, "log_dir_outliers", tables.LOG_DIR_OUTLIERS, outliers())
    write_table(folder, "growth", tables.GROWTH, growth())
    write_table(folder, "skew", tables.SKEW, skew(brokers))
    write_table(folder, "plan_dirs", tables.PLAN_DIRS, plan_dirs(brokers, dirs))
    write_table(folder, "plan_moves", tables.PLAN_MOVES, plan_moves())
    write_table(folder, "audit_differences", tables.AUDIT_DIFFERENCES, [])
    write_table(folder, "ingested", tables.INGESTED, ingested())


def path_of(broker: int, dir_: int) -> str:
    return HOSTILE_PATH if (broker, dir_) == (2, 3) else f"/data/d{dir_}"


def day_windows(step_minutes: int, brokers: int, dirs: int) -> list[dict[str, Any]]:
    draw = random.Random(7)
    rows = []
    for broker in range(1, brokers + 1):
        for dir_ in range(dirs):
            share, rate = draw.uniform(0.2, 0.5), draw.uniform(0.5, 2.0) * 1e6
            for minute in range(0, HOURS * 60, step_minutes):
                row = _well(draw, broker, dir_, minute / 60, share, rate)
                rows.append({**row, **_happens(broker, dir_, minute / 60, row)})
                rows[-1]["window_end"] = row["window_start"] + timedelta(minutes=step_minutes)
    return rows


def _well(
    draw: random.Random, broker: int, dir_: int, hour: float, share: float, rate: float
) -> dict[str, Any]:
    used = TOTAL * share + rate * hour * 3600
    load = 1 + 0.5 * math.sin(2 * math.pi * hour / 24)
    return {
        "window_start": BEGIN + timedelta(hours=hour),
        "broker_id": broker,
        "rack": f"r{broker}",
        "directory_id": f"id-{broker}-{dir_}",
        "path": path_of(broker, dir_),
        "state": "online",
        "is_cordoned": False,
        "total_bytes": TOTAL,
        "free_bytes": int(TOTAL - used),
        "replica_bytes": int(used * 0.98),
        "append_bytes_per_s": rate * load,
        "fetch_bytes_per_s": rate * load * 3,
        "io_per_s": 100.0 * load,
        "io_errors": 0,
        "p99_latency_ms": draw.lognormvariate(1.2, 0.4) * load,
        "samples": 60,
    }


def _happens(broker: int, dir_: int, hour: float, well: Mapping[str, Any]) -> dict[str, Any]:
    match broker, dir_:
        case 2, 1 if hour >= 14:
            return {
                "state": "offline",
                **dict.fromkeys(("total_bytes", "free_bytes", "replica_bytes"), 0),
                **dict.fromkeys(("append_bytes_per_s", "fetch_bytes_per_s", "p99_latency_ms")),
                "io_errors": 12 if hour == 14 else 0,
            }
        case 1, 3:
            free = max(0, int(TOTAL * (0.25 - 0.25 * min(hour, 19) / 18)))
            if hour > 20:
                free = int(TOTAL * (0.08 - 0.01 * (hour - 20)))
            return {"free_bytes": free, "state": "saturated" if 18 <= hour <= 20 else "online"}
        case 3, 0 if 9 <= hour < 9.7:
            return {"state": "stalled", "p99_latency_ms": 4200.0}
        case 3, 2 if hour >= 20:
            return {"is_cordoned": True}
        case 1, 0 if hour >= 6:
            return {"p99_latency_ms": well["p99_latency_ms"] * 12}
    return {}


def _sample(window: Mapping[str, Any]) -> dict[str, Any]:
    is_emptied = window["is_cordoned"]
    names = ("broker_id", "rack", "directory_id", "path", "state", "is_cordoned", "total_bytes")
    return {
        **{name: window[name] for name in (*names, "free_bytes", "replica_bytes")},
        "time": window["window_start"] + timedelta(seconds=5),
        "moves_in": 2 if is_emptied and window["path"] == "/data/d1" else 0,
        "moves_out": 3 if is_emptied else 0,
    }


def _forecast(last: Mapping[str, Any], days: float, error: float) -> dict[str, Any]:
    now = BEGIN + timedelta(hours=HOURS)
    growth = last["free_bytes"] / days / 86_400
    latest = days / (1 - error) if error < 1 else None
    return {
        **{name: last[name] for name in ("broker_id", "directory_id", "path")},
        "from": BEGIN,
        "to": now,
        "samples": 1440,
        "used_bytes": TOTAL - last["free_bytes"],
        "total_bytes": TOTAL,
        "growth_bytes_per_s": growth,
        "growth_error_bytes_per_s": growth * error / 2,
        "full_at": now + timedelta(days=days),
        "earliest": now + timedelta(days=days / (1 + error)),
        "latest": None if latest is None else now + timedelta(days=latest),
    }


def forecasts(windows: Rows) -> list[dict[str, Any]]:
    last = {row["directory_id"]: row for row in windows}
    still = {
        **_forecast(last["id-3-2"], 1, 0.1),
        **dict.fromkeys(("full_at", "earliest", "latest")),
    }
    return [
        _forecast(last["id-2-0"], 40, 0.3),
        _forecast(last["id-1-3"], 0.8, 0.25),
        _forecast(last["id-1-2"], 400, 1.5),
        still,
        # An offline directory no longer fills.
        _forecast(last["id-2-1"], 0.1, 0.1),
        _forecast(last["id-2-3"], 9, 0.5),
    ]


def outliers() -> list[dict[str, Any]]:
    def row(broker: int, dir_: int, finding: str, hour: float, value: Any, peers: Any) -> Any:
        return {
            "broker_id": broker,
            "directory_id": f"id-{broker}-{dir_}",
            "path": path_of(broker, dir_),
            "finding": finding,
            "since": BEGIN + timedelta(hours=hour),
            "value": value,
            "peers": peers,
        }

    return [
        row(1, 0, "slow", 6, 41.5, 3.4),
        row(2, 1, "errors", 14, 12.0, 0.0),
        row(2, 1, "offline", 14, None, None),
    ]


def growth() -> list[dict[str, Any]]:
    names = [HOSTILE_TOPIC, "payments", "clicks", "audit-log", "metrics.raw", "sessions"]
    topics = [
        {
            "scope": "topic",
            "name": name,
            "size_bytes": (6 - place) ** 2 * 80 * GIB,
            "replicas": 36,
            "growth_bytes_per_s": (2.5 - place) * 400_000.0,
            "write_bytes_per_s": (6 - place) * 1_000_000.0,
        }
        for place, name in enumerate(names)
    ]
    return [*topics, {**topics[0], "scope": "broker", "name": "1"}]


def skew(brokers: int) -> list[dict[str, Any]]:
    return [
        {
            "scope": scope,
            "name": name,
            "parts": 4,
            "mean_bytes": 1.5 * TIB,
            "max_bytes": int(1.5 * TIB * uneven),
            "min_bytes": TIB,
            "skew": uneven,
        }
        for scope, name, uneven in [
            ("cluster", "", 1.2),
            *(("broker", str(broker), 1 + broker / 5) for broker in range(1, brokers + 1)),
            ("topic", HOSTILE_TOPIC, 3.0),
        ]
    ]


def plan_dirs(brokers: int, dirs: int) -> list[dict[str, Any]]:
    draw = random.Random(8)
    return [
        {
            "broker_id": broker,
            "rack": f"r{broker}",
            "path": path_of(broker, dir_),
            "total_bytes": TOTAL,
            "bytes_before": int(TOTAL * draw.uniform(0.1, 0.9)),
            "bytes_after": int(TOTAL * draw.uniform(0.48, 0.52)),
            "write_rate_before": draw.uniform(0, 9e6),
            "write_rate_after": draw.uniform(4e6, 5e6),
            "replicas_before": 10,
            "replicas_after": 10,
        }
        for broker in range(1, brokers + 1)
        for dir_ in range(dirs)
    ]


def plan_moves() -> list[dict[str, Any]]:
    return [
        {
            "topic": HOSTILE_TOPIC,
            "partition": number,
            "from_broker": 1,
            "from_path": "/data/d3",
            "to_broker": 1 + (number == 0),
            "to_path": "/data/d1",
            "size_bytes": 10 * GIB,
            "write_rate": 0.0,
        }
        for number in range(3)
    ]


def differences() -> list[dict[str, Any]]:
    return [
        {
            "difference": kind,
            "topic": HOSTILE_TOPIC,
            "partition": 1,
            "offset": offset,
            "producer": "p-1",
            "detail": "acknowledged, not there",
        }
        for kind, offset in (("missing", 17), ("missing", 18), ("duplicate", 3))
    ]


def ingested() -> list[dict[str, Any]]:
    def record(status: str, reason: str | None, topic: str) -> dict[str, Any]:
        return {"topic": topic, "status": status, "reason": reason, "value": b"x" * 100}

    return [
        *[record("good", None, "clicks")] * 7,
        *[record("late", "2 h late", "clicks")] * 2,
        record("corrupt", "no JSON", HOSTILE_TOPIC),
    ]
