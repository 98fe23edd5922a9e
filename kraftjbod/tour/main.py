"""WIRE. ``make run``: the tour.

The tour starts a cluster on empty disks and plays the game day scenario ``successive-failures`` on
it, with every line of the standard library as load. Then Spark ingests the topic, audits it, and
plans how to even out the disks. The cluster stays up.
The exit code is 0 only if no acknowledged record is missing, duplicated, changed or out of
order, and every job of the pipeline succeeded.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.core.errors import KraftJbodError
from kraftjbod.gameday.faults.successive_failures import SuccessiveFailures
from kraftjbod.gameday.load.topic_load import TopicLoad
from kraftjbod.gameday.outcome import Outcome, report_document
from kraftjbod.gameday.outcome_tables import print_outcome, print_summary
from kraftjbod.gameday.scenario_run import ScenarioRun, Settings
from kraftjbod.gameday.scenarios import MAX_GAP_MS, MAX_METADATA_GAP_MS, Phases, Scenario
from kraftjbod.gameday.timeline_svg import draw_timeline
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.cluster_report import shortened, show_cluster
from kraftjbod.local.up_and_down import claimed, daemon_states, make_cluster
from kraftjbod.tour.job_session import JobSession
from kraftjbod.tour.pipeline import Pipeline
from kraftjbod.tour.report import Reporter, write_json
from kraftjbod.tour.source_lines import deal_standard_library

TOPIC: Final = "python-source"
PARTITIONS: Final = 12
SCENARIO: Final[Scenario] = "successive-failures"
_BATCH_RECORDS: Final = 500
_PHASES: Final = Phases(before_s=3.0, fault_s=1.0, after_s=1.0)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="kraftjbod-tour", description=(__doc__ or "").removeprefix("WIRE. ")
    )
    parser.add_argument("--run-dir", type=Path, default=Path("run"), help="where state lives")
    parser.add_argument(
        "--without-pipeline", action="store_true", help="end before the part on Spark"
    )
    options = parser.parse_args(argv)
    reporter = Reporter(Console())
    # SIGTERM raises KeyboardInterrupt, so that an interrupted tour ends its cluster too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with claimed(options.run_dir):
            return asyncio.run(
                run(options.run_dir, reporter, with_pipeline=not options.without_pipeline)
            )
    except (KraftJbodError, OSError) as e:
        reporter.trouble(str(e))
    except KeyboardInterrupt:
        reporter.trouble("interrupted")
    return 1


async def run(run_dir: Path, reporter: Reporter, *, with_pipeline: bool) -> int:
    """Run the tour from empty disks to a repaired cluster and the Spark jobs; return the exit code.

    A cluster of an earlier run in ``run_dir`` is stopped, and its data removed. The new cluster
    stays up, unless an exception ends the tour. The exit code is 0 if everything was good, else 1.
    """
    await _clear(run_dir, reporter)
    dealing = asyncio.create_task(asyncio.to_thread(deal_standard_library, PARTITIONS))
    cluster = await _start_new(run_dir, reporter)
    try:
        streams = dict(enumerate(await dealing))
        least = {partition: len(stream) for partition, stream in streams.items()}
        load = TopicLoad(streams, batch_records=_BATCH_RECORDS, least=least)
        async with JobSession(cluster.run_dir / "pipeline.log") as jobs:
            is_good = await _play(cluster, reporter, load, jobs if with_pipeline else None)
            cluster = _reloaded(cluster)
            if with_pipeline:
                pipeline = Pipeline(
                    cluster=cluster, reporter=reporter, topic=TOPIC, loads=load.loads, jobs=jobs
                )
                is_good = await pipeline.take() and is_good
    except BaseException:
        # An interrupted tour leaves no running cluster behind, only its files.
        _reloaded(cluster).kill()
        raise
    reporter.step("The cluster stays up.")
    show_cluster(reporter.console, cluster, await daemon_states(cluster))
    reporter.note("stop it with:       make stop")
    return 0 if is_good else 1


async def _clear(run_dir: Path, reporter: Reporter) -> None:
    """Stop the cluster of an earlier run and remove its data."""
    cluster = ClusterProcesses.load(run_dir)
    if cluster is None:
        return
    if any(daemon.is_running for daemon in cluster.daemons):
        reporter.step("A cluster is running: it is stopped, and the tour starts from empty disks.")
        await cluster.stop()
    for daemon in cluster.daemons:
        for log_dir in daemon.files.log_dirs:
            if log_dir.exists():
                log_dir.chmod(0o755)
        if daemon.files.directory.exists():
            shutil.rmtree(daemon.files.directory)
    (cluster.run_dir / "cluster.json").unlink()


async def _start_new(run_dir: Path, reporter: Reporter) -> ClusterProcesses:
    began_s = time.monotonic()
    cluster = make_cluster(run_dir)
    brokers = len(cluster.brokers)
    reporter.step(
        f"Starting {len(cluster.controllers)} controllers and {brokers} brokers with 3 log "
        "directories each."
    )
    reporter.note(f"daemons run {cluster.privileges.description}")
    await cluster.start()
    reporter.note(f"healthy after {time.monotonic() - began_s:.1f} s")
    return cluster


def _reloaded(cluster: ClusterProcesses) -> ClusterProcesses:
    """Return the cluster with the processes that the scenario started."""
    return ClusterProcesses.load(cluster.run_dir) or cluster


async def _play(
    cluster: ClusterProcesses, reporter: Reporter, load: TopicLoad, jobs: JobSession | None
) -> bool:
    """Play the scenario and report it; return whether no acknowledged record was lost or changed.

    Spark starts when the load has ended, so that it does not compete for CPU during failures.
    """
    reporter.step(
        f"Producing every line of Python's standard library: {PARTITIONS} producers, acks=all, as "
        "fast as they go. Meanwhile a disk fails, then the active controller, then a broker."
    )
    run = ScenarioRun(
        Settings(
            bootstrap_servers=cluster.bootstrap_servers,
            topic=TOPIC,
            partitions=PARTITIONS,
            phases=_PHASES,
            keep_topic=True,
        ),
        scenario=SCENARIO,
        run="tour",
        limit_ms=MAX_GAP_MS[SCENARIO],
        metadata_limit_ms=MAX_METADATA_GAP_MS[SCENARIO],
        report=reporter.note,
    )
    starting = None if jobs is None else asyncio.create_task(_start_after(load, jobs))
    try:
        async with ClusterClient(cluster.bootstrap_servers) as client:
            outcome = await run.play(client, SuccessiveFailures(run.mark), load)
    except BaseException:
        if starting is not None:
            starting.cancel()
        raise
    if starting is not None:
        await starting
    return _report(cluster.run_dir, reporter, outcome)


async def _start_after(load: TopicLoad, jobs: JobSession) -> None:
    await load.ended.wait()
    await jobs.start()


def _report(run_dir: Path, reporter: Reporter, outcome: Outcome) -> bool:
    print_outcome(reporter.console, outcome)
    print_summary(reporter.console, [outcome], [])
    write_json(run_dir / "gameday.json", report_document([outcome], []))
    picture = run_dir / "gameday.svg"
    picture.write_text(draw_timeline([outcome]), encoding="utf-8")
    reporter.step(f"The timeline, for any browser: {shortened(picture)}")
    if not all(one.findings.is_good for one in outcome.partitions):
        reporter.trouble("Records are missing or wrong: see the table.")
        return False
    seconds = outcome.ended_s - outcome.began_s
    reporter.step(
        f"[green]Nothing was lost[/green]: all {outcome.acknowledged:,} acknowledged records "
        f"({outcome.acknowledged / seconds:,.0f} a second) are there, once, unchanged, in order, "
        "at the acknowledged offsets."
    )
    return not outcome.problems


if __name__ == "__main__":
    sys.exit(main())
