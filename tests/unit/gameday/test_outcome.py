"""``Outcome``: criteria of success, and the JSON document."""

from __future__ import annotations

import json

from kraftjbod.gameday.load.acknowledgements import Gap
from kraftjbod.gameday.outcome import LeftOut, p99_ms, report_document
from tests.unit.gameday.outcomes import outcome, partition


def test_outcome_with_short_gap_and_all_records_has_no_complaints() -> None:
    assert outcome().complaints == []
    assert outcome().max_gap_ms == 500


def test_outcome_has_a_complaint_for_each_kind_of_defect() -> None:
    long = Gap(101.0, 102.001)
    assert outcome(partition(0, gap=long)).complaints == [
        "the longest gap, 1001 ms, is above the limit of 1000 ms"
    ]
    for what in ("lost", "twice", "out_of_order", "changed", "misplaced"):
        parts = [partition(n, gap=Gap(101.0, 101.1), **{what: 2}) for n in (0, 1)]
        assert outcome(*parts).complaints == [f"4 records {what.replace('_', ' ')}"]
    assert outcome(problems=["partition 3: failed"]).complaints == ["partition 3: failed"]


def test_report_document_counts_milliseconds_from_the_beginning() -> None:
    document = report_document([outcome()], [LeftOut(scenario="hung-disk", reason="no root")])
    reported = json.loads(json.dumps(document))
    assert reported["good"] is True
    assert reported["left_out"] == [{"scenario": "hung-disk", "reason": "no root"}]
    [scenario] = reported["scenarios"]
    assert (scenario["max_gap_ms"], scenario["duration_ms"]) == (500, 10_000)
    assert scenario["marks"][0] == {"what": "injected", "at_ms": 1000}
    [one] = scenario["partitions"]
    assert (one["gap_from_ms"], one["gap_ms"], one["gap_before_ms"]) == (1000, 500, 40)
    assert one["leader_changes_ms"] == [2000]
    assert one["was_hit"] is True
    assert report_document([outcome(problems=["x"])], [])["good"] is False


def test_p99_ms_is_the_99th_percentile_or_none() -> None:
    assert p99_ms([number / 1000 for number in range(1, 201)]) == 199.0
    assert p99_ms([0.0042]) == 4.2
    assert p99_ms([]) is None
