"""States over time: their shapes, text and numbers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from typing import Any, Final

from kraftjbod.spark.report.report_plots import MOST_BUCKETS, Buckets
from kraftjbod.spark.report.report_timeline import state_runs, timeline_plot

BEGIN: Final = 1_795_219_200.0
HOUR: Final = Buckets(first_s=BEGIN, last_s=BEGIN + 3600, bucket_s=600)


def words(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    return ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]


def titles(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    return ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}title")]


def state(bucket: int, name: str, **more: Any) -> dict[str, Any]:
    place = {"time": BEGIN + 600 * bucket, "broker_id": 1, "path": "/a", "state": name}
    return {**place, "is_cordoned": False, "moves_in": 0, "moves_out": 0, **more}


def test_state_runs_end_at_changes_and_gaps() -> None:
    rows = [
        state(0, "online"),
        state(1, "online"),
        state(2, "online", is_cordoned=True),
        state(3, "online", is_cordoned=True, moves_out=2),
        # The fourth bucket has no sample.
        state(5, "offline"),
    ]
    runs = [(first, behind, row["state"]) for first, behind, row in state_runs(rows, HOUR)]
    assert runs == [(0, 2, "online"), (2, 3, "online"), (3, 4, "online"), (5, 6, "offline")]


def test_timeline_plot_marks_each_failure_once() -> None:
    rows = [
        state(0, "online"),
        state(1, "offline"),
        state(2, "offline", is_cordoned=True),
        state(3, "online"),
        state(4, "offline"),
        state(5, "of the future"),
    ]
    plot = timeline_plot(rows, [], HOUR)
    (shown,) = plot.data["dirs"]
    assert [(state, (end - start) / 600) for start, end, state, *_ in shown["runs"]] == [
        ("online", 1),
        ("offline", 1),
        ("offline", 1),
        ("online", 1),
        ("offline", 1),
        ("of the future", 1),
    ]
    # A cross for each failure, and one in the legend.
    crosses = re.findall(r"<use [^>]*fill: var\(--ink\); stroke: var\(--surface\)", plot.svg)
    assert len(crosses) == 3
    assert titles(plot.svg)[1].startswith("broker 1 /a: offline, 2026-11-21 00:10:00 to 2026-11-21")
    legend = ("online", "saturated", "stalled", "offline", "cordoned", "replicas moving", "failed")
    assert set(legend) <= set(words(plot.svg))


def test_timeline_plot_with_counts_has_a_panel_of_all_directories_above_the_chosen_ones() -> None:
    counts = [
        {
            "time": BEGIN + 600 * place,
            "online": 11_990,
            "saturated": 1,
            "stalled": 2,
            "offline": place,
            "cordoned": 20,
            "moving": 0,
        }
        for place in range(6)
    ]
    plot = timeline_plot([state(0, "offline")], counts, HOUR)
    assert "Directories not online, of all" in words(plot.svg)
    assert len(plot.data["dirs"]) == 1


def test_timeline_plot_of_alternating_states_has_one_shape_per_state() -> None:
    long = Buckets(first_s=BEGIN, last_s=BEGIN + 600 * MOST_BUCKETS, bucket_s=600)
    rows = [state(b, "stalled" if b % 2 else "online") for b in range(MOST_BUCKETS)]
    plot = timeline_plot(rows, [], long)
    assert len(plot.data["dirs"][0]["runs"]) == MOST_BUCKETS
    assert titles(plot.svg) == [] and len(plot.svg) < 60_000
