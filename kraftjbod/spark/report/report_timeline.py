"""WIRE. The plot of states over time: which directories were impaired, offline or moving, and when.

Each directory is a row, with a bar for each run of buckets in one state. If a row has many bars,
the bars with equal marks are one shape. Thousands of separate shapes would need a minute and
megabytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from kraftjbod.spark.report.report_plots import ROW_IN, WIDTH_IN, Buckets, Plot, Row, by_dir
from kraftjbod.spark.style.figure_text import duration_text, time_text
from kraftjbod.spark.style.plot_style import (
    CORDONED,
    GRID,
    INK,
    MOVING,
    QUIET,
    STATES,
    SURFACE,
    Colour,
    DirRows,
    days,
    inline_svg,
    new_figure,
    panels,
    rows_only,
    styled,
)

#: Marker of the time at which a directory failed.
_CROSS: Final[dict[str, Any]] = {
    "marker": "X",
    "markersize": 8,
    "color": INK.light,
    "markeredgecolor": SURFACE.light,
}
#: Runs of one directory that are described one by one under the pointer.
_MOST_LISTED: Final = 30


def timeline_plot(points: Sequence[Row], counts: Sequence[Row], buckets: Buckets) -> Plot:
    """Return the plot of states over time.

    :param points: STATE_POINTS of the directories that get a row.
    :param counts: STATE_COUNTS of all directories, drawn above the rows; may be empty.
    """
    dirs = by_dir(points)
    named = DirRows.of_dirs(dirs)
    extra = 1.5 if counts else 0.0
    rows: list[dict[str, Any]] = []
    titles: dict[str, str] = {}
    with styled():
        height = 1.2 + ROW_IN * 1.15 * named.height
        figure = new_figure(WIDTH_IN, height + extra)
        if counts:
            column = panels(figure, 2, 1, height_ratios=[extra, height], sharex=True)
            _count_panel(column[0][0], counts, buckets)
            ax = column[1][0]
        else:
            ax = panels(figure, 1, 1)[0][0]
        for place, dir_ in zip(named.places, named.dirs, strict=True):
            runs = _state_row(ax, place, dirs[dir_], buckets, titles)
            rows.append({"broker_id": dir_[0], "path": dir_[1], "runs": runs})
        named.label(ax)
        rows_only(ax)
        buckets.scale(ax)
        _timeline_legend(figure)
        label = f"States of {len(dirs)} directories over time"
        svg = inline_svg(figure, "timeline", label, titles)
    return Plot(
        name="timeline",
        svg=svg,
        caption=f"The worst state of each {duration_text(buckets.bucket_s)}. Nothing drawn: the "
        "broker said nothing.",
        data={"dirs": rows, "columns": ["from", "to", "state", "is_cordoned", "is_moving"]},
    )


def state_runs(rows: Sequence[Row], buckets: Buckets) -> list[tuple[int, int, Row]]:
    """Return the runs of consecutive buckets with equal state and marks.

    :returns: per run, the first bucket, the bucket after the last one, and the last row.
    """
    runs: list[tuple[int, int, Row]] = []
    for row in rows:
        place = buckets.place(row["time"])
        if runs and runs[-1][1] == place and _marks(runs[-1][2]) == _marks(row):
            runs[-1] = (runs[-1][0], place + 1, row)
        else:
            runs.append((place, place + 1, row))
    return runs


def _marks(row: Row) -> tuple[Any, ...]:
    is_moving = bool(row["moves_in"] or row["moves_out"])
    return row["state"], bool(row["is_cordoned"]), is_moving


def _state_row(
    ax: Axes, place: int, rows: Sequence[Row], buckets: Buckets, titles: dict[str, str]
) -> list[list[Any]]:
    """Draw the states of one directory as a row of the plot.

    :param titles: gets the text of each bar, by the bar's id.
    :returns: its runs as numbers: from, to, state, cordoned, moving. Times are in seconds.
    """
    edges, times = (
        buckets.edges,
        [*buckets.times_s, buckets.begin_s + buckets.bucket_s * buckets.count],
    )
    ax.hlines(place, edges[0], edges[-1], color=GRID.light, linewidth=0.8, linestyle=":", zorder=0)
    runs = state_runs(rows, buckets)
    by_marks: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    failures: list[float] = []
    before = None
    for number, (first, end, row) in enumerate(runs):
        marks = _marks(row)
        if len(runs) <= _MOST_LISTED:
            # A separate shape, so that it can have a text under the pointer.
            marks = (*marks, number)
        by_marks.setdefault(marks, []).append((edges[first], edges[end]))
        if row["state"] == "offline" and before != "offline":
            failures.append(edges[first])
        before = row["state"]
    for (state, is_cordoned, is_moving, *alone), spans in by_marks.items():
        colour = STATES.get(str(state), QUIET)
        bars = _bars(ax, spans, place - 0.36, place + 0.36, colour)
        if alone:
            first, end, row = runs[alone[0]]
            bars.set_gid(f"run-{len(titles)}")
            titles[f"run-{len(titles)}"] = _run_words(row, times[first], times[end])
        if is_cordoned:
            _bars(ax, spans, place + 0.2, place + 0.36, CORDONED)
        if is_moving:
            _bars(ax, spans, place - 0.36, place - 0.2, MOVING)
    cross = {**_CROSS, "clip_on": False, "zorder": 5}
    ax.plot(failures, [place] * len(failures), linestyle="none", **cross)
    return [[times[first], times[end], *_marks(row)] for first, end, row in runs]


def _bars(
    ax: Axes, spans: Sequence[tuple[float, float]], low: float, high: float, colour: Colour
) -> PathPatch:
    """Draw rectangles as one shape, because thousands of shapes would need a minute and
    megabytes."""
    corners = [
        corner
        for start, end in spans
        for corner in ((start, low), (end, low), (end, high), (start, high), (start, low))
    ]
    codes = [Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY] * len(spans)
    patch = PathPatch(Path(corners, codes), facecolor=colour.light, linewidth=0)
    ax.add_artist(patch)
    return patch


def _run_words(row: Row, begin_s: float, end_s: float) -> str:
    state, is_cordoned, is_moving = _marks(row)
    marks = [str(state)]
    if is_cordoned:
        marks.append("cordoned")
    if is_moving:
        marks.append(f"moves: {row['moves_in'] or 0} in, {row['moves_out'] or 0} out")
    return (
        f"broker {row['broker_id']} {row['path']}: {', '.join(marks)}, "
        f"{time_text(begin_s)} to {time_text(end_s)} UTC"
    )


def _count_panel(ax: Axes, counts: Sequence[Row], buckets: Buckets) -> None:
    """Draw the number of impaired directories over time, of all directories."""
    ordered = sorted(counts, key=lambda row: row["time"])
    edges = [days(row["time"]) for row in ordered]
    edges.append(edges[-1] + days(buckets.bucket_s))
    below = np.zeros(len(ordered))
    for state, colour in list(STATES.items())[1:]:
        figures = np.array([row[state] for row in ordered], dtype=float)
        ax.stairs(below + figures, edges, baseline=below, fill=True, color=colour.light)
        below = below + figures
    highest = float(below.max())
    for name, colour in (("cordoned", CORDONED), ("moving", MOVING)):
        figures = np.array([row[name] for row in ordered], dtype=float)
        ax.stairs(figures, edges, color=colour.light, baseline=None)
        highest = max(highest, float(figures.max()))
    ax.set_ylim(0, max(1.0, highest * 1.15))
    ax.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    ax.set_title("Directories not online, of all")


def _timeline_legend(figure: Figure) -> None:
    handles: list[Any] = [
        Patch(facecolor=colour.light, label=state) for state, colour in STATES.items()
    ]
    handles += [
        Line2D([], [], color=CORDONED.light, linewidth=3, label="cordoned"),
        Line2D([], [], color=MOVING.light, linewidth=3, label="replicas moving"),
        Line2D([], [], linestyle="none", label="failed", **_CROSS),
    ]
    figure.legend(handles=handles, loc="outside upper right", ncols=len(handles))
