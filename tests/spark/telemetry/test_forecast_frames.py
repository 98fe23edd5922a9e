"""Forecasts of data with known results."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from kraftjbod.protocol.telemetry.storage_telemetry import LogDirSample, Origin
from kraftjbod.spark.tables.schemas import LOG_DIR_FORECASTS
from kraftjbod.spark.telemetry.forecast_frames import log_dir_forecasts, student_95
from tests.spark.samples import GIB, START_MS, at, log_dir, log_dir_frame, origin

MIB: Final = 1 << 20
YEAR_S: Final = 365 * 86_400
TOTAL: Final = 100 * GIB

Floats = NDArray[np.float64]
Sample = tuple[Origin, LogDirSample]
TIMES: Final = ("from", "to", "full_at", "earliest", "latest")


def filled(seconds: float, used_bytes: int, **changes: Any) -> Sample:
    return origin(seconds), log_dir(
        **{"total_bytes": TOTAL, "free_bytes": TOTAL - used_bytes, **changes}
    )


def every_10_s(used_bytes: Sequence[int], first: int = 0, **changes: Any) -> list[Sample]:
    return [filled(10 * n, used, **changes) for n, used in enumerate(used_bytes, first)]


GROWING: Final = every_10_s([(10 + n) * GIB for n in range(5)])
OFFLINE: Final = every_10_s([0] * 3, 5, state="offline", total_bytes=0, free_bytes=0)
# One directory each, all in one forecast.
CASES: Final = {
    "constant": every_10_s([5 * GIB] * 5),
    "empties": every_10_s([(9 - n) * GIB for n in range(5)]),
    "slow": every_10_s([10 * GIB + n for n in range(10)]),
    "one sample": every_10_s([0]),
    "two samples": every_10_s([0, GIB]),
    "may grow": every_10_s([20 * GIB - (-1) ** n * 500 * MIB for n in range(9)]),
    "unsure": every_10_s([20 * GIB + (n * 10 - (-1) ** n * 500) * MIB for n in range(10)]),
    "full": every_10_s([min(TOTAL, (90 + 4 * n) * GIB) for n in range(10)]),
    "topic deleted": [
        *every_10_s([40 * GIB + n * MIB for n in range(10)]),
        *every_10_s([10 * GIB + n * MIB for n in range(10)], 10),
    ],
    "replica moved in": [
        *every_10_s([40 * GIB + n * MIB for n in range(10)]),
        *every_10_s([70 * GIB + n * MIB for n in range(10)], 10),
    ],
    "retention": every_10_s([(40 + n % 10) * GIB for n in range(100)]),
    "growing": GROWING,
    "growing, then offline": GROWING + OFFLINE,
    "growing, sampled twice": GROWING + GROWING[:2],
    "offline": OFFLINE,
}


@pytest.fixture(scope="module")
def forecasts(spark: SparkSession) -> dict[str, dict[str, Any]]:
    """By case; times in seconds after the start."""
    said = [
        (who, dataclasses.replace(sample, directory_id=case, path=f"/{case}"))
        for case, samples in CASES.items()
        for who, sample in samples
    ]
    rows = log_dir_forecasts(log_dir_frame(spark, said), YEAR_S).collect()
    found = {row["directory_id"]: row.asDict() for row in rows}
    for row in found.values():
        row.update({name: seconds_after(row[name]) for name in TIMES})
        del row["directory_id"], row["path"]
    return found


def seconds_after(time: datetime | None) -> float | None:
    """Collected times have no zone, in the time of this process."""
    return None if time is None else (time.astimezone(at(0).tzinfo) - at(0)).total_seconds()


Forecasts = dict[str, dict[str, Any]]


def test_forecast_of_exact_line_has_the_exact_time(spark: SparkSession) -> None:
    said = every_10_s([(10 + n) * GIB for n in range(11)])
    assertDataFrameEqual(
        log_dir_forecasts(log_dir_frame(spark, said), YEAR_S),
        spark.createDataFrame(
            [
                (
                    *(1, "id-of-/d1", "/d1", at(0), at(100), 11, 20 * GIB, TOTAL),
                    *(GIB / 10, 0.0, at(900), at(900), at(900)),
                )
            ],
            LOG_DIR_FORECASTS,
        ),
    )


@pytest.mark.parametrize(
    ("case", "growth"), [("constant", 0), ("empties", -GIB / 10), ("slow", 0.1)]
)
def test_forecast_without_growth_or_beyond_the_horizon_has_no_time(
    forecasts: Forecasts, case: str, growth: float
) -> None:
    found = forecasts[case]
    assert (found["full_at"], found["earliest"], found["latest"]) == (None, None, None)
    assert found["growth_bytes_per_s"] == pytest.approx(growth)


@pytest.mark.parametrize(("case", "samples"), [("one sample", 1), ("two samples", 2)])
def test_forecast_of_too_few_samples_has_no_growth(
    forecasts: Forecasts, case: str, samples: int
) -> None:
    found = forecasts[case]
    assert found["samples"] == samples
    assert found["used_bytes"] == (samples - 1) * GIB
    assert (found["growth_bytes_per_s"], found["full_at"]) == (None, None)


def test_forecast_of_uncertain_growth_has_no_latest_time(forecasts: Forecasts) -> None:
    found = forecasts["unsure"]
    assert found["growth_error_bytes_per_s"] > found["growth_bytes_per_s"] > 0
    assert found["latest"] is None
    assert found["to"] <= found["earliest"] <= found["full_at"]


def test_forecast_of_flat_line_with_wide_band_has_an_earliest_time(forecasts: Forecasts) -> None:
    found = forecasts["may grow"]
    assert found["growth_bytes_per_s"] == pytest.approx(0, abs=1)
    assert found["latest"] is None
    assert found["to"] < found["earliest"]


def test_forecast_of_full_disk_is_now(forecasts: Forecasts) -> None:
    found = forecasts["full"]
    assert found["full_at"] == found["earliest"] == found["to"]


@pytest.mark.parametrize("case", ["topic deleted", "replica moved in"])
def test_forecast_begins_after_one_large_step(forecasts: Forecasts, case: str) -> None:
    found = forecasts[case]
    assert (found["from"], found["samples"]) == (100, 10)
    assert found["growth_bytes_per_s"] == pytest.approx(MIB / 10)


def test_forecast_of_repeated_retention_has_no_growth(forecasts: Forecasts) -> None:
    """Retention repeatedly deletes written data: the trend is flat."""
    found = forecasts["retention"]
    assert found["samples"] == 100
    assert found["growth_error_bytes_per_s"] > abs(found["growth_bytes_per_s"])
    assert found["latest"] is None


def test_forecast_of_offline_directory_is_its_last_one(forecasts: Forecasts) -> None:
    assert forecasts["growing, then offline"] == forecasts["growing"]
    assert "offline" not in forecasts, "its bytes are unknown"


def test_forecast_counts_duplicate_samples_once(forecasts: Forecasts) -> None:
    assert forecasts["growing, sampled twice"] == forecasts["growing"]


def test_forecast_of_two_disks_at_one_path_is_of_the_newer(spark: SparkSession) -> None:
    said = [*every_10_s([5 * GIB] * 3, directory_id="old"), *every_10_s([0] * 3, 3)]
    [found] = log_dir_forecasts(log_dir_frame(spark, said), YEAR_S).collect()
    assert found["directory_id"] == "id-of-/d1"


def test_student_95_equals_known_quantiles(spark: SparkSession) -> None:
    known = {1: 12.706, 2: 4.303, 3: 3.182, 5: 2.571, 10: 2.228, 30: 2.042, 1000: 1.962}
    frame = spark.createDataFrame(
        [(float(df), t) for df, t in known.items()], "df double, t double"
    )
    rows = frame.select(student_95(F.col("df")), "t").collect()
    assert [row[0] for row in rows] == [pytest.approx(row[1], abs=0.004) for row in rows]


# --- how good the band is -------------------------------------------------------------------------

DISKS: Final = 300
EVERY_S: Final = 10.0
GROWTH: Final = 1.0 * MIB
START_BYTES: Final = 20.0 * GIB


@dataclass(frozen=True)
class Quality:
    """A kind of used bytes, and the required quality of their forecast.

    ``least`` and ``most``: the share of disks whose band includes the second in which the disk is
    truly full. ``error``: the median error of ``full_at``, relative to the remaining time."""

    kind: str
    samples: int
    least: float
    most: float
    error: float


# If every step is random (wandering), the band is too narrow: it includes about 3 in 4.
QUALITIES: Final = (
    Quality("noise", 100, 0.91, 0.985, 0.03),
    Quality("noise", 8, 0.90, 0.99, 0.1),
    Quality("slow noise", 200, 0.88, 0.985, 0.05),
    Quality("saw-tooth", 200, 0.95, 1.0, 0.10),
    Quality("wandering", 200, 0.65, 0.95, 0.25),
)


@dataclass(frozen=True)
class Disk:
    used: Floats
    total: float
    full_at_s: float


def disks(of: Quality) -> Iterator[Disk]:
    rng = np.random.default_rng(7)
    ahead = START_BYTES + GROWTH * EVERY_S * np.arange(of.samples * 12)
    total = START_BYTES + 3 * GROWTH * EVERY_S * of.samples
    on_line_s = (total - START_BYTES) / GROWTH
    for _ in range(DISKS):
        match of.kind:
            case "noise":
                used = ahead + rng.normal(0, of.samples * MIB / 2, len(ahead))
                full_at_s = on_line_s
            case "slow noise":
                used = ahead + correlated(rng.normal(0, 20 * MIB, len(ahead)))
                full_at_s = on_line_s
            case "saw-tooth":
                place = (np.arange(len(ahead)) + rng.integers(30)) % 30 / 30
                used = ahead + (place - 0.5) * 600 * MIB
                full_at_s = float(np.argmax(used >= total)) * EVERY_S
            case _:
                used = START_BYTES + np.cumsum(rng.normal(GROWTH * EVERY_S, 20 * MIB, len(ahead)))
                full_at_s = float(np.argmax(used >= total)) * EVERY_S
        yield Disk(used[: of.samples], total, full_at_s)


def correlated(shocks: Floats) -> Floats:
    """Return shocks with a carry-over of nine tenths to the next sample."""
    noise = np.zeros(len(shocks))
    for i in range(1, len(shocks)):
        noise[i] = 0.9 * noise[i - 1] + shocks[i]
    return noise


def as_samples(spark: SparkSession, all_disks: dict[tuple[int, int], Disk]) -> DataFrame:
    """``broker_id`` is the number of the quality, ``directory_id`` the disk's."""
    lengths = [len(disk.used) for disk in all_disks.values()]
    used = np.concatenate([disk.used for disk in all_disks.values()]).astype(np.int64)
    total = np.repeat([int(disk.total) for disk in all_disks.values()], lengths)
    seconds = np.concatenate([EVERY_S * np.arange(length) for length in lengths])
    table = pa.table(
        {
            "broker_id": pa.array(np.repeat([kind for kind, _ in all_disks], lengths), pa.int32()),
            "directory_id": (names := np.repeat([str(disk) for _, disk in all_disks], lengths)),
            "path": names,
            "state": ["online"] * len(used),
            "time": pa.array(
                (START_MS + seconds * 1000).astype(np.int64), pa.timestamp("ms", "UTC")
            ),
            "total_bytes": total,
            "free_bytes": total - used,
        }
    )
    return spark.createDataFrame(table)


