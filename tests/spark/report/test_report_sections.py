"""The sections of a report, from explicit figures."""

from __future__ import annotations

import random
import re
from typing import Any, Final

from kraftjbod.spark.report.report_data import ReportData
from kraftjbod.spark.report.report_job import report_page
from kraftjbod.spark.report.report_page import MOST_BYTES, Section
from kraftjbod.spark.report.report_plots import MOST_BUCKETS, Buckets
from kraftjbod.spark.report.report_sections import ReportSections
from kraftjbod.spark.report.report_summary import summary

BEGIN: Final = 1_795_219_200.0
TIB: Final = 1024**4
BANDS: Final = ("low", "quarter", "median", "three_quarters", "high", "most")


def summary_row(broker: int, path: str, **more: Any) -> dict[str, Any]:
    return {
        "broker_id": broker,
        "path": path,
        "last_seen": BEGIN + 3600,
        "state": "online",
        "is_cordoned": False,
        "total_bytes": 4 * TIB,
        "free_bytes": 3 * TIB,
        "replica_bytes": TIB,
        "append_bytes_per_s": 1024.0,
        "worst_p99_ms": 5.0,
        "io_errors": 0,
        "troubled": 0,
        **more,
    }


def sections_of(data: ReportData) -> dict[str, Section]:
    return {section.name: section for section in ReportSections(data, "T").all()}


def text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html)).strip()


def test_sections_without_data_are_marked_missing() -> None:
    sections = sections_of(ReportData())
    assert [section.missing for section in sections.values()] == [True] * 9
    assert "kraftjbod-pipeline audit --bootstrap-server HOST:PORT --tables T" in text(
        "".join(sections["audit"].parts)
    )
    assert summary(ReportData()) == '<div class="tiles"></div>'


def test_sections_of_empty_tables_report_no_problems() -> None:
    data = ReportData(
        forecasts=[], outliers=[], growth=[], skew=[], audit_counts=[], ingested=[], states=[]
    )
    leads = {
        name: section.lead for name, section in sections_of(data).items() if not section.missing
    }
    assert leads == {
        "findings": "No directory is slow, failing or out of service beside its peers.",
        "forecast": "No directory is filling up.",
        "skew": "How uneven things are: the largest part over the mean, 1 is even.",
        "growth": "No topic was reported.",
        "audit": "0 differences found by the last audit.",
        "ingest": "0 records.",
    }
    assert text(summary(data)) == "none directories filling up 0 findings 0 audit differences"


