"""WIRE. ``make run``: the tour.

The tour starts a cluster on empty disks and writes every line of the standard library to it. Under
load it kills the busiest log directory, the active controller, and a broker. It reads all records
back and repairs the disk. Then Spark ingests the topic, audits it, and plans how to even out the
disks. The cluster stays up.
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

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.log_dir_changes import LogDirChange, change_log_dir
from kraftjbod.core.errors import KraftJbodError, StartupError
from kraftjbod.gameday.faults.cluster_watch import Victim, choose_victim, wait_in_sync
from kraftjbod.gameday.load.check import Findings
from kraftjbod.gameday.load.read_back import read_back
from kraftjbod.local.cluster_process import ClusterProcesses, directory_id
from kraftjbod.local.privileges import chmod_bites
from kraftjbod.local.up_and_down import claimed, daemon_states, make_cluster
from kraftjbod.tour import disk_death, process_deaths
from kraftjbod.tour.disk_death import Death
from kraftjbod.tour.job_session import JobSession
from kraftjbod.tour.pipeline import Pipeline
from kraftjbod.tour.process_deaths import ProcessDeath
from kraftjbod.tour.report import Reporter, tour_document, write_json
from kraftjbod.tour.source_lines import deal_standard_library
from kraftjbod.tour.workload import Workload

TOPIC: Final = "python-source"
PARTITIONS: Final = 12
REPLICATION_FACTOR: Final = 3
GOAL_GAP_MS: Final = 1000
#: Smaller than a broker's: producers do not need a controller.
CONTROLLER_GOAL_GAP_MS: Final = 300
BROKER_GOAL_GAP_MS: Final = 1500

_KILL_AT: Final = 0.4
_LOAD_MAX_S: Final = 90.0
_LOAD_AFTER_S: Final = 1.0
_FAILOVER_TIMEOUT_S: Final = 40.0
_REPAIR_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05


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
    """Run the tour from empty disks to a repaired cluster and the Spark jobs; return exit code."""
    await _clear(run_dir, reporter)
    dealing = asyncio.create_task(asyncio.to_thread(deal_standard_library, PARTITIONS))
    cluster = await _start_new(run_dir, reporter)
    try:
        await _require_mortal_disks(cluster)
        workload = Workload(await dealing, max_s=_LOAD_MAX_S)
        async with JobSession(cluster.run_dir / "pipeline.log") as jobs:
            tour = _Tour(cluster, reporter, workload, jobs if with_pipeline else None)
            is_good = await tour.take()
            if with_pipeline:
                pipeline = Pipeline(
                    cluster=cluster, reporter=reporter, topic=TOPIC, workload=workload, jobs=jobs
                )
                is_good = await pipeline.take() and is_good
    except BaseException:
        # An interrupted tour leaves no running cluster behind, only its files.
        cluster.kill()
        raise
    reporter.step("The cluster stays up.")
    reporter.addresses(cluster, await daemon_states(cluster))
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


async def _require_mortal_disks(cluster: ClusterProcesses) -> None:
    if not await asyncio.to_thread(chmod_bites, cluster.privileges, cluster.run_dir):
        raise StartupError("chmod does not keep daemons out here, so no disk can be killed")


class _Tour:
    """State of one tour."""

    def __init__(
        self,
        cluster: ClusterProcesses,
        reporter: Reporter,
        workload: Workload,
        jobs: JobSession | None,
    ) -> None:
        self._cluster = cluster
        self._reporter = reporter
        self._workload = workload
        self._jobs = jobs
        #: Directory id of the killed disk, read before it is killed.
        self._directory_id: str | None = None

    async def take(self) -> bool:
        """Run the first half and return whether no acknowledged record was lost or changed."""
        workload = self._workload
        async with ClusterClient(self._cluster.bootstrap_servers) as client:
            await self._create_topic(client)
            self._reporter.step(
                f"Producing every line of Python's standard library: {workload.lines:,} records, "
                f"{PARTITIONS} producers, acks=all, as fast as they go, and round again until the "
                "disk's death has been seen through."
            )
            producing = asyncio.create_task(workload.run(self._cluster.bootstrap_servers, TOPIC))
            try:
                victim, death = await self._kill_a_disk(client, workload, producing)
                try:
                    return await self._finish(client, workload, producing, victim, death)
                finally:
                    disk_death.restore_disk(victim.path, death)
            finally:
                producing.cancel()
                await asyncio.gather(producing, return_exceptions=True)

    async def _create_topic(self, client: ClusterClient) -> None:
        await client.retry(client.refresh_metadata)
        await create_topic(
            client,
            TOPIC,
            partitions=PARTITIONS,
            replication_factor=REPLICATION_FACTOR,
            configs={"min.insync.replicas": "2"},
        )
        await wait_in_sync(client, TOPIC, timeout_s=_FAILOVER_TIMEOUT_S)
        self._reporter.step(
            f"Created topic {TOPIC}: {PARTITIONS} partitions, {REPLICATION_FACTOR} replicas each, "
            "min.insync.replicas=2."
        )

    async def _kill_a_disk(
        self, client: ClusterClient, workload: Workload, producing: asyncio.Task[None]
    ) -> tuple[Victim, Death]:
        target = int(workload.lines * _KILL_AT)
        with self._reporter.bar("records acknowledged", target) as show:
            while workload.acked < target:
                if producing.done():
                    producing.result()
                    raise StartupError(f"producing ended early: {_errors(workload)}")
                show(workload.acked)
                await asyncio.sleep(_POLL_S)
        victim = await choose_victim(client, TOPIC)
        self._directory_id = directory_id(victim.path)
        self._reporter.step(
            f"Killing the busiest disk under load: {victim.path.name} of broker "
            f"{victim.broker_id}, with {victim.replicas} replicas, {len(victim.led)} of them "
            "leaders (chmod 000)."
        )
        return victim, disk_death.kill_disk(victim.path)

    async def _finish(
        self,
        client: ClusterClient,
        workload: Workload,
        producing: asyncio.Task[None],
        victim: Victim,
        death: Death,
    ) -> bool:
        led_elsewhere_s = await disk_death.wait_for_new_leaders(
            client, TOPIC, victim, timeout_s=_FAILOVER_TIMEOUT_S
        )
        await disk_death.wait_clients_back(
            workload.loads, victim, led_elsewhere_s or death.at_s, timeout_s=_FAILOVER_TIMEOUT_S
        )
        await asyncio.sleep(_LOAD_AFTER_S)
        gaps = disk_death.gaps_around(workload.loads, death, until_s=time.monotonic())
        deaths = await self._kill_processes(client, workload, victim.broker_id)
        workload.stop()
        with self._reporter.bar("records acknowledged", workload.lines) as show:
            while not producing.done():
                show(min(workload.acked, workload.lines))
                await asyncio.wait({producing}, timeout=_POLL_S)
        producing.result()
        if self._jobs is not None:
            # Not earlier, so that Spark does not compete for CPU while disks are killed.
            await self._jobs.start()
        figures = _figures(workload)
        self._reporter.note(
            f"{workload.acked:,} records acknowledged in {figures['seconds']:.1f} s, "
            f"{figures['records_per_s']:,.0f} records/s, {figures['mb_per_s']:.1f} MB/s"
        )
        milestones = disk_death.timeline_of(
            death,
            self._cluster.brokers[victim.broker_id],
            self._directory_id,
            led_elsewhere_s,
            gaps,
            victim,
        )
        self._reporter.timeline("A disk died", milestones)
        for process in deaths:
            self._reporter.process_death(process)
        findings = await self._check(client, workload)
        self._reporter.partitions(victim, gaps, findings)
        is_good = self._judge(workload, findings, max(gap.length_ms for gap in gaps.values()))
        document = tour_document(
            topic=TOPIC,
            victim=victim,
            milestones=milestones,
            gaps=gaps,
            findings=findings,
            figures=figures,
            deaths=deaths,
            is_good=is_good,
        )
        write_json(self._cluster.run_dir / "tour.json", document)
        await self._repair(client, victim, death)
        return is_good

    async def _kill_processes(
        self, client: ClusterClient, workload: Workload, broker_id: int
    ) -> list[ProcessDeath]:
        """Kill the active controller, then broker ``broker_id``, whose disk is dead.

        Any other broker would leave some partitions with two replicas, one of them offline.
        """
        self._reporter.step("Killing the active controller under the same load (kill -9).")
        controller = await process_deaths.kill_controller(
            self._cluster, TOPIC, workload.loads, goal_ms=CONTROLLER_GOAL_GAP_MS
        )
        self._reporter.step(
            f"Killing broker {broker_id}, with its other disks and what it leads there (kill -9)."
        )
        broker = await process_deaths.kill_broker(
            self._cluster, client, TOPIC, broker_id, workload.loads, goal_ms=BROKER_GOAL_GAP_MS
        )
        return [controller, broker]

    async def _check(self, client: ClusterClient, workload: Workload) -> list[Findings]:
        self._reporter.step("Reading everything back, with the disk still dead.")
        done = 0
        with self._reporter.bar("records read", workload.acked) as show:

            def advance(more: int) -> None:
                nonlocal done
                done += more
                show(done)

            return await read_back(client, TOPIC, workload.loads, advance)

    def _judge(self, workload: Workload, findings: list[Findings], gap_ms: int) -> bool:
        goal = "within" if gap_ms <= GOAL_GAP_MS else "[yellow]above[/yellow]"
        self._reporter.step(
            f"Longest time without an acknowledged write, of any partition: {gap_ms} ms "
            f"({goal} the goal of {GOAL_GAP_MS} ms)."
        )
        errors = _errors(workload)
        if errors:
            self._reporter.trouble(f"Producers failed: {errors}")
        if not all(found.is_good for found in findings):
            self._reporter.trouble("Records are missing or wrong: see the table.")
            return False
        self._reporter.step(
            f"[green]Nothing was lost[/green]: all {workload.acked:,} acknowledged records are "
            "there, once, unchanged, in order, at the offsets that were promised."
        )
        return not errors

    async def _repair(self, client: ClusterClient, victim: Victim, death: Death) -> None:
        """Reattach the repaired directory to its running broker and wait for replicas in sync."""
        # The broker was killed and restarted meanwhile.
        await self._cluster.wait_healthy(timeout_s=_REPAIR_TIMEOUT_S)
        began_s = time.monotonic()
        disk_death.restore_disk(victim.path, death)
        self._reporter.step(
            f"The disk is repaired: reattaching it to broker {victim.broker_id}, which runs on."
        )
        change = LogDirChange(
            operation="reattach", broker=victim.broker_id, target=str(victim.path)
        )
        done = await change_log_dir(client, change, timeout_ms=int(_REPAIR_TIMEOUT_S * 1000))
        self._reporter.note(done.message)
        await wait_in_sync(client, TOPIC, timeout_s=_REPAIR_TIMEOUT_S)
        self._reporter.note(
            f"all replicas are in sync again, {time.monotonic() - began_s:.1f} s later"
        )


def _figures(workload: Workload) -> dict[str, float]:
    seconds = max(0.001, workload.last_s - workload.first_s)
    return {
        "records": workload.acked,
        "seconds": round(seconds, 3),
        "records_per_s": round(workload.acked / seconds),
        "mb_per_s": round(workload.acked_bytes / seconds / 1e6, 2),
    }


def _errors(workload: Workload) -> str:
    return "; ".join(
        f"partition {load.partition}: {load.error}" for load in workload.loads if load.error
    )


if __name__ == "__main__":
    sys.exit(main())
