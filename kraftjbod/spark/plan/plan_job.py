"""WIRE. ``kraftjbod-pipeline plan``: which replicas to move, as a file for
kraftjbod-reassign-partitions.

The driver sees sums of directories, executors see the replicas of one broker at a time. Only what
moves comes back to the driver, for it is written to one file. Nothing is changed in the cluster.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click
from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from kraftjbod.balance.fair_shares import RATE_TOLERANCE, TOLERANCE, Goals
from kraftjbod.balance.planner import Tier
from kraftjbod.balance.transfer_planner import (
    DirSums,
    Sent,
    after,
    broker_loads,
    byte_tasks,
    cluster_level,
    rate_tasks,
    without_stuck,
)
from kraftjbod.cli.reassignment.reassignment_plan import ReassignmentPlan, Replica
from kraftjbod.cli.terminal.command import make_client
from kraftjbod.core.errors import StartupError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.spark.plan import plan_frames, snapshot_frames
from kraftjbod.spark.plan.plan_frames import Drain, dir_load
from kraftjbod.spark.plan.plan_picture import draw_plan
from kraftjbod.spark.plan.plan_summary import PlanFigures, PlannedDir, as_json, figures, lines
from kraftjbod.spark.plan.storage_snapshot import StorageSnapshot, take_snapshot
from kraftjbod.spark.session.job import Job, JobOutcome, job_command
from kraftjbod.spark.tables.schemas import LOG_DIR_SAMPLES, REPLICA_SAMPLES
from kraftjbod.spark.tables.stored_tables import publish, read_table

#: Each looks at what the ones before have left; the first does nearly all of it.
_BYTE_TURNS: Final = 4
_RATE_TURNS: Final = 1
_OF_TOLERANCE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What a plan is wanted to do; limits are None where there are none."""

    goals: Goals = field(default_factory=Goals)
    across_brokers: bool = False
    drains: tuple[Drain, ...] = ()
    max_moves: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MadePlan:
    """Frames of one plan (plan_frames.py), kept by Spark while :func:`made_plan` is open."""

    placed: DataFrame
    sums: DataFrame
    moves: DataFrame


@contextmanager
def made_plan(
    log_dirs: DataFrame,
    replicas: DataFrame,
    request: PlanRequest,
    step: Callable[[str], None] = lambda _: None,
) -> Iterator[MadePlan]:
    """Plan; what Spark keeps for it is given up at the end.

    :raises StartupError: without directories, or for a drain of something that there is not.
    """
    kept: list[DataFrame] = []

    def keep(frame: DataFrame) -> DataFrame:
        kept.append(frame.persist(StorageLevel.MEMORY_AND_DISK))
        return frame

    try:
        dirs = keep(plan_frames.directories(log_dirs, request.drains))
        placed = keep(plan_frames.placed(replicas, dirs))
        sums = keep(plan_frames.sums(dirs, placed))
        rows = sums.collect()
        if not rows:
            raise StartupError("no log directory is known, so there is nothing to plan with")
        _require_drains(rows, request.drains)
        step(f"{sum(row.replicas for row in rows):,} replicas in {len(rows):,} directories")
        crossings, goals = None, request.goals
        if request.across_brokers:
            crossings = _cross(placed, rows, _for_brokers(goals), keep, step)
            goals = replace(goals, level=cluster_level(map(_dir_sums, rows)))
        moves = plan_frames.moves(placed, sums, goals, crossings)
        if request.max_moves is not None or request.max_bytes is not None:
            moves = plan_frames.limited(keep(moves), request.max_moves, request.max_bytes)
        yield MadePlan(placed=placed, sums=sums, moves=keep(moves))
    finally:
        for frame in kept:
            frame.unpersist()


def _for_brokers(goals: Goals) -> Goals:
    """Brokers within a part of the tolerance, so that their directories can be within all of it."""
    return replace(
        goals,
        tolerance=goals.tolerance * _OF_TOLERANCE,
        rate_tolerance=goals.rate_tolerance * _OF_TOLERANCE,
    )


