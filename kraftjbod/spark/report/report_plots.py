"""WIRE. Plots of directories over time: used shares and latencies.

Each function takes plain rows with a schema of ``report_frames`` (times in seconds) and returns a
:class:`Plot`. Up to :data:`MOST_DIRS` directories are drawn one by one. Of more directories, all
appear in bands, and the caller chooses some to be drawn individually. ``data`` of a plot has its
values as numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from kraftjbod.spark.style.figure_text import duration_text, share_text
from kraftjbod.spark.style.plot_style import (
    BAND,
    BEFORE,
    INK,
    SERIES,
    Colour,
    DirRows,
    days,
    inline_svg,
    new_figure,
    panels,
    rows_only,
    short_paths,
    styled,
    time_scale,
)

Row = Mapping[str, Any]
Dir = tuple[int, str]

#: Directories that are drawn one by one.
MOST_DIRS: Final = 48
#: Columns of a plot over time.
MOST_BUCKETS: Final = 240
WIDTH_IN: Final = 10.5
ROW_IN: Final = 0.2
_ACROSS: Final = 3
#: Lines of one panel that have colours and names; the fullest do.
_NAMED: Final = 6
#: Between two names, as a share of a panel's height.
_NAME_STEP: Final = 0.115


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One figure of the page. ``data`` has its numbers, and ``caption`` explains how to read it."""

    name: str
    svg: str
    caption: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """The columns of all plots over time: buckets of ``bucket_s`` seconds.

    ``first_s`` and ``last_s`` are the ends of the shown time.
    """

    first_s: float
    last_s: float
    bucket_s: float

    @classmethod
    def over(cls, first_s: float, last_s: float, shortest_s: float) -> Buckets:
        """Return at most :data:`MOST_BUCKETS` buckets, or one more if ``first_s`` is within a
        bucket.

        :param shortest_s: length of the windows of the data; a bucket is a multiple of it.
        """
        bucket_s = max(shortest_s, 1.0)
        needed = (last_s - first_s) / bucket_s / MOST_BUCKETS
        return cls(first_s=first_s, last_s=last_s, bucket_s=bucket_s * max(1, int(-(-needed // 1))))

    @property
    def count(self) -> int:
        return self.place(max(self.first_s, self.last_s - 1e-6)) + 1

    @property
    def begin_s(self) -> float:
        """Start of the first bucket. As in Spark, buckets start at multiples of their length."""
        return self.first_s // self.bucket_s * self.bucket_s

    def place(self, time_s: float) -> int:
        return int((time_s - self.begin_s) // self.bucket_s)

    @property
    def edges(self) -> list[float]:
        """The start of each bucket and the end of the last one, in matplotlib's days."""
        return [days(self.begin_s + self.bucket_s * n) for n in range(self.count + 1)]

    @property
    def times_s(self) -> list[float]:
        return [self.begin_s + self.bucket_s * n for n in range(self.count)]

    def series(self, rows: Iterable[Row], figure: str) -> list[float | None]:
        """Return one directory's figure in each bucket; None if it has no row there."""
        values: list[float | None] = [None] * self.count
        for row in rows:
            if 0 <= (place := self.place(row["time"])) < self.count:
                values[place] = row[figure]
        return values

    def scale(self, ax: Axes, *, ticks: int = 9) -> None:
        time_scale(ax, self.begin_s, self.begin_s + self.bucket_s * self.count, ticks=ticks)


def by_dir(rows: Iterable[Row]) -> dict[Dir, list[Row]]:
    """Return the rows of each directory, in the order of time."""
    ordered = sorted(rows, key=lambda row: (row["broker_id"], row["path"], row.get("time") or 0.0))
    groups = groupby(ordered, key=lambda row: (int(row["broker_id"]), str(row["path"])))
    return {dir_: list(group) for dir_, group in groups}


def usage_plot(points: Sequence[Row], buckets: Buckets) -> Plot:
    """Return the plot of the used share of each directory, with one panel per broker."""
    shares = _shares(points, buckets)
    brokers = {
        broker: [dir_ for dir_ in shares if dir_[0] == broker] for broker in {d[0] for d in shares}
    }
    down = -(-len(brokers) // _ACROSS)
    top = _share_top(value for values in shares.values() for value in values)
    titles: dict[str, str] = {}
    with styled():
        figure = new_figure(WIDTH_IN, 0.4 + 2.0 * down)
        grid = [ax for row in panels(figure, down, _ACROSS) for ax in row]
        for ax, broker in zip(grid, sorted(brokers), strict=False):
            _usage_panel(ax, brokers[broker], shares, buckets, titles, top=top)
            ax.set_title(f"broker {broker}")
        for ax in grid[len(brokers) :]:
            ax.set_visible(False)
        label = f"Used share of {len(shares)} directories over time, one panel per broker"
        svg = inline_svg(figure, "usage", label, titles)
    return Plot(
        name="usage",
        svg=svg,
        caption="Used share of each directory. The fullest of a broker have names; a gap is a time "
        "without a known size.",
        data=_series_data(buckets, "used_share", shares),
    )


def usage_band_plot(bands: Sequence[Row], points: Sequence[Row], buckets: Buckets) -> Plot:
    """Return the plot of used shares in a large cluster: bands, and the directories of
    ``points``."""
    shares = _shares(points, buckets)
    titles: dict[str, str] = {}
    with styled():
        figure = new_figure(WIDTH_IN, 3.6)
        ax = panels(figure, 1, 1)[0][0]
        _band(ax, bands, buckets)
        top = _share_top(row["most"] for row in bands)
        _usage_panel(ax, list(shares), shares, buckets, titles, top=top, with_broker=True)
        figure.legend(*ax.get_legend_handles_labels(), loc="outside upper right", ncols=4)
        dirs = max((row["dirs"] for row in bands), default=0)
        svg = inline_svg(figure, "usage", f"Used shares of {dirs} directories over time", titles)
    return Plot(
        name="usage",
        svg=svg,
        caption=f"Used share of {dirs:,} directories; those that are fullest now have names.",
        data={**_series_data(buckets, "used_share", shares), "bands": _band_data(bands)},
    )


def latency_plot(points: Sequence[Row], bands: Sequence[Row], buckets: Buckets) -> Plot | None:
    """Return a heat map of 99th percentiles, directories by time; None if no latency was measured.

    :param bands: adds two rows for all directories, if not empty.
    """
    series = {dir_: buckets.series(rows, "p99_latency_ms") for dir_, rows in by_dir(points).items()}
    known = [value for values in series.values() for value in values if value is not None]
    if not known:
        return None
    named = DirRows.of_dirs(series)
    above = [("median of all", "median"), ("95 % of all", "high")] if bands else []
    matrix = np.full((named.height + len(above), buckets.count), np.nan)
    for place, (_, figure_of) in enumerate(above):
        matrix[place] = _floats(buckets.series(bands, figure_of))
    for place, dir_ in zip(named.places, named.dirs, strict=True):
        matrix[place + len(above)] = _floats(series[dir_])
    with styled():
        figure = new_figure(WIDTH_IN, 1.2 + ROW_IN * len(matrix))
        ax = panels(figure, 1, 1)[0][0]
        _heat(figure, ax, matrix, buckets)
        named.label(ax, above=[text for text, _ in above])
        label = f"99th percentile of I/O latency of {len(series)} directories over time"
        svg = inline_svg(figure, "latency", label)
    return Plot(
        name="latency",
        svg=svg,
        caption=f"Each cell is {duration_text(buckets.bucket_s)}: 99 of 100 operations "
        "took no longer than this. Empty: nothing was measured.",
        data=_series_data(buckets, "p99_latency_ms", series),
    )


def _shares(points: Sequence[Row], buckets: Buckets) -> dict[Dir, list[float | None]]:
    shares = {}
    for dir_, rows in by_dir(points).items():
        used = buckets.series(rows, "used_bytes")
        total = buckets.series(rows, "total_bytes")
        shares[dir_] = [
            u / t if u is not None and t else None for u, t in zip(used, total, strict=True)
        ]
    return shares


def _share_top(values: Iterable[float | None]) -> float:
    """Return the upper end of an axis of shares: a little over 1, or lower if all shares are
    small."""
    top = max((value for value in values if value is not None), default=0.0)
    return 1.02 if top > 0.4 else max(0.01, top * 1.25)


def _usage_panel(
    ax: Axes,
    dirs: Sequence[Dir],
    shares: Mapping[Dir, Sequence[float | None]],
    buckets: Buckets,
    titles: dict[str, str],
    *,
    top: float,
    with_broker: bool = False,
) -> None:
    """Draw a line for each directory; the fullest at the end have colours and names.

    :param titles: gets the text of each line, by the line's id.
    :param top: upper end of the axis.
    """
    last = {
        dir_: next((share for share in reversed(shares[dir_]) if share is not None), 0.0)
        for dir_ in dirs
    }
    fullest = sorted(dirs, key=lambda dir_: (-last[dir_], dir_))[:_NAMED]
    times = [days(time_s + buckets.bucket_s / 2) for time_s in buckets.times_s]
    names = dict(zip(fullest, _names(fullest, with_broker=with_broker), strict=True))
    ends: list[tuple[float, str, Colour]] = []
    for dir_ in sorted(dirs, key=lambda dir_: dir_ in names):
        colour = SERIES[fullest.index(dir_) % len(SERIES)] if dir_ in names else BEFORE
        values = _floats(shares[dir_])
        marker = "o" if np.isfinite(values).sum() == 1 else "none"
        line = ax.plot(times, values, marker=marker, color=colour.light, markersize=3)[0]
        line.set_gid(f"line-{len(titles)}")
        titles[f"line-{len(titles)}"] = (
            f"broker {dir_[0]} {dir_[1]}: {share_text(last[dir_], 1)} at the end"
        )
        if dir_ in names:
            ends.append((last[dir_], names[dir_], colour))
    buckets.scale(ax, ticks=9 if with_broker else 6)
    ax.yaxis.set_major_locator(MaxNLocator(5))
    ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    ax.set_ylim(0, top)
    _name_ends(ax, ends, top)


def _names(dirs: Sequence[Dir], *, with_broker: bool) -> list[str]:
    short = short_paths([path for _, path in dirs], limit=16)
    if not with_broker:
        return short
    return [f"{broker}: {text}" for (broker, _), text in zip(dirs, short, strict=True)]


def _name_ends(ax: Axes, ends: Sequence[tuple[float, str, Colour]], top: float) -> None:
    """Write names to the right of the last points, moved apart so that they do not overlap."""
    ordered = sorted(ends, key=lambda end: end[0])
    places: list[float] = []
    for value, _, _ in ordered:
        places.append(max(value / top, places[-1] + _NAME_STEP if places else 0.0))
    highest = 1.0
    for rank in reversed(range(len(places))):
        places[rank] = min(places[rank], highest)
        highest = places[rank] - _NAME_STEP
    for (_, text, colour), place in zip(ordered, places, strict=True):
        ax.annotate(
            text,
            xy=(1.01, place),
            xycoords="axes fraction",
            va="center",
            fontsize=7.5,
            color=colour.light,
            annotation_clip=False,
        )


def _band(ax: Axes, bands: Sequence[Row], buckets: Buckets) -> None:
    times = [days(row["time"] + buckets.bucket_s / 2) for row in bands]

    def figure(name: str) -> list[float]:
        return [row[name] for row in bands]

    ax.fill_between(
        times,
        figure("low"),
        figure("high"),
        color=BAND.light,
        alpha=0.25,
        linewidth=0,
        label="5 to 95 % of directories",
    )
    ax.fill_between(
        times,
        figure("quarter"),
        figure("three_quarters"),
        color=BAND.light,
        alpha=0.45,
        linewidth=0,
        label="25 to 75 %",
    )
    ax.plot(times, figure("median"), color=INK.light, label="median")


def _heat(figure: Figure, ax: Axes, matrix: Any, buckets: Buckets) -> None:
    positive = matrix[matrix > 0]
    low = float(np.min(positive, initial=1.0))
    high = max(float(np.max(positive, initial=low)), low * 10)
    image = ax.imshow(
        np.where(matrix > 0, matrix, np.where(np.isnan(matrix), np.nan, low)),
        aspect="auto",
        interpolation="none",
        cmap="viridis",
        norm=LogNorm(low, high),
        extent=(buckets.edges[0], buckets.edges[-1], len(matrix) - 0.5, -0.5),
    )
    rows_only(ax)
    ax.grid(visible=False)
    buckets.scale(ax)
    bar = figure.colorbar(image, ax=ax, location="top", shrink=0.4, aspect=40, anchor=(1.0, 0.0))
    bar.outline.set_visible(False)
    bar.ax.xaxis.set_major_formatter(
        FuncFormatter(lambda ms, _: f"{ms:g} ms" if ms < 1000 else f"{ms / 1000:g} s")
    )
    bar.ax.xaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def _floats(values: Sequence[float | None]) -> Any:
    return np.array([np.nan if value is None else value for value in values], dtype=float)


def _series_data(
    buckets: Buckets, figure: str, series: Mapping[Dir, Sequence[float | None]]
) -> dict[str, Any]:
    return {
        "first": buckets.begin_s,
        "bucket_s": buckets.bucket_s,
        "dirs": [
            {
                "broker_id": broker_id,
                "path": path,
                figure: [None if value is None else float(f"{value:.4g}") for value in values],
            }
            for (broker_id, path), values in series.items()
        ],
    }


def _band_data(bands: Sequence[Row]) -> dict[str, list[Any]]:
    names = ("time", "dirs", "low", "quarter", "median", "three_quarters", "high", "most")
    return {name: [row[name] for row in bands] for name in names}
