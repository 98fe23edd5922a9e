"""The planner over 10⁴, 10⁵ and 1.2·10⁶ replicas: time, memory, and how good its plans are.

Executors draw the clusters from hashes, the same at each run: brokers with twelve
disks of 4, 8 and 16 TiB in up to ten racks, three replicas in three racks, heavy-tailed sizes
(Pareto), some brokers and disks fuller than others, two of a hundred disks cordoned, one offline.
They are written as tables and read back; the time is from reading to the finished plan file.

For comparison it reports the bytes that any plan must move (plan_summary.py has the proof), and the
result of a greedy algorithm on one machine with the same tables (greedy_balance.py).
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import psutil
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from kraftjbod.balance.fair_shares import Goals
from kraftjbod.balance.placement import PlanRequest
from kraftjbod.balance.plan_summary import PlanFigures, PlannedDir, Spread, figures, spread
from kraftjbod.balance.transfer_planner import DirSums
from kraftjbod.spark.plan.plan_files import write_files
from kraftjbod.spark.plan.plan_tables import as_table
from kraftjbod.spark.plan.spark_plan import made_plan
from kraftjbod.spark.tables.schemas import LOG_DIRS, REPLICAS
from tests.bench.balance.greedy_balance import Greedy
from tests.bench.figures import Report
from tests.bench.spark.own_java import own_java

TIB: Final = 1024**4
#: Brokers by replicas.
SIZES: Final = {10_000: 10, 100_000: 100, 1_200_000: 1_000}
FACTOR: Final = 3
DISKS_TIB: Final = (4,) * 4 + (8,) * 4 + (16,) * 4
#: Used fraction of all disks together; single disks are much fuller.
FILLED: Final = 0.4
#: Of the Pareto distribution of sizes, whose mean is 1.3 / 0.3 times its least size.
TAIL: Final = 1.3
LARGEST: Final = TIB
_POLL_S: Final = 0.1


def draw(seed: int, *columns: str) -> Column:
    """A number from 0 to 1, the same one for the same columns."""
    return F.pmod(F.xxhash64(*columns, F.lit(seed)), F.lit(1 << 52)) / F.lit(float(1 << 52))


def replicas(spark: SparkSession, count: int, brokers: int) -> DataFrame:
    """The table ``replicas`` of a drawn cluster, made by executors."""
    racks = min(10, brokers // 2)
    each = brokers // racks
    mean = FILLED * sum(DISKS_TIB) * TIB * brokers / count
    ids = spark.range(0, count // FACTOR, 1, numPartitions=8)
    sized = ids.withColumn(
        "size_bytes",
        F.least(
            F.lit(float(LARGEST)), mean * 0.3 / 1.3 * F.pow(1.0 - draw(1, "id"), F.lit(-1 / TAIL))
        ),
    ).withColumn("first_rack", F.floor(draw(2, "id") * racks))
    # Racks 0, 3 and 7 further on; in a rack, brokers with low numbers have more.
    placed = sized.withColumn(
        "brokers",
        F.array(
            *(
                (F.col("first_rack") + step) % racks
                + racks * F.floor(each * F.pow(draw(3 + step, "id"), F.lit(1.15)))
                for step in (0, 3, 7)
            )
        ).cast("array<int>"),
    )
    spread_out = placed.withColumn("broker_id", F.explode("brokers"))
    width = float(sum(DISKS_TIB))
    at = draw(20, "id", "broker_id") * width
    number = (
        F.when(at < 16, F.floor(at / 4))
        .when(at < 48, 4 + F.floor((at - 16) / 8))
        .otherwise(8 + F.floor((at - 48) / 16))
    )
    named = spread_out.withColumns(
        {
            "path": F.concat(F.lit("/disk-"), number + 1),
            "topic": F.concat(F.lit("topic-"), F.floor(F.col("id") / 50)),
            "partition": F.col("id") % 50,
            "write_rate": 2e4 * F.pow(1.0 - draw(30, "id"), F.lit(-1 / TAIL)),
            "is_leader": F.col("broker_id") == F.col("brokers")[0],
            "is_future": F.lit(False),
        }
    )
    return as_table(named.where(~is_offline("broker_id", "path")), REPLICAS)


def is_offline(broker: str, path: str) -> Column:
    return draw(40, broker, path) < 0.01


def log_dirs(spark: SparkSession, replicas: DataFrame, brokers: int) -> DataFrame:
    """The table ``log_dirs`` that goes with them."""
    racks = min(10, brokers // 2)
    sizes = [(f"/disk-{n + 1}", size * TIB) for n, size in enumerate(DISKS_TIB)]
    disks = spark.createDataFrame(sizes, "path string, total_bytes long")
    held = replicas.groupBy("broker_id", "path").agg(F.sum("size_bytes").alias("held"))
    all_dirs = spark.range(brokers).withColumnRenamed("id", "broker_id").crossJoin(disks)
    joined = all_dirs.join(held, ["broker_id", "path"], "left").fillna(0, ["held"])
    offline = is_offline("broker_id", "path")
    found = joined.withColumns(
        {
            "rack": F.concat(F.lit("rack-"), F.col("broker_id") % racks),
            "directory_id": F.lit(""),
            "state": F.when(offline, "offline").otherwise("online"),
            "is_cordoned": draw(41, "broker_id", "path") < 0.02,
            "free_bytes": F.when(offline, 0).otherwise(
                F.greatest(F.lit(0), F.expr("total_bytes - held"))
            ),
        }
    )
    return as_table(
        found.withColumn("total_bytes", F.when(~offline, F.col("total_bytes"))), LOG_DIRS
    ).fillna(0, ["total_bytes"])


@dataclass(slots=True)
class Peak:
    """The largest resident sizes, in MB: this process, Java, and Python workers together.

    ``cpu_s`` has the CPU seconds of each process since its start or since it was first seen.
    """

    driver: float = 0.0
    java: float = 0.0
    workers: float = 0.0
    cpu_s: dict[int, float] = field(default_factory=dict)
    _cpu_before: dict[int, float] = field(default_factory=dict)

    def look(self) -> None:
        here = psutil.Process(os.getpid())
        java, workers = 0.0, 0.0
        is_first = not self._cpu_before
        for process in (here, *here.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                used = times.user + times.system
                self._cpu_before.setdefault(process.pid, used if is_first else 0.0)
                self.cpu_s[process.pid] = used - self._cpu_before[process.pid]
                size = process.memory_info().rss / 1e6
                if process == here:
                    continue
                if "java" in process.name():
                    java += size
                else:
                    workers += size
        self.driver = max(self.driver, here.memory_info().rss / 1e6)
        self.java, self.workers = max(self.java, java), max(self.workers, workers)


@contextlib.contextmanager
def measured() -> Iterator[Peak]:
    peak, ended = Peak(), threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_S):
            peak.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        ended.set()
        thread.join()


def plans(report: Report) -> None:
    """Both kinds of plans over all sizes, and the baseline beside them."""
    folder = Path(tempfile.mkdtemp(prefix="kraftjbod-bench-"))
    with own_java("4g") as spark, contextlib.ExitStack() as end:
        end.callback(shutil.rmtree, folder)
        for count, brokers in SIZES.items():
            tables = folder / str(count)
            replicas(spark, count, brokers).write.parquet(str(tables / "replicas"))
            lying = spark.read.parquet(str(tables / "replicas"))
            log_dirs(spark, lying, brokers).coalesce(1).write.parquet(str(tables / "log_dirs"))
            for across in (False, True):
                _one(spark, report, tables, brokers, across=across)


def _one(spark: SparkSession, report: Report, tables: Path, brokers: int, *, across: bool) -> None:
    request = PlanRequest(goals=Goals(), across_brokers=across)
    began = time.monotonic()
    with contextlib.ExitStack() as kept:
        with measured() as peak:
            tables_read = [
                spark.read.parquet(str(tables / name)) for name in ("log_dirs", "replicas")
            ]
            plan = kept.enter_context(made_plan(tables_read[0], tables_read[1], request))
            write_files(plan.partitions, tables / "plan.json", None)
            took = time.monotonic() - began
            dirs = plan.dirs
            tolerance = request.goals.tolerance
            found = figures(dirs, moves=plan.counts, tolerance=tolerance, across_brokers=across)
        count = sum(one.replicas for one in plan.sums)
        greedy, greedy_took, greedy_peak = _greedy(plan.sums, plan.placed, across=across)
        _require_sound(plan.moves, dirs)
    what = f"plan {'across' if across else 'within'} {brokers:,} brokers, {count:,} replicas"
    report.add(
        f"{what}: time",
        took,
        "s",
        beside=f"greedy, one process: {greedy_took:.1f} s",
        how=f"{sum(peak.cpu_s.values()):.0f} s of CPU; load {os.getloadavg()[0]:.1f}",
    )
    report.add(
        f"{what}: memory",
        peak.driver + peak.java + peak.workers,
        "MB",
        beside=f"greedy adds {greedy_peak:,.0f} MB to the driver",
        how=f"Java {peak.java:,.0f}, workers {peak.workers:,.0f}, driver {peak.driver:,.0f}",
    )
    _quality(report, what, found, greedy, dirs)


def _quality(
    report: Report, what: str, plan: PlanFigures, greedy: Greedy, dirs: list[PlannedDir]
) -> None:
    theirs = _spread_of(greedy, dirs)
    report.add(
        f"{what}: fullest over mean",
        plan.after.skew,
        "x",
        beside=f"greedy {theirs.skew:.3f}",
        how=f"before {plan.before.skew:.3f}",
    )
    report.add(
        f"{what}: deviation of fills",
        100 * plan.after.deviation,
        "%",
        beside=f"greedy {100 * theirs.deviation:.2f} %",
        how=f"before {100 * plan.before.deviation:.2f} %, mean {plan.after.mean:.1%}",
    )
    report.add(
        f"{what}: write rate, most over mean",
        plan.after.rate_skew,
        "x",
        how=f"before {plan.before.rate_skew:.3f}",
    )
    report.add(
        f"{what}: bytes moved",
        plan.moved_bytes / TIB,
        "TiB",
        beside=f"greedy {greedy.moved_bytes / TIB:,.1f} TiB in {greedy.moves:,} moves",
        how=f"{plan.moved_bytes_for_rate / TIB:,.1f} for the rate; {plan.moves:,} moves; at least "
        f"{plan.least_bytes / TIB:,.1f}",
    )
    report.add(f"{what}: directories outside the tolerance", len(plan.missed), "directories")


def _greedy(sums: list[DirSums], placed: DataFrame, *, across: bool) -> tuple[Greedy, float, float]:
    """Return the baseline, its seconds, and the growth of the driver's memory in MB."""
    began = time.monotonic()
    before = psutil.Process().memory_info().rss
    names = ("topic", "partition", "broker_id", "path", "size_bytes", "brokers")
    columns = placed.select(*names).toArrow().to_pydict()
    greedy = Greedy.load(sums, columns)
    if across:
        greedy.across_brokers(Goals().tolerance)
    greedy.within_brokers(Goals().tolerance)
    grown = psutil.Process().memory_info().rss - before
    return greedy, time.monotonic() - began, grown / 1e6


def _spread_of(greedy: Greedy, dirs: list[PlannedDir]) -> Spread:
    held = {(place.broker, path): place.held_bytes for (_, path), place in greedy.places.items()}
    return spread(
        [replace(one, bytes_after=held[one.broker_id, one.path]) for one in dirs],
        is_after=True,
    )


def _require_sound(moves: DataFrame, dirs: list[PlannedDir]) -> None:
    """Check the constraints of a plan for all of its moves."""
    sums = moves.groupBy("to_broker", "to_path").agg(F.sum("size_bytes").alias("size"))
    into = {(row.to_broker, row.to_path): row["size"] for row in sums.collect()}
    for one in dirs:
        more = into.get((one.broker_id, one.path), 0)
        assert more <= one.load.spare_bytes, f"{one.broker_id}:{one.path} gets {more}"
    crossing = moves.where("from_broker <> to_broker")
    twice = crossing.groupBy("topic", "partition").count().where("count > 1").count()
    assert twice == 0, f"{twice} partitions cross twice"