def _require_drains(rows: Sequence[Row], drains: Sequence[Drain]) -> None:
    for drain in drains:
        own = [row.path for row in rows if row.broker_id == drain.broker_id]
        if drain.path not in (None, *own) or not own:
            there = ", ".join(own) or f"brokers {sorted({row.broker_id for row in rows})}"
            raise StartupError(f"--drain {drain}: there is no such directory; there are {there}")


def _cross(
    placed: DataFrame,
    rows: Sequence[Row],
    goals: Goals,
    keep: Callable[[DataFrame], DataFrame],
    step: Callable[[str], None],
) -> DataFrame | None:
    """Replicas that change brokers, in turns: each partition is in one turn at most."""
    racks = {row.broker_id: row.rack for row in rows}
    open_brokers = {row.broker_id for row in rows if not row.is_drained}
    drained = sorted(racks.keys() - open_brokers)
    loads = broker_loads(map(_dir_sums, rows))
    stuck: set[int] = set()
    done: DataFrame | None = None
    for turn in range(_BYTE_TURNS + _RATE_TURNS):
        wanted = without_stuck(loads, stuck) if stuck else loads
        tasks = (byte_tasks if turn < _BYTE_TURNS else rate_tasks)(wanted, racks, goals)
        if not tasks:
            continue
        found = plan_frames.candidates(placed, sorted(tasks), drained, turn)
        if done is not None:
            found = plan_frames.without(found, done)
        chosen = keep(plan_frames.crossings(found, tasks, racks))
        given, taken = _sent(chosen, "from_broker"), _sent(chosen, "to_broker")
        count = sum(sent.replicas for sent in given.values())
        step(f"turn {turn + 1}: {count:,} replicas leave {len(given)} of {len(tasks)} brokers")
        loads = after(loads, given, taken)
        stuck |= tasks.keys() - given.keys() - set(drained)
        done = chosen if done is None else done.unionByName(chosen)
    return done


def _dir_sums(row: Row) -> DirSums:
    told = row.asDict()
    names = ("broker_id", "path", "size_bytes", "fixed_bytes", "write_rate", "fixed_rate")
    return DirSums(
        **{name: told[name] for name in names}, replicas=told["replicas"], load=dir_load(told)
    )


def _sent(crossings: DataFrame, end: str) -> dict[int, Sent]:
    return {
        row.broker_id: Sent(
            size_bytes=row.size_bytes, write_rate=row.write_rate, replicas=row.replicas
        )
        for row in plan_frames.sent(crossings, end).collect()
    }


# --- what is written and told --------------------------------------------------------------------


def write_files(plan: MadePlan, out: Path, rollback_out: Path | None) -> int:
    """The reassignment, and the one that takes it back; how many partitions they name."""
    new: dict[TopicPartition, tuple[int, ...]] = {}
    old: dict[TopicPartition, tuple[int, ...]] = {}
    new_dirs: dict[Replica, str] = {}
    old_dirs: dict[Replica, str] = {}
    for row in plan_frames.reassigned(plan.placed, plan.moves).toLocalIterator():
        partition = TopicPartition(row.topic, row.partition)
        for replicas, log_dirs, brokers, paths in (
            (new, new_dirs, row.brokers, row.log_dirs),
            (old, old_dirs, row.brokers_before, row.log_dirs_before),
        ):
            replicas[partition] = tuple(brokers)
            for broker, path in zip(brokers, paths, strict=True):
                if path is not None:
                    log_dirs[Replica(broker, *partition)] = path
    _write(out, ReassignmentPlan(replicas=new, log_dirs=new_dirs))
    if rollback_out is not None:
        _write(rollback_out, ReassignmentPlan(replicas=old, log_dirs=old_dirs))
    return len(new)


def _write(path: Path, plan: ReassignmentPlan) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(plan.as_json() + "\n", encoding="utf-8")


