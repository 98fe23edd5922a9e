"""WIRE. ``kraftjbod-pipeline plan``: writes a plan of moves for kraftjbod-reassign-partitions.

Plans from the current reports of brokers are made in this process (balance/cluster_planner.py),
without Spark and Java. Plans from telemetry's tables, or with ``--master`` or ``--conf``, are made
with Spark, broker by broker on its executors (spark_plan.py). The plan and its files are the same
in both cases. The cluster is not changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import click

from kraftjbod.balance.cluster_planner import ClusterPlan, Reassigned, plan_cluster
from kraftjbod.balance.fair_shares import RATE_TOLERANCE, TOLERANCE, Goals
from kraftjbod.balance.placement import Drain, PlanRequest
from kraftjbod.balance.plan_summary import MoveCounts, PlannedDir, as_json, figures, lines
from kraftjbod.cli.terminal.command import make_client
from kraftjbod.spark.pipeline_tool import without_spark
from kraftjbod.spark.plan.plan_files import dir_row, publish_plan, write_files
from kraftjbod.spark.plan.storage_snapshot import StorageSnapshot, take_snapshot
from kraftjbod.spark.session.job import BareJob, Job, JobOutcome, job_command
from kraftjbod.spark.tables.local_tables import local_folder


class AnyPlan(Protocol):
    """A plan of moves, made with or without Spark.

    It has the partitions with moving replicas, every directory before and after the moves, and the
    number and bytes of the moves.
    """

    @property
    def partitions(self) -> Iterable[Reassigned]: ...

    @property
    def dirs(self) -> Sequence[PlannedDir]: ...

    @property
    def counts(self) -> MoveCounts: ...


def parse_drain(text: str) -> Drain:
    """Parse ``BROKER`` or ``BROKER:PATH``.

    :raises click.BadParameter: the text has another form.
    """
    broker, colon, path = text.partition(":")
    is_good = broker.isascii() and broker.isdigit() and (not colon or path.startswith("/"))
    if not is_good:
        raise click.BadParameter(
            f"{text!r} is neither a broker id nor BROKER:PATH with an absolute path",
            param_hint="--drain",
        )
    return Drain(broker_id=int(broker), path=(path.rstrip("/") or "/") if colon else None)


async def _take(
    bootstrap_server: str, command_config: str | None, observe_s: float, drains: Iterable[Drain]
) -> StorageSnapshot:
    whole = {drain.broker_id for drain in drains if drain.path is None}
    async with make_client(bootstrap_server, command_config) as client:
        return await take_snapshot(client, observe_s=observe_s, drained=whole)


def snapshot_ahead(
    *,
    bootstrap_server: str | None,
    command_config: str | None,
    from_tables: bool,
    observe_s: float,
    drains: Sequence[str],
    **_options: Any,
) -> StorageSnapshot | None:
    """Query the brokers, and return what they report about their storage; None if the plan uses
    tables.

    :raises click.BadParameter: an item of ``drains`` is malformed.
    :raises StartupError: the size of a disk is not reported.
    :raises OperatingError: a broker does not respond.
    """
    if bootstrap_server is None or from_tables:
        return None
    parsed = map(parse_drain, drains)
    return asyncio.run(_take(bootstrap_server, command_config, observe_s, parsed))


def does_without_spark(
    *,
    bootstrap_server: str | None,
    from_tables: bool,
    master: str | None,
    conf: Sequence[str],
    tables: str,
    drains: Sequence[str],
    across_brokers: bool,
    **_options: Any,
) -> bool:
    """Check the options that name the input and the drains; return whether the job runs without
    Spark: its input are brokers, ``tables`` is a local folder, and neither ``master`` nor ``conf``
    is given.

    :raises click.UsageError: not exactly one source for the plan, or a drain is impossible.
    """
    if bool(bootstrap_server) == from_tables:
        raise click.UsageError("give either --bootstrap-server or --from-tables")
    for drain in map(parse_drain, drains):
        if drain.path is None and not across_brokers:
            raise click.UsageError(
                f"--drain {drain.broker_id} empties a whole broker, so its replicas change "
                "brokers: give --across-brokers too"
            )
    return not from_tables and master is None and not conf and local_folder(tables) is not None


@job_command("plan", ahead=snapshot_ahead, bare=does_without_spark)
@click.option(
    "--bootstrap-server",
    metavar="HOST:PORT,...",
    help="Plan from the current reports of the brokers.",
)
@click.option("--command-config", metavar="FILE", help="Client settings for --bootstrap-server.")
@click.option("--from-tables", is_flag=True, help="Plan from the tables of telemetry.")
@click.option(
    "--max-age",
    "max_age_s",
    type=click.FloatRange(min=1),
    default=600,
    show_default=True,
    metavar="SECONDS",
    help="Maximum age of the newest sample of each broker.",
)
@click.option(
    "--observe",
    "observe_s",
    type=click.FloatRange(min=0),
    default=5,
    show_default=True,
    metavar="SECONDS",
    help="Time to measure write rates; 0 to ignore them.",
)
@click.option("--across-brokers", is_flag=True, help="Replicas may change brokers.")
@click.option(
    "--drain", "drains", multiple=True, metavar="BROKER[:PATH]", help="Empty it; may be repeated."
)
@click.option("--max-moves", type=click.IntRange(min=1), help="Maximum number of moves.")
@click.option("--max-bytes", type=click.IntRange(min=1), help="Maximum bytes to move.")
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, max=1),
    default=TOLERANCE,
    show_default=True,
    help="Accepted deviation from a directory's fair share of bytes, as a fraction.",
)
@click.option(
    "--rate-tolerance",
    type=click.FloatRange(min=0),
    default=RATE_TOLERANCE,
    show_default=True,
    help="Accepted deviation of write rates, as a fraction.",
)
@click.option(
    "--out", default="plan.json", show_default=True, metavar="FILE", help="File for the plan."
)
@click.option(
    "--rollback-out", metavar="FILE", help="File for a plan that restores the current state."
)
@click.option("--picture", metavar="FILE", help="Draw the state before and after, as .svg or .png.")
def command(job: BareJob, /, **options: Any) -> JobOutcome:
    """Plan a reassignment that balances directories, and with --across-brokers also brokers.

    Nothing is moved: kraftjbod-reassign-partitions --execute carries the file out. The job starts
    Spark only with --from-tables, --master, --conf, or a URI as --tables.
    """
    draw = _painter() if options["picture"] else None
    request = PlanRequest(
        goals=Goals(tolerance=options["tolerance"], rate_tolerance=options["rate_tolerance"]),
        across_brokers=options["across_brokers"],
        drains=tuple(map(parse_drain, options["drains"])),
        max_moves=options["max_moves"],
        max_bytes=options["max_bytes"],
    )
    snapshot: StorageSnapshot | None = None
    if not options["from_tables"]:
        job.step(f"looking at the brokers, for {options['observe_s']:g} s")
        snapshot = job.from_ahead()
    notes = snapshot.notes if snapshot is not None else []
    if isinstance(job, Job):
        from kraftjbod.spark.plan.spark_plan import as_tables, made_plan, telemetry_tables

        if snapshot is None:
            tables = telemetry_tables(job, options["max_age_s"])
        else:
            tables = as_tables(job.spark, snapshot.dirs, snapshot.replicas)
        with made_plan(*tables, request, job.step) as made:
            return _finish(made, partial(made.publish, job), request, options, notes, draw)
    assert snapshot is not None, "without Spark only what brokers report is planned"
    plan = plan_cluster(snapshot.dirs, snapshot.replicas, request, job.step)
    return _finish(plan, partial(_publish, job, plan), request, options, notes, draw)


def _painter() -> Callable[[Sequence[Mapping[str, Any]], Path], None]:
    """Return the function that draws the picture.

    The library is loaded before the plan is made, so that a missing library fails at once.

    :raises click.ClickException: the plotting library is missing.
    """
    try:
        from kraftjbod.spark.plan.plan_picture import draw_plan
    except ModuleNotFoundError as e:
        raise without_spark(e) from e
    return draw_plan


def _publish(job: BareJob, plan: ClusterPlan) -> None:
    """Write the tables ``plan_dirs`` and ``plan_moves``, or report that pyarrow is missing."""
    folder = local_folder(job.tables)
    assert folder is not None, "elsewhere Spark writes them"
    try:
        publish_plan(plan, folder)
    except ModuleNotFoundError as e:
        job.step(f"no tables are written: {e.name} is not installed (`make spark`)")


def _finish(
    plan: AnyPlan,
    publish: Callable[[], None],
    request: PlanRequest,
    options: Mapping[str, Any],
    notes: Sequence[str],
    draw: Callable[[Sequence[Mapping[str, Any]], Path], None] | None,
) -> JobOutcome:
    """Write all files of the plan, and return the summary."""
    out, rollback = Path(options["out"]), options["rollback_out"]
    partitions = write_files(plan.partitions, out, Path(rollback) if rollback else None)
    counted = figures(
        plan.dirs,
        moves=plan.counts,
        tolerance=request.goals.tolerance,
        across_brokers=request.across_brokers,
    )
    publish()
    if draw is not None:
        draw([dir_row(one) for one in plan.dirs], Path(options["picture"]))
    next_step = (
        f"{out}: {partitions} partitions; kraftjbod-reassign-partitions --execute "
        f"--reassignment-json-file {out} carries it out"
        if partitions
        else f"nothing to do: {out} has no partitions, so there is nothing to execute"
    )
    return JobOutcome(
        summary={
            **as_json(counted),
            "partitions": partitions,
            "notes": list(notes),
            "out": str(out),
            "rollback_out": rollback,
        },
        lines=(*lines(plan.dirs, counted), *notes, next_step),
    )
