"""The picture of a plan: its text and shapes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from kraftjbod.core.errors import StartupError
from kraftjbod.spark.plan.plan_picture import MOST_LINES, draw_plan, plan_figure, plan_measures
from kraftjbod.spark.style.plot_style import styled

GIB = 1024**3


def row(broker: int, path: str, before: int, after: int, **more: Any) -> dict[str, Any]:
    """A directory of 100 GiB."""
    return {
        "broker_id": broker,
        "rack": None,
        "path": path,
        "total_bytes": 100 * GIB,
        "bytes_before": before * GIB,
        "bytes_after": after * GIB,
        "write_rate_before": 0.0,
        "write_rate_after": 0.0,
        "replicas_before": 1,
        "replicas_after": 1,
        **more,
    }


def many(brokers: int, dirs: int) -> list[dict[str, Any]]:
    return [
        row(b, f"/data/d{d}", (b * 7 + d * 13) % 90, 45, write_rate_before=1e6 * d)
        for b in range(brokers)
        for d in range(dirs)
    ]


def words(path: Path) -> list[str]:
    tree = ET.parse(path)
    return ["".join(e.itertext()) for e in tree.iter("{http://www.w3.org/2000/svg}text")]


def test_picture_of_few_directories_names_each_under_its_broker(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plan.svg"
    rows = [row(2, "/data/d10", 10, 30), row(2, "/data/d9", 50, 30)]
    draw_plan([*rows, row(1, "/data/d2", 20, 20), row(1, "/data/d1", 20, 20)], path)
    text = words(path)
    named = [word for word in text if word.startswith(("broker", "/data"))]
    assert named == ["broker 1", "/data/d1", "/data/d2", "broker 2", "/data/d9", "/data/d10"]
    assert "Used by replicas (most: 50.0% → 30.0%)" in text
    assert "4 directories before and after" in text
    assert not any(word.startswith("Written") for word in text)


def test_measures_of_small_shares_show_more_digits() -> None:
    used, *_ = plan_measures([row(1, "/a", 0.031, 0.016), row(1, "/b", 0, 0.015)])
    assert used.story == "most: 0.031% → 0.016%"


def test_measures_include_rates_if_a_directory_is_written() -> None:
    rows = [
        row(1, "/a", 10, 10, write_rate_before=3.0, write_rate_after=2.0),
        row(1, "/b", 30, 30, write_rate_before=1.0, write_rate_after=4.0, total_bytes=300 * GIB),
        row(2, "/a", 50, 50, write_rate_after=None),
    ]
    used, written = plan_measures(rows)
    assert (used.before, used.after) == ([0.1, 0.1, 0.5], [0.1, 0.1, 0.5])
    # The even level is per broker: replicas on another broker stay there.
    assert (used.evens, used.mean) == ([0.1, 0.1, 0.5], 0.18)
    assert (written.before, written.after) == ([3.0, 1.0, 0.0], [2.0, 4.0, 0.0])
    assert (written.evens, written.mean) == ([3.0, 3.0, 0.0], 2.0)


def test_picture_of_many_directories_counts_each_once() -> None:
    rows = many(20, 12)
    assert len(rows) > MOST_LINES
    with styled():
        used, written, gaps = plan_figure(rows).axes
    # Two filled histograms: before, after; the outline is a polygon.
    heights = [patch.get_height() for patch in used.patches if hasattr(patch, "get_height")]
    assert sum(heights) == 2 * len(rows)
    assert written.get_title(loc="left") == "Written (most: 10.5 MiB/s → 0 B/s)"
    assert gaps.get_title(loc="left").startswith("Fullest less emptiest directory of each broker")
    assert gaps.get_title(loc="left").endswith("→ 0.0%)")
    assert [ax.get_ylabel() for ax in (used, written, gaps)] == [
        "directories",
        "directories",
        "brokers",
    ]


def test_picture_of_brokers_with_one_directory_has_no_comparison() -> None:
    with styled():
        assert len(plan_figure([row(b, "/d", b, 50) for b in range(60)]).axes) == 1


def test_picture_of_thousands_of_directories_is_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    draw_plan(many(1000, 12), path)
    assert path.stat().st_size < 300_000
    assert "12,000 directories before and after" in words(path)


def test_picture_counts_directories_of_unknown_size_without_drawing_them(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    unknown = [row(1, "/dead", 0, 0, total_bytes=0), row(1, "/new", 0, 0, total_bytes=None)]
    draw_plan([row(1, "/live", 1, 1), *unknown], path)
    text = words(path)
    assert "1 directories before and after; 2 without a known size left out" in text
    assert "/dead" not in text


def test_picture_keeps_names_as_text(tmp_path: Path) -> None:
    path = tmp_path / "plan.svg"
    draw_plan([row(1, "/a/<b>&$x^2$\x00\n", 1, 1)], path)
    assert "1: /a/<b>&$x^2$\ufffd\ufffd" in words(path)


def test_draw_plan_with_suffix_png_writes_png(tmp_path: Path) -> None:
    path = tmp_path / "plan.PNG"
    draw_plan(many(2, 2), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_draw_plan_without_known_format_or_sizes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"plan\.jpg: pictures are written as \.svg or \.png"):
        draw_plan(many(1, 1), tmp_path / "plan.jpg")
    with pytest.raises(StartupError, match="without a directory of known size"):
        draw_plan([], tmp_path / "plan.svg")
    assert list(tmp_path.iterdir()) == []


def test_picture_of_empty_cluster_is_drawn() -> None:
    with styled():
        figure = plan_figure([row(1, "/a", 0, 0), row(1, "/b", 0, 0)])
        figure.draw_without_rendering()
    assert figure.axes[0].get_xlim() == (0, 1)