def planned_dirs(plan: MadePlan) -> list[PlannedDir]:
    """Every directory before and after, by broker and path."""
    before = {(row.broker_id, row.path): row for row in plan.sums.collect()}
    changed = plan_frames.plan_dirs(plan.sums, plan.moves).collect()
    return [
        PlannedDir(
            broker_id=row.broker_id,
            path=row.path,
            load=dir_load(before[row.broker_id, row.path].asDict()),
            fixed_bytes=before[row.broker_id, row.path].fixed_bytes,
            largest_bytes=before[row.broker_id, row.path].largest_bytes,
            bytes_before=row.bytes_before,
            bytes_after=row.bytes_after,
            write_rate_before=row.write_rate_before,
            write_rate_after=row.write_rate_after,
            replicas_after=row.replicas_after,
        )
        for row in sorted(changed, key=lambda row: (row.broker_id, row.path))
    ]


def plan_figures(plan: MadePlan, dirs: Sequence[PlannedDir], request: PlanRequest) -> PlanFigures:
    """What the plan brings."""
    is_across = F.col("from_broker") != F.col("to_broker")
    is_for_rate = F.col("tier") == int(Tier.RATE)
    size = F.col("size_bytes")
    row = plan.moves.agg(
        F.count(F.lit(1)).alias("moves"),
        F.coalesce(F.sum(size), F.lit(0)).alias("moved_bytes"),
        F.count(F.when(is_across, 1)).alias("moves_across"),
        F.coalesce(F.sum(F.when(is_across, size)), F.lit(0)).alias("moved_bytes_across"),
        F.coalesce(F.sum(F.when(is_for_rate, size)), F.lit(0)).alias("moved_bytes_for_rate"),
    ).collect()[0]
    return figures(
        dirs,
        moves=row.asDict(),
        tolerance=request.goals.tolerance,
        across_brokers=request.across_brokers,
    )


# --- the command ---------------------------------------------------------------------------------


def parse_drain(text: str) -> Drain:
    """``BROKER`` or ``BROKER:PATH``.

    :raises click.BadParameter: for anything else.
    """
    broker, colon, path = text.partition(":")
    is_good = broker.isascii() and broker.isdigit() and (not colon or path.startswith("/"))
    if not is_good:
        raise click.BadParameter(
            f"{text!r} is neither a broker id nor BROKER:PATH with an absolute path",
            param_hint="--drain",
        )
    return Drain(broker_id=int(broker), path=(path.rstrip("/") or "/") if colon else None)


def look_ahead(
    *,
    bootstrap_server: str | None,
    command_config: str | None,
    from_tables: bool,
    observe_s: float,
    **_options: Any,
) -> StorageSnapshot | None:
    """What the brokers tell now, where the plan is to be made of that."""
    if bootstrap_server is None or from_tables:
        return None

    async def look() -> StorageSnapshot:
        async with make_client(bootstrap_server, command_config) as client:
            return await take_snapshot(client, observe_s=observe_s)

    return asyncio.run(look())