def test_forecast_band_includes_the_true_time_as_often_as_required(spark: SparkSession) -> None:
    all_disks = {
        (kind, number): disk
        for kind, quality in enumerate(QUALITIES)
        for number, disk in enumerate(disks(quality))
    }
    held = [0] * len(QUALITIES)
    errors: list[list[float]] = [[] for _ in QUALITIES]
    for found in log_dir_forecasts(as_samples(spark, all_disks), YEAR_S).collect():
        kind = found["broker_id"]
        truth_s = all_disks[kind, int(found["directory_id"])].full_at_s
        full_s, early_s, late_s = (
            seconds_after(found[name]) for name in ("full_at", "earliest", "latest")
        )
        if early_s is None or full_s is None:
            # Never full, or perhaps: in truth every disk fills.
            held[kind] += early_s is not None and early_s <= truth_s
            continue
        held[kind] += early_s <= truth_s and (late_s is None or truth_s <= late_s)
        left_s = truth_s - EVERY_S * (QUALITIES[kind].samples - 1)
        errors[kind].append(abs(full_s - truth_s) / left_s)
    for quality, holds, off in zip(QUALITIES, held, errors, strict=True):
        share, error = holds / DISKS, float(np.median(off))
        print(f"{quality.kind}, {quality.samples} samples: {share:.1%} held, error {error:.1%}")
        assert quality.least <= share <= quality.most, quality
        assert error <= quality.error, quality
