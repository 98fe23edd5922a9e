"""WIRE. ``kraftjbod-pipeline report``: one HTML page about the cluster's storage, from the tables.

The page is a single file that needs no network. It is smaller than ``report_page.MOST_BYTES`` for
any number of directories, because large clusters are drawn as bands and counts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from kraftjbod.core.text.size_text import size_text
from kraftjbod.spark.report.report_data import ReportData, read_report_data
from kraftjbod.spark.report.report_page import page
from kraftjbod.spark.report.report_sections import ReportSections
from kraftjbod.spark.report.report_summary import summary, summary_numbers
from kraftjbod.spark.session.job import Job, JobOutcome, job_command
from kraftjbod.spark.style.figure_text import duration_text, time_text

_TITLE: Final = "Storage report"


@job_command("report")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    default="report.html",
    show_default=True,
    help="File for the page.",
)
@click.option("--title", default=_TITLE, show_default=True, help="The page's heading.")
@click.option(
    "--hours",
    type=click.FloatRange(min=0, min_open=True),
    help="Only the last hours of the telemetry.  [default: all of it]",
)
def command(job: Job, out: Path, title: str, hours: float | None) -> JobOutcome:
    """Write usage, forecasts, latencies, failures, balance and audits to one HTML page."""
    job.step(f"reading {job.tables}")
    data = read_report_data(job, hours=hours)
    job.step("drawing")
    text = report_page(data, tables_at=job.tables, title=title, now_s=datetime.now(UTC).timestamp())
    out.parent.mkdir(parents=True, exist_ok=True)
    # A rename, so that a browser never loads an incomplete page.
    beside = out.with_name(f".{out.name}.new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(out)
    figures = summary_numbers(data)
    size = len(text.encode())
    return JobOutcome(
        summary={"report": str(out.resolve()), "size_bytes": size, **figures},
        lines=(
            f"Report: {out.resolve()} ({size_text(size)})",
            f"{figures['log_dirs']:,} directories of {figures['brokers']:,} brokers",
            *([f"Without: {', '.join(data.missing)}"] if data.missing else []),
        ),
    )


def report_page(data: ReportData, *, tables_at: str, title: str, now_s: float) -> str:
    """Return the HTML page of ``data``.

    :param tables_at: folder of the tables, shown in the page.
    :param now_s: current time, in seconds since 1970.
    """
    sections = ReportSections(data, tables_at)
    shown = sections.all()
    subtitle = f"Written {time_text(now_s)} UTC from {tables_at}"
    if data.span is not None:
        first, last = data.span
        subtitle = (
            f"{time_text(first)} to {time_text(last)} UTC ({duration_text(last - first)}). "
            + subtitle
        )
    numbers = {"summary": summary_numbers(data), **sections.numbers}
    return page(title, f"{subtitle}.", summary(data), shown, numbers)