@job_command("plan", ahead=look_ahead)
@click.option("--bootstrap-server", metavar="HOST:PORT,...", help="Plan what lies there now.")
@click.option("--command-config", metavar="FILE", help="Client settings for --bootstrap-server.")
@click.option("--from-tables", is_flag=True, help="Plan what telemetry's tables tell.")
@click.option(
    "--max-age",
    "max_age_s",
    type=click.FloatRange(min=1),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="How old the newest sample of a broker may be.",
)
@click.option(
    "--observe",
    "observe_s",
    type=click.FloatRange(min=0),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="How long to watch write rates; 0 leaves them out.",
)
@click.option("--across-brokers", is_flag=True, help="Replicas may change brokers.")
@click.option(
    "--drain", "drains", multiple=True, metavar="BROKER[:PATH]", help="Empty it; repeatable."
)
@click.option("--max-moves", type=click.IntRange(min=1), help="Only so many, the best first.")
@click.option("--max-bytes", type=click.IntRange(min=1), help="Only so many, the best first.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=1),
    default=TOLERANCE,
    show_default=True,
    help="How far bytes may be from a directory's share, as a fraction of it.",
)
@click.option(
    "--rate-tolerance",
    type=click.FloatRange(min=0),
    default=RATE_TOLERANCE,
    show_default=True,
    help="The same for write rates.",
)
@click.option("--out", default="plan.json", show_default=True, metavar="FILE", help="The plan.")
@click.option("--rollback-out", metavar="FILE", help="How it is now, as a plan.")
@click.option("--picture", metavar="FILE", help="Before and after, as .svg or .png.")
def command(job: Job, /, **options: Any) -> JobOutcome:
    """A reassignment that evens out directories, and with --across-brokers brokers too.

    Nothing is moved: kraftjbod-reassign-partitions --execute does that with the file.
    """
    if bool(options["bootstrap_server"]) == options["from_tables"]:
        raise click.UsageError("give either --bootstrap-server or --from-tables")
    request = PlanRequest(
        goals=Goals(tolerance=options["tolerance"], rate_tolerance=options["rate_tolerance"]),
        across_brokers=options["across_brokers"],
        drains=tuple(map(parse_drain, options["drains"])),
        max_moves=options["max_moves"],
        max_bytes=options["max_bytes"],
    )
    log_dirs, replicas, notes = _storage(job, options)
    with made_plan(log_dirs, replicas, request, job.step) as plan:
        return _finish(job, plan, request, options, notes)


def _storage(job: Job, options: dict[str, Any]) -> tuple[DataFrame, DataFrame, tuple[str, ...]]:
    """The tables ``log_dirs`` and ``replicas``, and what could not be seen."""
    if options["from_tables"]:
        return (*_from_tables(job, options["max_age_s"]), ())
    job.step(f"looking at the brokers, for {options['observe_s']:g} s")
    snapshot: StorageSnapshot = job.from_ahead()
    return (
        snapshot.log_dir_frame(job.spark),
        snapshot.replica_frame(job.spark),
        tuple(snapshot.notes),
    )


def _from_tables(job: Job, max_age_s: float) -> tuple[DataFrame, DataFrame]:
    """:raises StartupError: without samples, or naming brokers whose newest one is too old."""
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
            told = ", ".join(f"broker {row.broker_id} {row.age_s:.0f} s" for row in old)
            raise StartupError(
                f"telemetry is too old to plan by: {told}; let the telemetry job catch up, see "
                f"whether these brokers run, or give a larger --max-age than {max_age_s:g}"
            )
        found.append(snapshot_frames.recent(table, now_s, max_age_s))
    return snapshot_frames.log_dirs(found[0]), snapshot_frames.replicas(found[1])


def _finish(
    job: Job,
    plan: MadePlan,
    request: PlanRequest,
    options: dict[str, Any],
    notes: Sequence[str],
) -> JobOutcome:
    """Write everything and say what it is."""
    out, rollback = Path(options["out"]), options["rollback_out"]
    partitions = write_files(plan, out, Path(rollback) if rollback else None)
    dirs = planned_dirs(plan)
    told = plan_figures(plan, dirs, request)
    publish(plan_frames.plan_dirs(plan.sums, plan.moves), job.table("plan_dirs"))
    publish(plan_frames.plan_moves(plan.moves), job.table("plan_moves"))
    if options["picture"]:
        rows = plan_frames.plan_dirs(plan.sums, plan.moves).collect()
        draw_plan([row.asDict() for row in rows], Path(options["picture"]))
    next_step = (
        f"{out}: {partitions} partitions; kraftjbod-reassign-partitions --execute "
        f"--reassignment-json-file {out} carries it out"
        if partitions
        else f"nothing to do: {out} has no partitions, so there is nothing to execute"
    )
    return JobOutcome(
        summary={
            **as_json(told),
            "partitions": partitions,
            "notes": list(notes),
            "out": str(out),
            "rollback_out": rollback,
        },
        lines=(*lines(dirs, told), *notes, next_step),
    )
