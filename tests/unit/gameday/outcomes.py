"""Outcomes for the tests of their reports."""

from __future__ import annotations

from typing import Any

from kraftjbod.gameday.load.acknowledgements import Ack, Gap
from kraftjbod.gameday.load.check import Findings
from kraftjbod.gameday.outcome import Mark, Outcome, PartitionOutcome


def partition(number: int, *, gap: Gap, was_hit: bool = False, **wrong: int) -> PartitionOutcome:
    counts: dict[str, int] = dict.fromkeys(
        ("lost", "twice", "out_of_order", "changed", "misplaced"), 0
    )
    findings = Findings(partition=number, acknowledged=1000, found=1000, **{**counts, **wrong})
    return PartitionOutcome(
        partition=number,
        was_hit=was_hit,
        gap=gap,
        calm_gap_ms=40,
        acks=[Ack(at_s=99.9, offset=0, count=9)]
        + [Ack(at_s=100.0 + n / 10, offset=n, count=1) for n in range(100)],
        findings=findings,
        leader_changes=[102.0] if was_hit else [],
    )


def outcome(*partitions: PartitionOutcome, **others: Any) -> Outcome:
    """Return an outcome of ten seconds from instant 100 on, with a fault at 101."""
    return Outcome(
        **{
            "scenario": "dead-disk",
            "target": "/d<1> of broker 1 (chmod 000)",
            "started_at": "2030-01-01T00:00:00.000+00:00",
            "began_s": 100.0,
            "ended_s": 110.0,
            "limit_ms": 1000,
            "marks": [
                Mark(what="injected", at_s=101.0),
                Mark(what="noticed", at_s=101.25),
                Mark(what="in sync", at_s=105.0),
            ],
            "partitions": partitions or (partition(0, gap=Gap(101.0, 101.5), was_hit=True),),
            **others,
        }
    )