def test_section_leads_state_the_main_finding() -> None:
    hour = Buckets(first_s=BEGIN, last_s=BEGIN + 3600, bucket_s=600)
    dirs = [
        summary_row(1, "/a", free_bytes=TIB // 4, worst_p99_ms=1500.0),
        summary_row(1, "/b", state="offline", troubled=7, worst_p99_ms=None),
        summary_row(2, "/a", is_cordoned=True, troubled=1),
        summary_row(2, "/b", total_bytes=None, free_bytes=None, state="silent"),
    ]
    points = [{"time": BEGIN, "broker_id": row["broker_id"], "path": row["path"]} for row in dirs]
    states = [
        {**point, "state": "online", "is_cordoned": False, "moves_in": 0, "moves_out": 0}
        for point in points
    ]
    data = ReportData(
        span=(BEGIN, BEGIN + 3600),
        buckets=hour,
        dirs=dirs,
        usage=[{**point, "used_bytes": 1, "total_bytes": 2} for point in points],
        latency=[{**point, "p99_latency_ms": 5.0} for point in points],
        states=states,
    )
    sections = sections_of(data)
    assert sections["timeline"].lead == "2 directories of 4 had trouble; 2 are not online now."
    assert sections["usage"].lead == (
        "1 of 4 directories is over 80 % full; the fullest is /a of broker 1 with 93.8 %."
    )
    assert sections["latency"].lead == (
        "The slowest window was one of /a of broker 1: 99 % of its operations took up to 1.50 s."
    )


def test_timeline_section_without_samples_states_the_number_of_troubled_directories() -> None:
    hour = Buckets(first_s=BEGIN, last_s=BEGIN + 3600, bucket_s=600)
    well = ReportData(buckets=hour, dirs=[summary_row(1, "/a")], states=[])
    assert sections_of(well)["timeline"].lead == "Every directory was online all the time."
    ill = ReportData(buckets=hour, dirs=[summary_row(1, "/a", troubled=1)], states=[])
    assert sections_of(ill)["timeline"].lead == (
        "1 directory of 1 had trouble; 0 are not online now. The table log_dir_samples holds "
        "nothing of that time."
    )


def test_forecast_section_marks_close_forecasts() -> None:
    row = {
        **{"broker_id": 3, "path": "/a", "used_bytes": 9, "total_bytes": 10},
        **{"growth_bytes_per_s": 1.0, "from": BEGIN - 60.0, "to": BEGIN},
        **{"full_at": BEGIN + 7200, "earliest": BEGIN, "latest": None},
    }
    data = ReportData(forecasts=[row], forecasts_in_all=3)
    section = sections_of(data)["forecast"]
    assert section.lead == "/a of broker 3 is full first, in 2 h at the present growth."
    shown = text("".join(section.parts))
    assert "2 h 2026-11-21 02:00 now to perhaps never and 2 more" in shown
    assert '<div class="tile bad"><b>2 h</b>' in summary(data)
    may = {**row, "full_at": None}
    assert sections_of(ReportData(forecasts=[may]))["forecast"].lead == (
        "No directory fills at the present growth, though some may."
    )


def test_skew_section_of_plan_without_moves_or_sizes_states_it() -> None:
    moves = {"moves": 0, "across_brokers": 0, "size_bytes": 0}
    unknown = [{"broker_id": 1, "path": "/a", "total_bytes": 0}]
    section = sections_of(ReportData(plan_dirs=unknown, plan_moves=moves))["skew"]
    assert section.lead == (
        "The last plan moves nothing: it is even enough. Not drawn: a plan without a directory of "
        "known size has no picture."
    )
    assert not section.missing


def large_cluster(brokers: int, dirs: int) -> ReportData:
    """Return as many rows as ``report_data`` reads, all with trouble."""
    draw = random.Random(3)
    buckets = Buckets(first_s=BEGIN, last_s=BEGIN + 60 * MOST_BUCKETS, bucket_s=60)
    rows = [
        summary_row(broker, f"/data/disk-{n}", free_bytes=draw.randrange(4 * TIB), troubled=1)
        for broker in range(brokers)
        for n in range(dirs)
    ]
    named = [(row["broker_id"], row["path"]) for row in rows[:: len(rows) // 40]][:40]
    points = [
        {"time": BEGIN + 60 * bucket, "broker_id": broker, "path": path}
        for broker, path in named
        for bucket in range(MOST_BUCKETS)
    ]
    bands = [
        {"time": BEGIN + 60 * b, "dirs": len(rows), **{name: draw.random() for name in BANDS}}
        for b in range(MOST_BUCKETS)
    ]
    names = ("online", "saturated", "stalled", "offline", "cordoned", "moving")
    states = [
        {
            **point,
            "state": draw.choice(["online", "offline", "stalled"]),
            "is_cordoned": False,
            "moves_in": draw.randrange(2),
            "moves_out": 0,
        }
        for point in points
    ]
    plan = [
        {
            **row,
            "bytes_before": draw.randrange(4 * TIB),
            "bytes_after": 2 * TIB,
            "write_rate_before": draw.random() * 1e7,
            "write_rate_after": 5e6,
        }
        for row in rows
    ]
    return ReportData(
        span=(buckets.first_s, buckets.last_s),
        buckets=buckets,
        dirs=rows,
        is_large=True,
        usage=[{**p, "used_bytes": draw.randrange(TIB), "total_bytes": 4 * TIB} for p in points],
        usage_bands=bands,
        latency=[{**point, "p99_latency_ms": draw.lognormvariate(2, 1)} for point in points],
        latency_bands=bands,
        states=states,
        state_counts=[
            {"time": BEGIN + 60 * b, **{name: draw.randrange(99) for name in names}}
            for b in range(MOST_BUCKETS)
        ],
        plan_dirs=plan,
        plan_moves={"moves": 1, "across_brokers": 0, "size_bytes": 5},
    )


def test_report_page_of_thousands_of_directories_is_small() -> None:
    """Each bucket of each row differs from the one before: the maximum to draw."""
    page = report_page(large_cluster(1000, 12), tables_at="T", title="t", now_s=BEGIN)
    assert len(page.encode()) < MOST_BYTES
    assert "The 40 with most of it are shown." in page
    assert "12,000 directories before and after" in page
