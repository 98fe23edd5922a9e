"""WIRE. Plans with Spark, from the tables of telemetry or from the current reports of brokers.

The driver sees sums of directories, and executors see the replicas of one broker at a time. Only
the moves return to the driver, which writes them to one file. balance/cluster_planner.py makes the
same plan in one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from kraftjbod.balance.cluster_planner import (
    Reassigned,
    Step,
    cluster_goals,
    cross_in_turns,
    racks_of,
    reassign,
)
from kraftjbod.balance.fair_shares import Goals
from kraftjbod.balance.group_plans import by_broker
from kraftjbod.balance.placement import LogDir, PlanRequest, Replica, empty_dirs, require_known
from kraftjbod.balance.plan_summary import MoveCounts, MoveGroup, PlannedDir
from kraftjbod.balance.transfer_planner import NOTHING, DirSums, Sent, Task
from kraftjbod.core.errors import StartupError
from kraftjbod.spark.plan import plan_frames, snapshot_frames
from kraftjbod.spark.plan.plan_files import dir_row
from kraftjbod.spark.plan.plan_frames import dir_sums
from kraftjbod.spark.plan.plan_tables import as_table
from kraftjbod.spark.session.job import Job
from kraftjbod.spark.tables.schemas import (
    LOG_DIR_SAMPLES,
    LOG_DIRS,
    PLAN_DIRS,
    PLAN_MOVES,
    REPLICA_SAMPLES,
    REPLICAS,
)
from kraftjbod.spark.tables.stored_tables import publish, read_table


@dataclass(frozen=True, kw_only=True)
class MadePlan:
    """A plan of moves that Spark computed. Its frames are cached while :func:`made_plan` is open.

    ``placed`` has the replicas before the moves, and ``sums`` their sums by directory.
    """

    placed: DataFrame
    sums: list[DirSums]
    moves: DataFrame

    @property
    def partitions(self) -> Iterator[Reassigned]:
        """The reassignment of each partition that has moves."""
        for row in plan_frames.touched(self.placed, self.moves).toLocalIterator():
            moves = {source: tuple(end) for source, end in row.moves.items() if end is not None}
            yield reassign(row.topic, row.partition, row.brokers or (), row.paths, moves)

    @cached_property
    def dirs(self) -> list[PlannedDir]:
        """Every directory before and after the plan, by broker and path."""
        changes = {
            (row.broker_id, row.path): Sent(
                size_bytes=row.size_bytes, write_rate=row.write_rate, replicas=row.replicas
            )
            for row in plan_frames.changes(self.moves).collect()
        }
        return [
            PlannedDir.of_sums(one, changes.get((one.broker_id, one.path), NOTHING))
            for one in self.sums
        ]

    @cached_property
    def counts(self) -> MoveCounts:
        """Numbers and bytes of all moves."""
        return MoveCounts.of_groups(
            list(map(MoveGroup._make, plan_frames.groups(self.moves).collect()))
        )

    def publish(self, job: Job) -> None:
        """Write the tables ``plan_dirs`` and ``plan_moves``."""
        rows = [tuple(dir_row(one).values()) for one in self.dirs]
        publish(_frame(job.spark, rows, PLAN_DIRS), job.table("plan_dirs"))
        publish(as_table(self.moves, PLAN_MOVES), job.table("plan_moves"))


@contextmanager
def made_plan(
    log_dirs: DataFrame,
    replicas: DataFrame,
    request: PlanRequest,
    step: Step = lambda _: None,
) -> Iterator[MadePlan]:
    """Context with a plan; its cached frames are released at the end.

    :param step: print a line of progress.
    :raises StartupError: the cluster has no directories, or a drain names an unknown directory or
        broker.
    """
    kept: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    try:
        reported = as_table(log_dirs, LOG_DIRS).collect()
        empty = empty_dirs(map(LogDir._make, reported), request.drains)
        placed = keep(plan_frames.placed(replicas, by_broker(empty)))
        known = _sums(placed, empty)
        require_known(known, request.drains)
        step(f"{sum(one.replicas for one in known):,} replicas in {len(known):,} directories")
        crossings, goals = None, request.goals
        if request.across_brokers:
            crossings = _crossings(placed, known, goals, keep, step)
            goals = cluster_goals(known, goals)
        moves = plan_frames.moves(placed, by_broker(known), goals, crossings)
        if request.max_moves is not None or request.max_bytes is not None:
            moves = plan_frames.limited(keep(moves), request.max_moves, request.max_bytes)
        yield MadePlan(placed=placed, sums=known, moves=keep(moves))
    finally:
        for frame in kept:
            frame.unpersist()


def _sums(placed: DataFrame, dirs: Sequence[DirSums]) -> list[DirSums]:
    """Return all directories with the sums of their replicas, sorted by broker and path."""
    held = [dir_sums(row.asDict()) for row in plan_frames.sums(placed, by_broker(dirs)).collect()]
    found = {(one.broker_id, one.path): one for one in (*dirs, *held)}
    return [found[key] for key in sorted(found)]


def _crossings(
    placed: DataFrame,
    dirs: Sequence[DirSums],
    goals: Goals,
    keep: Callable[[DataFrame], DataFrame],
    step: Step,
) -> DataFrame | None:
    """Choose the replicas that change brokers, in turns; a partition is chosen at most once.

    None means that no turn was necessary.
    """
    racks = racks_of(dirs)
    done: DataFrame | None = None

    def pick(
        tasks: Mapping[int, Task], drained: Collection[int], turn: int
    ) -> Iterable[tuple[int, int, Sent]]:
        nonlocal done
        left = placed if done is None else plan_frames.without(placed, done)
        chosen = keep(plan_frames.crossings(left, tasks, racks, drained, turn))
        done = chosen if done is None else done.unionByName(chosen)
        for row in plan_frames.sent(chosen).collect():
            sent = Sent(size_bytes=row.size_bytes, write_rate=row.write_rate, replicas=row.replicas)
            yield row.from_broker, row.to_broker, sent

    cross_in_turns(dirs, goals, racks, pick, step)
    return done


# --- inputs of plans -----------------------------------------------------------------------------


def as_tables(
    spark: SparkSession, dirs: Sequence[LogDir], replicas: Sequence[Replica]
) -> tuple[DataFrame, DataFrame]:
    """Return ``dirs`` and ``replicas``, which brokers reported, as frames: the tables ``log_dirs``
    and ``replicas``."""
    return _frame(spark, dirs, LOG_DIRS), _frame(spark, replicas, REPLICAS)


def _frame(spark: SparkSession, rows: Sequence[tuple[Any, ...]], schema: StructType) -> DataFrame:
    """Return ``rows`` as a frame, built by columns: Arrow needs a second or two for a million
    rows."""
    arrow = to_arrow_schema(schema)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(arrow)
    table = pa.table(
        [pa.array(column, field.type) for column, field in zip(columns, arrow, strict=True)],
        schema=arrow,
    )
    return spark.createDataFrame(table, schema=schema)


def telemetry_tables(job: Job, max_age_s: float) -> tuple[DataFrame, DataFrame]:
    """Return the tables ``log_dirs`` and ``replicas``, from the newest telemetry samples.

    :raises StartupError: a table is missing, or samples of some brokers are older than
        ``max_age_s`` seconds; names the brokers.
    """
    now_s = time.time()
    found = []
    for name, schema in (
        ("log_dir_samples", LOG_DIR_SAMPLES),
        ("replica_samples", REPLICA_SAMPLES),
    ):
        table = read_table(job.spark, job.tables, name, schema)
        if table is None:
            raise StartupError(
                f"there is no table {job.table(name)}: run the telemetry job first, name its "
                "--tables, or plan by --bootstrap-server"
            )
        aged = snapshot_frames.ages(table, now_s)
        old = aged.where(F.col("age_s") > max_age_s).orderBy("broker_id").collect()
        if old:
            ages = ", ".join(f"broker {row.broker_id} {row.age_s:.0f} s" for row in old)
            raise StartupError(
                f"telemetry is too old to plan by: {ages}; let the telemetry job catch up, see "
                f"whether these brokers run, or give a larger --max-age than {max_age_s:g}"
            )
        found.append(snapshot_frames.recent(table, now_s, max_age_s))
    return snapshot_frames.log_dirs(found[0]), snapshot_frames.replicas(found[1])
