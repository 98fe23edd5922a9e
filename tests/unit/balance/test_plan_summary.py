"""Figures and summary of a plan."""

from __future__ import annotations

from typing import Any, Final

import pytest

from kraftjbod.balance.fair_shares import DirLoad
from kraftjbod.balance.plan_summary import (
    MoveCounts,
    PlanFigures,
    PlannedDir,
    figures,
    lines,
    spread,
)

MOVES: Final = {
    "moves": 3,
    "moved_bytes": 90,
    "moves_across": 1,
    "moved_bytes_across": 30,
    "moved_bytes_for_rate": 0,
}


def planned(
    broker: int, path: str, before: int, after: int, *, total: int = 1000, **more: Any
) -> PlannedDir:
    given = {"takes": True, "gives": True, "is_drained": False, "spare": 10_000, **more}
    return PlannedDir(
        broker_id=broker,
        path=path,
        load=DirLoad(
            total_bytes=total,
            spare_bytes=given["spare"],
            takes=given["takes"],
            gives=given["gives"],
            is_drained=given["is_drained"],
        ),
        fixed_bytes=0,
        largest_bytes=given.get("largest", 1),
        bytes_before=before,
        bytes_after=after,
        write_rate_before=float(before),
        write_rate_after=float(after),
        replicas_before=1,
        replicas_after=given.get("replicas", 1),
    )


def figures_of(*dirs: PlannedDir, across: bool = False) -> PlanFigures:
    return figures(dirs, moves=MoveCounts(**MOVES), tolerance=0.05, across_brokers=across)


def test_spread_skew_is_fullest_over_mean_weighted_by_size() -> None:
    small, large = planned(1, "/a", 200, 100), planned(1, "/b", 100, 200, total=2000)
    before = spread([small, large], is_after=False)
    assert (before.fullest, before.emptiest, before.mean) == (0.2, 0.05, 0.1)
    assert (before.skew, before.rate_skew) == (2, pytest.approx(4 / 3))
    after = spread([small, large], is_after=True)
    assert (after.skew, after.deviation) == (1, 0)


def test_spread_excludes_closed_directories() -> None:
    cordoned = planned(1, "/full", 900, 900, takes=False)
    assert spread([cordoned, planned(1, "/a", 100, 100)], is_after=True).skew == 1
    assert spread([cordoned], is_after=True).skew == 1


@pytest.mark.parametrize(
    ("dirs", "across", "least"),
    [
        ([planned(1, "/a", 200, 0), planned(1, "/b", 0, 0)], False, 95),
        ([planned(1, "/a", 200, 0), planned(2, "/b", 0, 0)], False, 0),
        ([planned(1, "/a", 200, 0), planned(2, "/b", 0, 0)], True, 95),
        ([planned(1, "/a", 104, 0), planned(1, "/b", 96, 0)], False, 0),
        # Eleven are a little fuller than the twelfth: none is too full, but one lacks bytes.
        ([planned(1, f"/{n}", 104, 0) for n in range(11)] + [planned(1, "/z", 50, 0)], False, 45),
    ],
    ids=["one broker", "two brokers apart", "two brokers together", "even", "one lacks"],
)
def test_figures_least_bytes_is_the_larger_of_excess_and_lack_beyond_the_tolerance(
    dirs: list[PlannedDir], across: bool, least: int
) -> None:
    assert figures_of(*dirs, across=across).least_bytes == least


def test_missed_goals_are_listed_with_reason_worst_first() -> None:
    missed = figures_of(
        planned(1, "/a", 200, 120, largest=60),
        planned(1, "/b", 0, 80),
        planned(1, "/gone", 10, 0, takes=False, is_drained=True, replicas=0),
        planned(2, "/drained", 10, 10, takes=False, is_drained=True, replicas=2),
        planned(3, "/dead", 0, 0, takes=False, gives=False, is_drained=True, replicas=1),
        planned(4, "/hung", 70, 70, takes=False, gives=False),
    ).missed
    assert missed == (
        "2:/drained keeps 2 replicas: no open directory has the free space for them, or what moves"
        " was limited; plan again later",
        "3:/dead keeps 1 replicas: it cannot be read",
        "1:/b stays 25 B (24%) below its share",
        "1:/a stays 15 B (14%) above its share; its largest replica has 60 B",
    )


def test_plan_summary_lines_list_few_directories_and_summarize_many() -> None:
    few = [planned(1, "/a", 2048, 1024, total=4096), planned(1, "/b", 0, 1024, total=4096)]
    shown = lines(few, figures_of(*few))
    heads = "directory size bytes after full after written after"
    assert shown[0].split() == heads.split()
    assert shown[1].startswith("1:/a") and "50.00%" in shown[1] and "25.00%" in shown[1]
    many = [planned(n % 8, f"/{n}", 100, 100) for n in range(48)]
    assert lines(many, figures_of(*many))[0].startswith("broker")
    most = [planned(n, "/a", 100, 100) for n in range(41)]
    assert lines(most, figures_of(*most))[0].startswith("skew 1.00 -> 1.00")


def test_plan_summary_lines_shorten_long_list_of_reasons() -> None:
    dirs = [planned(n, "/a", 10, 10, takes=False, is_drained=True, replicas=1) for n in range(50)]
    assert lines(dirs, figures_of(*dirs))[-1] == "... and 10 more"
