"""WIRE. Draws a plan: used shares and write rates of the directories, before and after.

Few directories are drawn as one line each, and many as distributions. Rows are those of
``plan_dirs``. Directories of unknown size are left out; the picture states their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

from kraftjbod.core.errors import StartupError
from kraftjbod.core.text.size_text import size_text
from kraftjbod.spark.style.plot_style import (
    AFTER,
    BEFORE,
    INK,
    DirRows,
    byte_scale,
    natural,
    new_figure,
    panels,
    picture,
    rows_only,
    styled,
)

#: Maximum number of directories drawn as lines.
MOST_LINES: Final = 48
_KINDS: Final = {".svg": "svg", ".png": "png"}
_BINS: Final = 60
_WIDTH_IN: Final = 10.0
_LINE_IN: Final = 0.24

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """One figure of all directories, before and after the plan.

    ``evens`` has, per directory, the figure if the directories of its broker were equal after the
    plan. ``mean`` is the mean of the whole cluster after the plan. ``is_share``: values are shares
    from 0 to 1, else bytes per second.
    """

    title: str
    before: Sequence[float]
    after: Sequence[float]
    evens: Sequence[float]
    mean: float
    is_share: bool
    counted: str = "directories"

    def text(self, value: float) -> str:
        if not self.is_share:
            return f"{size_text(value)}/s"
        # Avoid 0.0% for a small part of a large disk.
        return f"{100 * value:.2g}%" if 0 < value < 0.01 else f"{value:.1%}"

    @property
    def story(self) -> str:
        """A text about the change of the largest value."""
        return f"most: {self.text(max(self.before))} → {self.text(max(self.after))}"


def draw_plan(rows: Sequence[Row], path: Path) -> None:
    """Write the picture to ``path``, as SVG or PNG by its suffix, and create missing folders.

    :raises StartupError: another suffix, or no directory has a known size.
    """
    kind = _KINDS.get(path.suffix.lower())
    if kind is None:
        raise StartupError(f"{path}: pictures are written as .svg or .png; name one of these")
    with styled():
        content = picture(plan_figure(rows), kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


def plan_figure(rows: Sequence[Row]) -> Figure:
    """Return the picture as a figure.

    Call it inside :func:`~kraftjbod.spark.style.plot_style.styled`.

    :raises StartupError: no directory has a known size.
    """
    known = sorted(
        (row for row in rows if (row["total_bytes"] or 0) > 0),
        key=lambda row: (row["broker_id"], natural(row["path"])),
    )
    if not known:
        raise StartupError("a plan without a directory of known size has no picture")
    measures = plan_measures(known)
    if len(known) <= MOST_LINES:
        figure = _lines(known, measures)
    else:
        figure = _distributions(known, measures)
    unknown = len(rows) - len(known)
    words = f"{len(known):,} directories before and after"
    figure.suptitle(
        words + (f"; {unknown:,} without a known size left out" if unknown else ""),
        x=0.01,
        ha="left",
        fontsize=11,
        fontweight="bold",
    )
    return figure


def plan_measures(rows: Sequence[Row]) -> list[Measure]:
    """Return the used shares, and the write rates if any bytes are written."""
    measures = [
        Measure(
            title="Used by replicas",
            before=[(row["bytes_before"] or 0) / row["total_bytes"] for row in rows],
            after=[(row["bytes_after"] or 0) / row["total_bytes"] for row in rows],
            evens=_evens(rows, "bytes_after", "total_bytes"),
            mean=_mean(rows, "bytes_after", "total_bytes"),
            is_share=True,
        )
    ]
    before = [float(row["write_rate_before"] or 0) for row in rows]
    after = [float(row["write_rate_after"] or 0) for row in rows]
    if max(*before, *after, 0) > 0:
        measures.append(
            Measure(
                title="Written",
                before=before,
                after=after,
                evens=_evens(rows, "write_rate_after"),
                mean=_mean(rows, "write_rate_after"),
                is_share=False,
            )
        )
    return measures


def _mean(rows: Sequence[Row], figure: str, whole: str | None = None) -> float:
    """Return the mean of a column over ``rows``, or its sum as a share of the sum of ``whole``."""
    of = len(rows) if whole is None else sum(row[whole] for row in rows)
    return float(sum(row[figure] or 0 for row in rows) / of)


def _evens(rows: Sequence[Row], figure: str, whole: str | None = None) -> list[float]:
    """Return, for each row, the mean over the rows of its broker.

    Rows are sorted by broker.
    """
    evens: list[float] = []
    for _, group in groupby(rows, key=lambda row: row["broker_id"]):
        of_broker = list(group)
        evens += [_mean(of_broker, figure, whole)] * len(of_broker)
    return evens


def _lines(rows: Sequence[Row], measures: Sequence[Measure]) -> Figure:
    """Return a figure with one line per directory, from its value before the plan to that after."""
    named = DirRows.of_dirs((row["broker_id"], row["path"]) for row in rows)
    places = named.places
    figure = new_figure(_WIDTH_IN, 1.3 + _LINE_IN * named.height)
    axes = panels(figure, 1, len(measures), sharey=True)[0]
    for ax, measure in zip(axes, measures, strict=True):
        ax.hlines(places, measure.before, measure.after, color=BEFORE.light, linewidth=2.2)
        ax.plot(
            measure.before,
            places,
            "o",
            markersize=6.5,
            markerfacecolor="none",
            markeredgewidth=1.5,
            color=BEFORE.light,
            label="before",
        )
        ax.plot(measure.after, places, "o", markersize=6.5, color=AFTER.light, label="after")
        ax.vlines(
            measure.evens,
            [place - 0.5 for place in places],
            [place + 0.5 for place in places],
            color=INK.light,
            linewidth=1,
            linestyle=(0, (2, 2)),
            label="even within the broker",
        )
        _scale(ax, measure)
        rows_only(ax)
    named.label(axes[0])
    _legend(figure, axes[0])
    return figure


def _distributions(rows: Sequence[Row], measures: Sequence[Measure]) -> Figure:
    """Return histograms of the directories, and of the difference between directories of one
    broker."""
    measures = [*measures, *_gaps(rows, measures[0])]
    figure = new_figure(_WIDTH_IN, 0.9 + 2.3 * len(measures))
    column = [row[0] for row in panels(figure, len(measures), 1)]
    for ax, measure in zip(column, measures, strict=True):
        top = max(*measure.before, *measure.after)
        edges = np.linspace(0, top if top > 0 else 1, _BINS + 1).tolist()
        ax.hist(measure.before, edges, color=BEFORE.light, alpha=0.55, label="before")
        ax.hist(measure.after, edges, color=AFTER.light, alpha=0.3)
        ax.hist(
            measure.after,
            edges,
            histtype="step",
            color=AFTER.light,
            linewidth=1.6,
            label="after",
        )
        ax.axvline(
            measure.mean, color=INK.light, linestyle=(0, (2, 3)), linewidth=1, label="mean after"
        )
        # After a good plan a few bars have nearly all directories; small bars must stay visible.
        ax.set_yscale("symlog", linthresh=10)
        ax.yaxis.set_major_formatter(FuncFormatter(lambda count, _: f"{count:,.0f}"))
        ax.set_ylim(bottom=0)
        _scale(ax, measure)
        ax.set_ylabel(measure.counted)
    _legend(figure, column[0])
    return figure


def _gaps(rows: Sequence[Row], measure: Measure) -> list[Measure]:
    """Return, per broker, the largest minus the smallest value; empty if brokers have one
    directory."""
    gaps: list[tuple[float, float]] = []
    paired = zip(rows, measure.before, measure.after, strict=True)
    for _, group in groupby(paired, key=lambda entry: entry[0]["broker_id"]):
        shares = list(group)
        if len(shares) > 1:
            earlier, afters = [s[1] for s in shares], [s[2] for s in shares]
            gaps.append((max(earlier) - min(earlier), max(afters) - min(afters)))
    if not gaps:
        return []
    return [
        Measure(
            title="Fullest less emptiest directory of each broker",
            before=[before for before, _ in gaps],
            after=[after for _, after in gaps],
            evens=[],
            mean=sum(after for _, after in gaps) / len(gaps),
            is_share=True,
            counted="brokers",
        )
    ]


def _scale(ax: Axes, measure: Measure) -> None:
    top = max(*measure.before, *measure.after)
    ax.set_xlim(0, top * 1.06 if top > 0 else 1)
    if measure.is_share:
        ax.xaxis.set_major_locator(MaxNLocator(6))
        ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    else:
        byte_scale(ax.xaxis, top, "/s")
    ax.set_title(f"{measure.title} ({measure.story})")


def _legend(figure: Figure, ax: Axes) -> None:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=3)
