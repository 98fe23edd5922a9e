"""Plots over time: their shapes, text and numbers."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any, Final

import pytest

from kraftjbod.spark.report.report_plots import (
    MOST_BUCKETS,
    MOST_DIRS,
    Buckets,
    by_dir,
    latency_plot,
    usage_band_plot,
    usage_plot,
)

BEGIN: Final = 1_795_219_200.0
HOUR: Final = Buckets(first_s=BEGIN, last_s=BEGIN + 3600, bucket_s=600)


def words(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    return ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]


def titles(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    return ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}title")]


def usage(bucket: int, broker: int, path: str, used: int | None) -> dict[str, Any]:
    total = None if used is None else 100
    place = {"broker_id": broker, "path": path}
    return {"time": BEGIN + 600 * bucket, **place, "used_bytes": used, "total_bytes": total}


def band(bucket: int, value: float, dirs: int = 12_000) -> dict[str, Any]:
    names = ("low", "quarter", "median", "three_quarters", "high", "most")
    return {
        "time": BEGIN + 600 * bucket,
        "dirs": dirs,
        **{name: value * (place + 1) for place, name in enumerate(names)},
    }


@pytest.mark.parametrize(
    ("last", "shortest", "bucket", "count"),
    [
        (3600.0, 60.0, 60.0, 60),
        (240 * 60.0, 60.0, 60.0, 240),
        (241 * 60.0, 60.0, 120.0, 121),
        (365 * 86_400.0, 60.0, 131_400.0, 241),
        (0.5, 0.1, 1.0, 1),
        (0.0, 60.0, 60.0, 1),
    ],
)
def test_buckets_have_a_round_length_within_the_limit(
    last: float, shortest: float, bucket: float, count: int
) -> None:
    made = Buckets.over(BEGIN, BEGIN + last, shortest)
    assert (made.bucket_s, made.count) == (bucket, count)
    # Buckets begin at multiples of their length, so one more can be needed.
    assert made.count <= MOST_BUCKETS + 1
    assert len(made.edges) == made.count + 1
    assert made.place(made.times_s[-1]) == made.count - 1


def test_series_has_a_value_for_each_bucket() -> None:
    rows = [usage(0, 1, "/a", 5), usage(3, 1, "/a", None), usage(5, 1, "/a", 7)]
    outside = [usage(-1, 1, "/a", 9), usage(6, 1, "/a", 9)]
    assert HOUR.series([*rows, *outside], "used_bytes") == [5, None, None, None, None, 7]


def test_by_dir_groups_rows_and_sorts_by_time() -> None:
    rows = [usage(1, 2, "/b", 1), usage(0, 1, "/a", 2), usage(0, 2, "/b", 3)]
    assert {dir_: [row["used_bytes"] for row in of] for dir_, of in by_dir(rows).items()} == {
        (1, "/a"): [2],
        (2, "/b"): [3, 1],
    }


def test_usage_plot_has_a_panel_per_broker_and_names_the_fullest() -> None:
    rows = [usage(b, 1, f"/d{n}", 10 * n + b) for n in range(8) for b in range(6) if b != 2]
    rows += [usage(b, 2, "/x", None if b else 50) for b in range(6)]
    plot = usage_plot(rows, HOUR)
    text = words(plot.svg)
    assert [word for word in text if word.startswith("broker")] == ["broker 1", "broker 2"]
    # The plot names six of eight, without the two emptiest.
    assert sorted(word for word in text if word.startswith("/")) == [
        *("/d2", "/d3", "/d4", "/d5", "/d6", "/d7", "/x")
    ]
    assert "broker 1 /d0: 5.0 % at the end" in titles(plot.svg)
    assert "broker 2 /x: 50.0 % at the end" in titles(plot.svg)
    series = {(d["broker_id"], d["path"]): d["used_share"] for d in plot.data["dirs"]}
    assert series[1, "/d1"] == [0.1, 0.11, None, 0.13, 0.14, 0.15]
    assert series[2, "/x"] == [0.5, None, None, None, None, None]
    assert plot.data["bucket_s"] == 600 and plot.data["first"] == BEGIN


def test_usage_band_plot_shows_bands_and_single_directories() -> None:
    bands = [band(place, 0.1) for place in range(6)]
    plot = usage_band_plot(bands, [usage(b, 7, "/full", 90) for b in range(6)], HOUR)
    text = words(plot.svg)
    assert "7: /full" in text and "5 to 95 % of directories" in text
    assert "12,000 directories" in plot.caption
    assert plot.data["bands"]["median"] == [pytest.approx(0.3)] * 6


def test_latency_plot_has_rows_per_directory_and_for_all() -> None:
    points = [
        {"time": BEGIN + 600 * b, "broker_id": 1, "path": path, "p99_latency_ms": value}
        for b in range(6)
        for path, value in (("/a", 2.0), ("/b", None if b == 3 else 300.0))
    ]
    plot = latency_plot(points, [band(place, 1.0) for place in range(6)], HOUR)
    assert plot is not None
    text = words(plot.svg)
    for name in ("median of all", "95 % of all", "broker 1", "/a", "/b", "10 ms", "100 ms"):
        assert name in text
    assert plot.svg.count("<image") == 2  # The map and its scale.
    series = {d["path"]: d["p99_latency_ms"] for d in plot.data["dirs"]}
    assert series["/b"] == [300.0, 300.0, 300.0, None, 300.0, 300.0]


def test_latency_plot_without_values_is_none() -> None:
    point = {"time": BEGIN, "broker_id": 1, "path": "/a", "p99_latency_ms": None}
    assert latency_plot([point], [], HOUR) is None
    assert latency_plot([], [], HOUR) is None


def test_latency_plot_of_zero_is_drawn() -> None:
    point = {"time": BEGIN, "broker_id": 1, "path": "/a", "p99_latency_ms": 0.0}
    assert latency_plot([point], [], HOUR) is not None


def test_usage_plot_of_maximum_lines_is_small() -> None:
    long = Buckets(first_s=BEGIN, last_s=BEGIN + 600 * MOST_BUCKETS, bucket_s=600)
    rows = [
        usage(bucket, broker, f"/d{n}", (bucket * n) % 100)
        for broker in range(6)
        for n in range(MOST_DIRS // 6)
        for bucket in range(MOST_BUCKETS)
    ]
    assert len(usage_plot(rows, long).svg) < 1_000_000
