"""WIRE. The summary of a report: a row of figures for the page, and the same as numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from kraftjbod.spark.report.report_data import ReportData, Rows, fullest
from kraftjbod.spark.report.report_page import Html, Tile, tiles
from kraftjbod.spark.report.report_plots import Row
from kraftjbod.spark.style.figure_text import bytes_text, duration_text, rate_text, share_text
from kraftjbod.spark.style.plot_style import plain

_SOON_S: Final = 7 * 86_400


def summary(data: ReportData) -> Html:
    """Return the row of figures at the top of the page."""
    numbers = summary_numbers(data)
    entries: list[Tile] = []
    if data.dirs:
        entries += _cluster_tiles(data.dirs, numbers)
    if data.forecasts is not None:
        entries.append(_soonest_tile(data.forecasts))
    found, differences = numbers["findings"], numbers["audit_differences"]
    if found is not None:
        entries.append(Tile(figure=f"{found:,}", label="findings", tone="bad" if found else "good"))
    if differences is not None:
        tone = "bad" if differences else "warn" if data.audit_is_unfinished else "good"
        entries.append(Tile(figure=f"{differences:,}", label="audit differences", tone=tone))
    return tiles(entries)


def summary_numbers(data: ReportData) -> dict[str, Any]:
    """Return the summary as numbers, for programs. Times are seconds since 1970."""
    known = fullest(data.dirs)
    soonest = next(iter(data.forecasts or ()), None)
    return {
        "from": data.span[0] if data.span else None,
        "to": data.span[1] if data.span else None,
        "brokers": len({row["broker_id"] for row in data.dirs}),
        "log_dirs": len(data.dirs),
        "states": dict(Counter(str(row["state"]) for row in data.dirs)),
        "cordoned": sum(bool(row["is_cordoned"]) for row in data.dirs),
        "total_bytes": sum(row["total_bytes"] for row in known),
        "used_bytes": sum(used_bytes(row) for row in known),
        "soonest_full": soonest["full_at"] if soonest else None,
        "findings": None if data.outliers is None else data.findings.total(),
        "audit_differences": None if data.audit_counts is None else rows_in_all(data.audit_counts),
        "missing_tables": sorted(data.missing),
    }


def _cluster_tiles(dirs: Rows, numbers: Mapping[str, Any]) -> list[Tile]:
    total, used, states = numbers["total_bytes"], numbers["used_bytes"], numbers["states"]
    ill = {name: count for name, count in states.items() if name != "online"}
    tone = "bad" if "offline" in ill else "warn" if ill else "good"
    words = ", ".join(f"{count} {name}" for name, count in sorted(ill.items())) or "all online"
    cordoned = numbers["cordoned"]
    return [
        Tile(figure=f"{numbers['brokers']:,}", label="brokers"),
        Tile(
            figure=f"{numbers['log_dirs']:,}",
            label=f"directories, {words}" + (f", {cordoned} cordoned" if cordoned else ""),
            tone=tone,
        ),
        Tile(
            figure=share_text(used, total),
            label=f"used, {bytes_text(used)} of {bytes_text(total)}",
        ),
        Tile(
            figure=rate_text(sum(row["append_bytes_per_s"] or 0.0 for row in dirs)),
            label="written in the last window",
        ),
    ]


def _soonest_tile(forecasts: Rows) -> Tile:
    filling = [row for row in forecasts if row["full_at"] is not None]
    if not filling:
        return Tile(figure="none", label="directories filling up", tone="good")
    left = time_left_s(filling[0])
    return Tile(
        figure=duration_text(left),
        label=f"until the first is full: broker {filling[0]['broker_id']}, "
        + plain(filling[0]["path"], limit=30),
        tone="bad" if left < _SOON_S else "warn" if left < 4 * _SOON_S else "",
    )


def rows_in_all(counts: Rows) -> int:
    """Return the sum of ``rows`` over rows of AUDIT_COUNTS."""
    return sum(int(row["rows"]) for row in counts)


def used_bytes(row: Row) -> int:
    """Return total less free bytes of a directory row, whose size must be known."""
    return int(row["total_bytes"] - row["free_bytes"])


def used_share(row: Row) -> float:
    """Return the used share (0 to 1) of a directory row, whose size must be known."""
    return used_bytes(row) / float(row["total_bytes"])


def time_left_s(row: Row) -> float:
    """Return the seconds from the last sample to ``full_at``; at least 0.

    :param row: a forecast whose ``full_at`` is not None.
    """
    return float(max(0.0, row["full_at"] - row["to"]))
