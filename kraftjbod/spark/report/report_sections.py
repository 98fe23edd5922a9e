"""WIRE. The sections of a report: each has a sentence about its figures, tables and plots.

A section whose tables are missing names the job that writes them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from kraftjbod.core.errors import StartupError
from kraftjbod.spark.report.report_data import ReportData, Rows, fullest
from kraftjbod.spark.report.report_page import (
    Html,
    Section,
    command,
    figure,
    meter,
    moment,
    state,
    table,
)
from kraftjbod.spark.report.report_plots import (
    Plot,
    Row,
    by_dir,
    latency_plot,
    usage_band_plot,
    usage_plot,
)
from kraftjbod.spark.report.report_summary import rows_in_all, time_left_s, used_bytes, used_share
from kraftjbod.spark.report.report_timeline import timeline_plot
from kraftjbod.spark.report.report_trends import cone_plot, forecast_plot, growth_plot, plan_plot
from kraftjbod.spark.style.figure_text import (
    NOTHING,
    bytes_text,
    count_text,
    duration_text,
    minute_text,
    ms_text,
    rate_text,
    share_text,
    time_text,
)

_FULL: Final = 0.8
_FULLEST: Final = 10
#: Texts of findings whose name alone is unclear.
_FOUND: Final = {"errors": "with errors"}
_COMMANDS: Final = {
    "telemetry": "kraftjbod-pipeline telemetry --bootstrap-server HOST:PORT --tables {tables}",
    "plan": "kraftjbod-pipeline plan --bootstrap-server HOST:PORT --tables {tables}",
    "audit": "kraftjbod-pipeline audit --bootstrap-server HOST:PORT --tables {tables}",
    "ingest": "kraftjbod-pipeline ingest --bootstrap-server HOST:PORT --tables {tables}",
}


class ReportSections:
    """Builds the sections of one report, and keeps the numbers of its plots in ``numbers``."""

    def __init__(self, data: ReportData, tables_at: str) -> None:
        self._data = data
        self._tables_at = tables_at
        self.numbers: dict[str, Any] = {}

    def all(self) -> list[Section]:
        """Return the sections in the order of the page: problems first."""
        return [
            self.findings(),
            self.timeline(),
            self.usage(),
            self.forecast(),
            self.latency(),
            self.skew(),
            self.growth(),
            self.audit(),
            self.ingest(),
        ]

    def findings(self) -> Section:
        outliers = self._data.outliers
        if outliers is None:
            return self._missing("findings", "Findings", "telemetry")
        if not outliers:
            return Section(
                name="findings",
                heading="Findings",
                lead="No directory is slow, failing or out of service beside its peers.",
            )
        words = ", ".join(
            f"{count:,} {_FOUND.get(finding, finding)}"
            for finding, count in self._data.findings.most_common()
        )
        rows = [
            (
                state(str(row["finding"])),
                row["broker_id"],
                row["path"],
                moment(time_text(row["since"])),
                _finding_text(row, "value"),
                _finding_text(row, "peers"),
            )
            for row in outliers
        ]
        in_all = self._data.findings.total()
        columns = ("Finding", "Broker", "Directory", "Since (UTC)", "Here", "Its peers")
        return Section(
            name="findings",
            heading="Findings",
            lead=f"{count_text(in_all, 'finding')}: {words}.",
            parts=[
                table(
                    "outliers",
                    "Directories beside their peers",
                    columns,
                    rows,
                    numbers=(1, 4, 5),
                    left_out=in_all - len(rows),
                )
            ],
        )

    def timeline(self) -> Section:
        name, heading, data = "timeline", "Disks over time", self._data
        if data.states is None or data.buckets is None:
            return self._missing(name, heading, "telemetry")
        troubled = [row for row in data.dirs if row["troubled"]]
        lead = "Every directory was online all the time."
        if troubled:
            now = sum(row["state"] != "online" for row in data.dirs)
            lead = (
                f"{count_text(len(troubled), 'directory', 'directories')} of {len(data.dirs):,} "
                f"had trouble; {now:,} {'is' if now == 1 else 'are'} not online now."
            )
        if not data.states:
            if troubled:
                lead += " The table log_dir_samples holds nothing of that time."
            return Section(name=name, heading=heading, lead=lead)
        plot = timeline_plot(data.states, data.state_counts, data.buckets)
        shown = len(by_dir(data.states))
        if shown < len(data.dirs):
            lead += f" The {shown} with most of it are shown."
        return Section(name=name, heading=heading, lead=lead, parts=[self._drawn(plot)])

    def usage(self) -> Section:
        name, heading, data = "usage", "Usage", self._data
        if data.buckets is None:
            return self._missing(name, heading, "telemetry")
        ordered = fullest(data.dirs)
        if not ordered or not data.usage:
            return Section(name=name, heading=heading, lead="No directory reported its size.")
        full = sum(used_share(row) >= _FULL for row in ordered)
        first = ordered[0]
        words = f"{full:,} of" if full else "None of"
        lead = (
            f"{words} {count_text(len(data.dirs), 'directory', 'directories')} "
            f"{'are' if full > 1 else 'is'} over {100 * _FULL:.0f} % full; the fullest is "
            f"{first['path']} of broker {first['broker_id']} with "
            f"{share_text(used_bytes(first), first['total_bytes'])}."
        )
        if data.is_large:
            shown = {(row["broker_id"], row["path"]) for row in ordered[:6]}
            points = [row for row in data.usage if (row["broker_id"], row["path"]) in shown]
            plot = usage_band_plot(data.usage_bands, points, data.buckets)
        else:
            plot = usage_plot(data.usage, data.buckets)
        return Section(
            name=name,
            heading=heading,
            lead=lead,
            parts=[self._drawn(plot), _dirs_table(ordered)],
        )

    def forecast(self) -> Section:
        name, heading, rows = "forecast", "Forecast", self._data.forecasts
        if rows is None:
            return self._missing(name, heading, "telemetry")
        if not rows:
            return Section(name=name, heading=heading, lead="No directory is filling up.")
        filling = [row for row in rows if row["full_at"] is not None]
        lead = "No directory fills at the present growth, though some may."
        if filling:
            soonest = filling[0]
            lead = (
                f"{soonest['path']} of broker {soonest['broker_id']} is full first, in "
                f"{duration_text(time_left_s(soonest))} at the present growth."
            )
        plots = [forecast_plot(rows), cone_plot(rows, by_dir(self._data.usage))]
        return Section(
            name=name,
            heading=heading,
            lead=lead,
            parts=[
                *(self._drawn(plot) for plot in plots if plot is not None),
                _forecast_table(rows, self._data.forecasts_in_all),
            ],
        )

    def latency(self) -> Section:
        name, heading, data = "latency", "Latency", self._data
        if data.buckets is None:
            return self._missing(name, heading, "telemetry")
        plot = latency_plot(data.latency, data.latency_bands, data.buckets)
        measured = [row for row in data.dirs if row["worst_p99_ms"] is not None]
        if plot is None or not measured:
            return Section(name=name, heading=heading, lead="No operation was measured.")
        worst = max(measured, key=lambda row: row["worst_p99_ms"])
        lead = (
            f"The slowest window was one of {worst['path']} of broker {worst['broker_id']}: 99 % "
            f"of its operations took up to {ms_text(worst['worst_p99_ms'])}."
        )
        if data.is_large:
            lead += f" The {len(by_dir(data.latency))} slowest directories are shown."
        return Section(name=name, heading=heading, lead=lead, parts=[self._drawn(plot)])

    def skew(self) -> Section:
        name, heading, data = "skew", "Balance", self._data
        if data.skew is None and data.plan_dirs is None:
            return self._missing(name, heading, "telemetry")
        parts: list[Html] = []
        lead = "How uneven things are: the largest part over the mean, 1 is even."
        if data.plan_dirs:
            lead = _plan_lead(data.plan_moves)
            try:
                parts.append(self._drawn(plan_plot(data.plan_dirs)))
            except StartupError as e:
                lead += f" Not drawn: {e}."
        else:
            parts.append(self._hint("plan"))
        if data.skew:
            columns = ("Of", "Name", "Parts", "Smallest", "Mean", "Largest", "Skew")
            parts.append(
                table(
                    "skews",
                    "The most uneven: largest part over the mean",
                    columns,
                    [_skew_row(row) for row in data.skew],
                    numbers=(2, 3, 4, 5, 6),
                )
            )
        return Section(name=name, heading=heading, lead=lead, parts=parts)

    def growth(self) -> Section:
        name, heading, rows = "growth", "Topics", self._data.growth
        if rows is None:
            return self._missing(name, heading, "telemetry")
        if not rows:
            return Section(name=name, heading=heading, lead="No topic was reported.")
        fastest = max(rows, key=lambda row: row["growth_bytes_per_s"] or 0.0)
        lead = f"{rows[0]['name']} is the largest of {count_text(self._data.topics_in_all)}"
        if (fastest["growth_bytes_per_s"] or 0.0) > 0:
            rate = rate_text(fastest["growth_bytes_per_s"])
            lead += f"; of those below, {fastest['name']} grows fastest, {rate}"
        columns = ("Topic", "Bytes", "Replicas", "Growth", "Written")
        shown = [
            (
                row["name"],
                bytes_text(row["size_bytes"]),
                count_text(row["replicas"]),
                rate_text(row["growth_bytes_per_s"]),
                rate_text(row["write_bytes_per_s"]),
            )
            for row in rows
        ]
        topics = table(
            "topics",
            "The largest topics",
            columns,
            shown,
            numbers=(1, 2, 3, 4),
            left_out=self._data.topics_in_all - len(rows),
        )
        return Section(
            name=name,
            heading=heading,
            lead=f"{lead}.",
            parts=[self._drawn(growth_plot(rows)), topics],
        )

    def audit(self) -> Section:
        name, heading, counts = "audit", "Audit", self._data.audit_counts
        if counts is None:
            return self._missing(name, heading, "audit")
        audit = "the last audit"
        if self._data.audit_is_unfinished:
            audit += " that ended. A later one has not ended"
        if not counts:
            return Section(name=name, heading=heading, lead=f"0 differences found by {audit}.")
        in_all = rows_in_all(counts)
        words = ", ".join(f"{row['rows']:,} {row['difference']}" for row in counts)
        columns = ("Difference", "Topic", "Partition", "Offset", "Broker", "Producer", "What")
        fields = ("difference", "topic", "partition", "offset", "broker_id", "producer", "detail")
        shown = [
            tuple(NOTHING if row[field] is None else row[field] for field in fields)
            for row in self._data.audit_rows
        ]
        return Section(
            name=name,
            heading=heading,
            lead=f"{count_text(in_all, 'difference')}, {words}, found by {audit}.",
            parts=[
                table(
                    "differences-by-kind",
                    "By kind",
                    ("Difference", "Topics", "Count"),
                    [(row["difference"], row["topics"], f"{row['rows']:,}") for row in counts],
                    numbers=(1, 2),
                ),
                table(
                    "differences",
                    "Differences",
                    columns,
                    shown,
                    numbers=(2, 3, 4),
                    left_out=in_all - len(shown),
                ),
            ],
        )

    def ingest(self) -> Section:
        name, heading, rows = "ingest", "Ingest", self._data.ingested
        if rows is None:
            return self._missing(name, heading, "ingest")
        by_status: Counter[str] = Counter()
        for row in rows:
            by_status[str(row["status"])] += row["records"]
        words = ", ".join(f"{count:,} {status}" for status, count in by_status.most_common())
        columns = ("Topic", "Status", "Reason", "Records", "Bytes")
        shown = [
            (
                row["topic"],
                row["status"],
                row["reason"] or "",
                f"{row['records']:,}",
                bytes_text(row["bytes"]),
            )
            for row in rows
        ]
        parts = [table("records", "Records by topic", columns, shown, numbers=(3, 4))]
        return Section(
            name=name,
            heading=heading,
            lead=f"{count_text(by_status.total(), 'record')}: {words}." if rows else "0 records.",
            parts=parts if rows else [],
        )

    def _drawn(self, plot: Plot) -> Html:
        self.numbers[plot.name] = plot.data
        return figure(plot.name, plot.svg, plot.caption)

    def _hint(self, job: str) -> Html:
        return command(_COMMANDS[job].format(tables=self._tables_at))

    def _missing(self, name: str, heading: str, job: str) -> Section:
        return Section(
            name=name,
            heading=heading,
            lead="There is no table for this yet; this command makes it:",
            parts=[self._hint(job)],
            missing=True,
        )


def _dirs_table(ordered: Rows) -> Html:
    columns = ("Broker", "Directory", "State", "Used", "Free", "Replicas hold", "Written")
    rows = [
        (
            row["broker_id"],
            row["path"],
            state(str(row["state"]), f"{row['state']}{', cordoned' if row['is_cordoned'] else ''}"),
            meter(used_share(row), share_text(used_bytes(row), row["total_bytes"])),
            bytes_text(row["free_bytes"]),
            bytes_text(row["replica_bytes"]),
            rate_text(row["append_bytes_per_s"]),
        )
        for row in ordered[:_FULLEST]
    ]
    return table(
        "fullest",
        "The fullest directories",
        columns,
        rows,
        numbers=(0, 3, 4, 5, 6),
        left_out=len(ordered) - len(rows),
    )


def _forecast_table(rows: Rows, in_all: int) -> Html:
    columns = ("Broker", "Directory", "Used", "Growth", "Full in", "Full at (UTC)", "95 % band")
    shown = [
        (
            row["broker_id"],
            row["path"],
            meter(_part(row), f"{share_text(row['used_bytes'], row['total_bytes'])}"),
            rate_text(row["growth_bytes_per_s"]),
            duration_text(None if row["full_at"] is None else time_left_s(row)),
            moment(minute_text(row["full_at"])),
            _band_text(row),
        )
        for row in rows
    ]
    return table(
        "forecasts",
        "Soonest full first",
        columns,
        shown,
        numbers=(0, 2, 3, 4),
        left_out=in_all - len(shown),
    )


def _band_text(row: Row) -> str:
    ends = [
        None if row[end] is None else max(0.0, row[end] - row["to"])
        for end in ("earliest", "latest")
    ]
    first = "now" if ends[0] == 0 else duration_text(ends[0])
    last = "perhaps never" if ends[1] is None else duration_text(ends[1])
    return f"{first} to {last}"


def _plan_lead(moves: Row | None) -> str:
    if moves is None:
        return "What the last plan changes."
    if not moves["moves"]:
        return "The last plan moves nothing: it is even enough."
    return (
        f"The last plan moves {count_text(moves['moves'], 'replica')}, "
        f"{bytes_text(moves['size_bytes'])}; {moves['across_brokers']:,} of them to another broker."
    )


def _skew_row(row: Row) -> Sequence[object]:
    return (
        row["scope"],
        row["name"],
        count_text(row["parts"]),
        bytes_text(row["min_bytes"]),
        bytes_text(row["mean_bytes"]),
        bytes_text(row["max_bytes"]),
        NOTHING if row["skew"] is None else f"{row['skew']:.2f}",
    )


def _finding_text(row: Row, name: str) -> str:
    value = row[name]
    if value is None:
        return NOTHING
    return ms_text(value) if row["finding"] == "slow" else f"{value:,.6g}"


def _part(row: Row) -> float | None:
    return row["used_bytes"] / row["total_bytes"] if row["total_bytes"] else None
