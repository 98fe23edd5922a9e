"""The planner in one process, without Spark: 10⁵ replicas planned, in CPU seconds.

``python -m tests.bench.main --only balance``. The cluster is of the kind that spark_planner.py
draws, from a seed: a hundred brokers with twelve disks of three sizes in ten racks, heavy-tailed
sizes and rates, some disks fuller than others, two of a hundred cordoned.
"""

from __future__ import annotations

import os
import random
import resource
import time
from collections import defaultdict
from typing import Final

from kraftjbod.balance.cluster_planner import plan_cluster
from kraftjbod.balance.placement import LogDir, PlanRequest, Replica
from kraftjbod.balance.plan_summary import figures
from tests.bench.figures import Report

TIB: Final = 1024**4
REPLICAS: Final = 100_000
BROKERS: Final = 100
RACKS: Final = 10
FACTOR: Final = 3
DISKS_TIB: Final = (4,) * 4 + (8,) * 4 + (16,) * 4
FILLED: Final = 0.4
TAIL: Final = 1.3
_SEED: Final = 1


def cluster() -> tuple[list[LogDir], list[Replica]]:
    """Return the directories and replicas of the drawn cluster, the same at each call."""
    rng = random.Random(_SEED)
    mean = FILLED * sum(DISKS_TIB) * TIB * BROKERS / REPLICAS
    held: dict[tuple[int, int], int] = defaultdict(int)
    replicas = []
    for number in range(REPLICAS // FACTOR):
        size = min(TIB, round(mean * (TAIL - 1) / TAIL * rng.paretovariate(TAIL)))
        rate = 2e4 * rng.paretovariate(TAIL)
        first = rng.randrange(RACKS)
        # Racks 0, 3 and 7 further on; in a rack, brokers with low numbers have more.
        brokers = tuple(
            (first + step) % RACKS + RACKS * int(BROKERS // RACKS * rng.random() ** 1.15)
            for step in (0, 3, 7)
        )
        for broker in brokers:
            [disk] = rng.choices(range(len(DISKS_TIB)), DISKS_TIB)
            held[broker, disk] += size
            partition = (f"topic-{number // 50}", number % 50)
            place = (broker, f"/disk-{disk + 1}", size, rate)
            replicas.append(Replica(*partition, *place, broker == brokers[0], False, brokers))
    dirs = [
        LogDir(
            broker_id=broker,
            rack=f"rack-{broker % RACKS}",
            path=f"/disk-{disk + 1}",
            directory_id=None,
            state="online",
            is_cordoned=rng.random() < 0.02,
            total_bytes=size * TIB,
            free_bytes=max(0, size * TIB - held[broker, disk]),
        )
        for broker in range(BROKERS)
        for disk, size in enumerate(DISKS_TIB)
    ]
    return dirs, replicas


def plans(report: Report) -> None:
    """Within brokers and across them."""
    dirs, replicas = cluster()
    for across in (False, True):
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        plan = plan_cluster(dirs, replicas, PlanRequest(across_brokers=across))
        used_s, took_s = time.process_time() - began_cpu_s, time.monotonic() - began_s
        found = figures(plan.dirs, moves=plan.counts, tolerance=0.05, across_brokers=across)
        what = f"plan_cluster {'across' if across else 'within'} {BROKERS} brokers"
        report.add(
            f"{what}, {len(replicas):,} replicas: CPU",
            used_s,
            "s",
            how=f"{took_s:.1f} s by the clock; load {os.getloadavg()[0]:.1f}",
        )
        report.add(
            f"{what}: fullest over mean",
            found.after.skew,
            "x",
            how=f"before {found.before.skew:.3f}; {found.moves:,} moves",
        )
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    report.add("plan_cluster: most memory of the process", peak_mb, "MB")
