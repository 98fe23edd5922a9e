"""PURE. The outcome of a scenario: times, gaps and findings, and the verdict on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kraftjbod.gameday.load.acknowledgements import Ack, Gap
from kraftjbod.gameday.load.check import WRONG, Findings


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """An event of a scenario, and its time (monotonic, in seconds)."""

    what: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOutcome:
    """The outcome of a scenario for one partition; ``was_hit``: its leader was on the broken disk
    or broker.

    ``gap`` is the longest time between two acknowledgements from the fault on. ``leader_changes``
    are times (monotonic, in seconds).
    """

    partition: int
    was_hit: bool
    gap: Gap
    calm_gap_ms: int
    """The longest gap before the fault, for comparison; 0 without a time before."""
    acks: Sequence[Ack]
    findings: Findings
    leader_changes: Sequence[float] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one scenario, or of one observation without a fault.

    ``began_s`` and ``ended_s`` are monotonic times in seconds. ``limit_ms`` is the longest allowed
    gap between acknowledgements, ``metadata_limit_ms`` that between metadata operations, if any.
    """

    scenario: str
    target: str
    """Description of the fault's target."""
    started_at: str
    """Wall clock, ISO 8601."""
    began_s: float
    ended_s: float
    limit_ms: int
    marks: Sequence[Mark]
    partitions: Sequence[PartitionOutcome]
    problems: Sequence[str] = field(default=())
    """Problems other than wrong records: producers that failed, a fault that was not reported."""
    metadata_gap_ms: int | None = None
    """The longest time without a successful metadata operation, if the scenario measures it."""
    metadata_limit_ms: int | None = None
    p99_before_ms: float | None = None
    """99 of 100 batches were acknowledged within this time before the fault."""
    p99_during_ms: float | None = None
    """The same from the fault until recovery, or until the backlog was read (cold-reader)."""

    @property
    def max_gap_ms(self) -> int:
        return max((one.gap.length_ms for one in self.partitions), default=0)

    @property
    def acknowledged(self) -> int:
        return sum(one.findings.acknowledged for one in self.partitions)

    @property
    def wrong_records(self) -> dict[str, int]:
        """Return the number of wrong records by kind, without kinds that have no wrong record."""
        counts = {
            kind: sum(getattr(one.findings, kind) for one in self.partitions) for kind in WRONG
        }
        return {kind: count for kind, count in counts.items() if count}

    @property
    def complaints(self) -> list[str]:
        """Return the reasons why the outcome is bad; empty if it is good."""
        found = list(self.problems)
        if self.max_gap_ms > self.limit_ms:
            found.append(
                f"the longest gap, {self.max_gap_ms} ms, is above the limit of {self.limit_ms} ms"
            )
        gap_ms, limit_ms = self.metadata_gap_ms, self.metadata_limit_ms
        if gap_ms is not None and limit_ms is not None and gap_ms > limit_ms:
            found.append(
                f"no controller did what it was asked for {gap_ms} ms, above the limit of "
                f"{limit_ms} ms"
            )
        found += [
            f"{count} records {kind.replace('_', ' ')}"
            for kind, count in self.wrong_records.items()
        ]
        return found

    def since_began_ms(self, at_s: float) -> int:
        return round((at_s - self.began_s) * 1000)

    def document(self) -> dict[str, Any]:
        """Return a JSON document. Times are in milliseconds since the load began."""
        return {
            "scenario": self.scenario,
            "target": self.target,
            "started_at": self.started_at,
            "duration_ms": self.since_began_ms(self.ended_s),
            "good": not self.complaints,
            "complaints": self.complaints,
            "max_gap_ms": self.max_gap_ms,
            "max_gap_limit_ms": self.limit_ms,
            "metadata_gap_ms": self.metadata_gap_ms,
            "metadata_gap_limit_ms": self.metadata_limit_ms,
            "p99_before_ms": self.p99_before_ms,
            "p99_during_ms": self.p99_during_ms,
            "acknowledged": self.acknowledged,
            "marks": [
                {"what": mark.what, "at_ms": self.since_began_ms(mark.at_s)} for mark in self.marks
            ],
            "partitions": [
                {
                    **asdict(one.findings),
                    "was_hit": one.was_hit,
                    "gap_ms": one.gap.length_ms,
                    "gap_from_ms": self.since_began_ms(one.gap.start_s),
                    "gap_before_ms": one.calm_gap_ms,
                    "leader_changes_ms": [self.since_began_ms(at) for at in one.leader_changes],
                }
                for one in self.partitions
            ],
        }


def p99_ms(waits_s: Sequence[float]) -> float | None:
    """Return the 99th percentile in milliseconds, or None of an empty sequence."""
    if not waits_s:
        return None
    return round(sorted(waits_s)[len(waits_s) * 99 // 100] * 1000, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A scenario that this machine or user cannot play, and the reason."""

    scenario: str
    reason: str


def report_document(outcomes: Sequence[Outcome], left_out: Sequence[LeftOut]) -> dict[str, Any]:
    """Return the whole report as a JSON document."""
    return {
        "good": all(not outcome.complaints for outcome in outcomes),
        "scenarios": [outcome.document() for outcome in outcomes],
        "left_out": [asdict(one) for one in left_out],
    }
