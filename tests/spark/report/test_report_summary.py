"""The figures at the top of a report."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, Final

from kraftjbod.spark.report.report_data import ReportData
from kraftjbod.spark.report.report_summary import (
    rows_in_all,
    summary,
    summary_numbers,
    time_left_s,
    used_bytes,
    used_share,
)

BEGIN: Final = 1_795_219_200.0
TIB: Final = 1024**4


def row(broker: int, path: str, free: int | None, **more: Any) -> dict[str, Any]:
    return {
        "broker_id": broker,
        "path": path,
        "state": "online",
        "is_cordoned": False,
        "total_bytes": None if free is None else 4 * TIB,
        "free_bytes": free,
        "append_bytes_per_s": 1024.0,
        **more,
    }


DATA: Final = ReportData(
    span=(BEGIN, BEGIN + 3600),
    dirs=[
        row(1, "/a", TIB // 4),
        row(1, "/b", 3 * TIB, state="offline", append_bytes_per_s=None),
        row(2, "/a", 3 * TIB, is_cordoned=True),
        row(2, "/b", None, state="silent"),
    ],
    forecasts=[{"broker_id": 2, "path": "/<a>", "to": BEGIN, "full_at": BEGIN + 20 * 86_400}],
    outliers=[],
    findings=Counter(offline=1, slow=2),
    audit_counts=[{"rows": 3}, {"rows": 4}],
)


def tiles(data: ReportData) -> list[str]:
    """Return tone, figure and label of each tile."""
    found = re.findall(r'<div class="tile (\w*)"><b>(.*?)</b><span>(.*?)</span>', summary(data))
    return [" | ".join(one) for one in found]


def test_summary_tiles_mark_problems_by_tone() -> None:
    assert tiles(DATA) == [
        " | 2 | brokers",
        "bad | 4 | directories, 1 offline, 1 silent, 1 cordoned",
        " | 47.9 % | used, 5.8 TiB of 12.0 TiB",
        " | 3.0 KiB/s | written in the last window",
        "warn | 20 d | until the first is full: broker 2, /&lt;a&gt;",
        "bad | 3 | findings",
        "bad | 7 | audit differences",
    ]


def test_summary_tiles_omit_unread_tables() -> None:
    assert tiles(ReportData()) == []
    assert tiles(ReportData(audit_counts=[])) == ["good | 0 | audit differences"]


def test_summary_numbers_are_computed_from_the_data_and_null_without_tables() -> None:
    assert json.loads(json.dumps(summary_numbers(DATA))) == {
        "from": BEGIN,
        "to": BEGIN + 3600,
        "brokers": 2,
        "log_dirs": 4,
        "states": {"online": 2, "offline": 1, "silent": 1},
        "cordoned": 1,
        "total_bytes": 12 * TIB,
        "used_bytes": 12 * TIB - 6 * TIB - TIB // 4,
        "soonest_full": BEGIN + 20 * 86_400,
        "findings": 3,
        "audit_differences": 7,
        "missing_tables": [],
    }
    unknown = summary_numbers(ReportData(missing=["skew", "growth"]))
    assert unknown["findings"] is None and unknown["audit_differences"] is None
    assert unknown["missing_tables"] == ["growth", "skew"]


def test_used_bytes_and_time_left_are_computed_from_rows() -> None:
    full = row(1, "/a", TIB)
    assert (used_bytes(full), used_share(full)) == (3 * TIB, 0.75)
    assert [time_left_s({"to": 10.0, "full_at": at}) for at in (70.0, 5.0)] == [60.0, 0.0]
    assert rows_in_all([{"rows": 1}, {"rows": 2}]) == 3 and rows_in_all([]) == 0
