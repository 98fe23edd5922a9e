"""Plots of forecasts, growth and plans."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any, Final

import pytest

from kraftjbod.spark.report.report_trends import (
    MOST_CONES,
    MOST_FORECASTS,
    MOST_TOPICS,
    cone_plot,
    forecast_plot,
    forecast_words,
    growth_plot,
    plan_plot,
)
from tests.spark import report_tables

NOW: Final = 1_795_219_200.0
DAY: Final = 86_400.0
GIB: Final = 1024**3


def words(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    return ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]


def forecast(
    path: str, full: float | None, earliest: float | None, latest: float | None
) -> dict[str, Any]:
    """``full``, ``earliest`` and ``latest`` are days from now."""
    ends = {"full_at": full, "earliest": earliest, "latest": latest}
    return {
        "broker_id": 1,
        "path": path,
        "from": NOW - DAY,
        "to": NOW,
        "used_bytes": 50 * GIB,
        "total_bytes": 100 * GIB,
        "growth_bytes_per_s": 1024.0**2,
        **{name: None if end is None else NOW + end * DAY for name, end in ends.items()},
    }


def history(path: str) -> dict[tuple[int, str], list[dict[str, Any]]]:
    times = [NOW - DAY + 3600 * n for n in range(24)]
    used = [None if n == 3 else (26 + n) * GIB for n in range(24)]
    points = [{"time": t, "used_bytes": u} for t, u in zip(times, used, strict=True)]
    return {(1, path): points}


def test_forecast_plot_names_each_forecast_and_its_scale() -> None:
    rows = [forecast("/soon", 0.5, 0.4, 0.7), forecast("/may", None, 40, None)]
    plot = forecast_plot(rows)
    text = words(plot.svg)
    assert [word for word in text if word.startswith("1: ")] == ["1: /soon", "1: /may"]
    assert "1 d" in text and "30 d" in text and "time left" in text
    assert plot.data["forecasts"] == rows
    # Less than a week has the colour of an alarm.
    assert "var(--alarm)" in plot.svg and "var(--after)" in plot.svg


@pytest.mark.parametrize(
    "row",
    [
        forecast("/already", -3, -4, -1),
        forecast("/at-once", 0, 0, 0),
        forecast("/in-ages", 1e6, 1e5, None),
        forecast("/may", None, 1, None),
        forecast("/no-band", 3, None, None),
    ],
)
def test_forecast_and_cone_plots_draw_every_kind_of_forecast(row: dict[str, Any]) -> None:
    name = f"1: {row['path']}"
    assert name in words(forecast_plot([row]).svg)
    cone = cone_plot([row], history(row["path"]))
    assert cone is not None and name in words(cone.svg)


def test_forecast_words_describe_size_growth_and_time() -> None:
    assert forecast_words(forecast("/a", 1.5, 1, 2)) == (
        "broker 1 /a: 50.0 GiB of 100.0 GiB, 1.0 MiB/s; full in 1 d 12 h, 2026-11-22 12:00:00 UTC"
    )
    assert forecast_words(forecast("/a", None, 1, None)).endswith(
        "1.0 MiB/s; not before 2026-11-22 00:00:00 UTC"
    )


def test_forecast_and_cone_plots_are_limited() -> None:
    rows = [forecast(f"/d{n}", n + 1, n + 1, n + 2) for n in range(40)]
    plot = forecast_plot(rows)
    assert len(plot.data["forecasts"]) == MOST_FORECASTS
    points = {key: value for row in rows for key, value in history(row["path"]).items()}
    cone = cone_plot(rows, points)
    assert cone is not None and len(cone.data["dirs"]) == MOST_CONES


def test_cone_plot_without_history_is_none() -> None:
    assert cone_plot([forecast("/a", 1, 1, 1)], {}) is None


def test_growth_plot_shows_shrinking_topics_on_the_other_side() -> None:
    rows = [
        {"name": f"t{n}", "size_bytes": GIB * (9 - n), "growth_bytes_per_s": rate}
        for n, rate in enumerate([5e5, -5e5, None])
    ]
    plot = growth_plot(rows)
    text = words(plot.svg)
    assert [word for word in text if word.startswith("t")] == ["t0", "t1", "t2"]
    assert "-20 GiB/d" in text and "20 GiB/d" in text
    assert "var(--alarm)" in plot.svg
    many = [{"name": f"t{n}", "size_bytes": 0, "growth_bytes_per_s": 0.0} for n in range(90)]
    assert len(growth_plot(many).data["topics"]) == MOST_TOPICS


def test_plan_plot_counts_directories_as_the_picture_of_a_plan_does() -> None:
    plot = plan_plot(report_tables.plan_dirs(2, 3))
    assert "6 directories before and after" in words(plot.svg)
    assert plot.data["columns"][2] == "total_bytes" and len(plot.data["dirs"]) == 6
