"""WIRE. Plots of forecasts, of the growth of topics, and of a plan.

Rows are those of ``log_dir_forecasts``, ``growth`` and ``plan_dirs``, with times in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from kraftjbod.spark.plan.plan_picture import MOST_LINES, plan_figure
from kraftjbod.spark.report.report_plots import WIDTH_IN, Dir, Plot, Row
from kraftjbod.spark.style.figure_text import bytes_text, duration_text, rate_text, time_text
from kraftjbod.spark.style.plot_style import (
    AFTER,
    ALARM,
    BAND,
    INK,
    byte_scale,
    days,
    inline_svg,
    new_figure,
    panels,
    plain,
    rows_only,
    styled,
    time_scale,
)

#: Forecasts that are drawn; the table below has more.
MOST_FORECASTS: Final = 16
#: Directories whose history is drawn with their forecast.
MOST_CONES: Final = 3
#: Topics that are drawn.
MOST_TOPICS: Final = 16
#: Length of a drawn forecast, as a multiple of the length of its history.
_AHEAD: Final = 4.0
_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR
_TICKS: Final = {
    60.0: "1 min",
    10 * 60.0: "10 min",
    _HOUR: "1 h",
    6 * _HOUR: "6 h",
    _DAY: "1 d",
    2 * _DAY: "2 d",
    4 * _DAY: "4 d",
    7 * _DAY: "1 week",
    14 * _DAY: "2 weeks",
    30 * _DAY: "30 d",
    90 * _DAY: "90 d",
    365 * _DAY: "1 y",
    1095 * _DAY: "3 y",
    3650 * _DAY: "10 y",
}
_SOONEST_S: Final = 30.0
_LATEST_S: Final = 7300 * _DAY
_URGENT_S: Final = 7 * _DAY
_ROW_IN: Final = 0.25


def forecast_plot(forecasts: Sequence[Row]) -> Plot:
    """Return the plot of the time until a directory is full, with its 95 % band.

    Only the first 16 of ``forecasts`` are drawn; there must be one.
    """
    rows = list(forecasts[:MOST_FORECASTS])
    titles: dict[str, str] = {}
    with styled():
        figure = new_figure(WIDTH_IN, 0.7 + _ROW_IN * len(rows))
        ax = panels(figure, 1, 1)[0][0]
        for place, row in enumerate(rows):
            _whisker(ax, place, row)
            name = f"forecast-{place}"
            titles[name] = forecast_words(row)
            ax.lines[-1].set_gid(name)
        names = [f"{row['broker_id']}: {plain(row['path'], limit=30)}" for row in rows]
        ax.set_yticks(range(len(rows)), names)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xscale("log")
        shown = [left for row in rows for left in _lefts(row)]
        ax.set_xlim(min(shown) / 1.5, max(shown) * 1.5)
        ax.xaxis.set_major_locator(FixedLocator(list(_TICKS)))
        ax.xaxis.set_major_formatter(FuncFormatter(lambda left, _: _TICKS.get(left, "")))
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_xlabel("time left")
        rows_only(ax)
        svg = inline_svg(figure, "forecast", f"Time until {len(rows)} directories are full", titles)
    return Plot(
        name="forecast",
        svg=svg,
        caption="Time left until full, at the present growth; the bar is the 95 % band, an arrow "
        "says that it has no end. Orange: less than a week.",
        data={"forecasts": [dict(row) for row in rows]},
    )


def cone_plot(forecasts: Sequence[Row], history: Mapping[Dir, Sequence[Row]]) -> Plot | None:
    """Return the plot of the first three forecasts that have a history; None if none has one.

    :param history: POINTS of directories.
    """
    rows = [row for row in forecasts if history.get(_dir(row))][:MOST_CONES]
    if not rows:
        return None
    with styled():
        figure = new_figure(WIDTH_IN, 2.5)
        for ax, row in zip(panels(figure, 1, MOST_CONES)[0], rows, strict=False):
            _cone(ax, row, history[_dir(row)])
        for ax in figure.axes[len(rows) :]:
            ax.set_visible(False)
        names = ", ".join(f"broker {row['broker_id']} {row['path']}" for row in rows)
        svg = inline_svg(
            figure, "cone", f"Used bytes and their forecast: {plain(names, limit=300)}"
        )
    return Plot(
        name="cone",
        svg=svg,
        caption="Used bytes (line), where they are going (dashed) with the 95 % band, and the "
        "size of the directory (orange).",
        data={
            "dirs": [
                {
                    "broker_id": row["broker_id"],
                    "path": row["path"],
                    "time": [point["time"] for point in history[_dir(row)]],
                    "used_bytes": [point["used_bytes"] for point in history[_dir(row)]],
                }
                for row in rows
            ]
        },
    )


def growth_plot(growth: Sequence[Row]) -> Plot:
    """Return the plot of the size and growth of the first 16 rows of ``growth``, all of topics."""
    rows = list(growth[:MOST_TOPICS])
    places = range(len(rows))
    with styled():
        figure = new_figure(WIDTH_IN, 0.7 + _ROW_IN * len(rows))
        sizes, rates = panels(figure, 1, 2, sharey=True)[0]
        held = [float(row["size_bytes"] or 0) for row in rows]
        per_day = [float(row["growth_bytes_per_s"] or 0.0) * _DAY for row in rows]
        sizes.barh(places, held, height=0.66, color=AFTER.light)
        # Blue grows, orange shrinks: shown by the side of zero as well.
        rates.barh(
            places,
            per_day,
            height=0.66,
            color=[AFTER.light if rate >= 0 else ALARM.light for rate in per_day],
        )
        rates.axvline(0, color=INK.light, linewidth=0.8)
        byte_scale(sizes.xaxis, max(held, default=0.0), ticks=4)
        byte_scale(rates.xaxis, max(map(abs, per_day), default=0.0), "/d", ticks=4)
        sizes.set_yticks(places, [plain(row["name"], limit=34) for row in rows])
        sizes.set_ylim(len(rows) - 0.4, -0.6)
        sizes.set_title("Bytes of all replicas")
        rates.set_title("Growth")
        for ax in (sizes, rates):
            rows_only(ax)
        svg = inline_svg(figure, "growth", f"Size and growth of the {len(rows)} largest topics")
    return Plot(
        name="growth",
        svg=svg,
        caption="The largest topics, and how fast their replicas grow.",
        data={"topics": [dict(row) for row in rows]},
    )


def plan_plot(plan_dirs: Sequence[Row]) -> Plot:
    """Return the plot of directories before and after a plan.

    :mod:`~kraftjbod.spark.plan.plan_picture` draws it.

    :raises StartupError: no directory has a known size.
    """
    with styled():
        svg = inline_svg(plan_figure(plan_dirs), "plan", "Directories before and after the plan")
    used = ("broker_id", "path", "total_bytes", "bytes_before", "bytes_after")
    return Plot(
        name="plan",
        svg=svg,
        caption="Each directory before (ring) and after (dot) the plan."
        if len(plan_dirs) <= MOST_LINES
        else "How many directories hold and write how much, before and after the plan.",
        data={
            "dirs": [[row[name] for name in used] for row in plan_dirs],
            "columns": list(used),
        },
    )


def forecast_words(row: Row) -> str:
    """Return ``broker 1 /data/d1: 5 GiB of 9 GiB, 1 MiB/s; full in 3 d 4 h, 2026-… UTC``.

    Without ``full_at`` it ends in ``not before`` and the time ``earliest``.
    """
    where = f"broker {row['broker_id']} {row['path']}"
    grows = f"{bytes_text(row['used_bytes'])} of {bytes_text(row['total_bytes'])}, "
    grows += f"{rate_text(row['growth_bytes_per_s'])}"
    if row["full_at"] is None:
        return f"{where}: {grows}; not before {time_text(row['earliest'])} UTC"
    left = duration_text(row["full_at"] - row["to"])
    return f"{where}: {grows}; full in {left}, {time_text(row['full_at'])} UTC"


def _dir(row: Row) -> Dir:
    return int(row["broker_id"]), str(row["path"])


def _left(row: Row, end: str) -> float | None:
    """Return the seconds from the last sample to the time ``end``, limited to the range of the
    axis.

    None means that the forecast has no such end.
    """
    if row[end] is None:
        return None
    return float(min(max(row[end] - row["to"], _SOONEST_S), _LATEST_S))


def _lefts(row: Row) -> list[float]:
    lefts = [_left(row, end) for end in ("earliest", "full_at", "latest")]
    return [left for left in lefts if left is not None]


def _whisker(ax: Axes, place: int, row: Row) -> None:
    earliest, full, latest = (_left(row, end) for end in ("earliest", "full_at", "latest"))
    start = earliest if earliest is not None else full
    assert start is not None, "forecasts that do not fill are not drawn"
    colour = ALARM if start < _URGENT_S else AFTER
    end = latest if latest is not None else max(start, full or start) * 1.4
    ax.plot([start, end], [place, place], color=colour.light, linewidth=5, alpha=0.35)
    if latest is None:
        ax.plot(end, place, ">", color=colour.light, markersize=5, alpha=0.6)
    if full is not None:
        ax.plot(full, place, "o", color=colour.light, markersize=6)


def _cone(ax: Axes, row: Row, history: Sequence[Row]) -> None:
    known = [point for point in history if point["used_bytes"] is not None]
    ax.plot(
        [days(point["time"]) for point in known],
        [point["used_bytes"] for point in known],
        color=AFTER.light,
    )
    total, used, now = float(row["total_bytes"]), float(row["used_bytes"]), float(row["to"])
    start = min([float(row["from"]), *(point["time"] for point in known)])
    horizon = now + _AHEAD * max(now - start, 60.0)
    if (last := row["latest"] or row["full_at"]) is not None:
        # The whole band where it fits in, and as much again after a line without an end.
        horizon = min(horizon, last if row["latest"] else 2 * last - now)
    horizon = max(horizon, now + 1.0)
    low, middle, high = (
        _on_the_way(used, total, now, row[name], horizon)
        for name in ("latest", "full_at", "earliest")
    )
    ax.fill(
        [days(time) for time in (now, high[0], horizon, low[0])],
        [used, high[1], high[1], low[1]],
        color=BAND.light,
        alpha=0.35,
        linewidth=0,
    )
    ax.plot(
        [days(now), days(middle[0])], [used, middle[1]], color=AFTER.light, linestyle=(0, (4, 2))
    )
    ax.axhline(total, color=ALARM.light, linewidth=1.2)
    time_scale(ax, start, horizon, ticks=6)
    ax.set_ylim(0, total * 1.08)
    byte_scale(ax.yaxis, total, ticks=4)
    ax.set_title(f"{row['broker_id']}: {plain(row['path'], limit=30)}")


def _on_the_way(
    used: float, total: float, now: float, full_at: float | None, horizon: float
) -> tuple[float, float]:
    """Return time and bytes of the point at which a forecast line leaves the plot.

    The line starts at ``now`` with ``used`` bytes. It ends at the top, ``total`` bytes, if
    ``full_at`` is before the horizon, else at the horizon. It is horizontal if ``full_at`` is None.
    """
    if full_at is None:
        return horizon, used
    if full_at <= horizon:
        return max(full_at, now), total
    return horizon, used + (total - used) * (horizon - now) / (full_at - now)
