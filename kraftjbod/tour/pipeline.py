"""WIRE. The second half of ``make run``: the data pipeline on the cluster of the first half.

The jobs are the ones that users run, in one Spark session (:class:`JobSession`), and return
JSON documents. The tour itself needs neither Spark nor Java: if the jobs cannot run, the tour
reports that, and the results of the first half remain valid. Independent steps run concurrently.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.clients.replica_admin import describe_log_dirs
from kraftjbod.core.errors import KraftJbodError
from kraftjbod.gameday.load.acknowledgements import Acknowledgements
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.cluster_report import shortened
from kraftjbod.tour import uneven_topic
from kraftjbod.tour.acknowledged import write_acknowledged
from kraftjbod.tour.job_session import JobFailedError, JobSession
from kraftjbod.tour.report import Reporter, write_json

_REASSIGN: Final = (sys.executable, "-m", "kraftjbod.cli.reassign_partitions_tool")
_TIMEOUT_S: Final = 300.0
_SHOWN_CHARS: Final = 2000

Asked = asyncio.Future[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The second half of the tour: Spark jobs over ``topic`` of the running ``cluster``.

    ``loads`` has the acknowledgements of the topic's records, with which the audit compares the
    topic.
    """

    cluster: ClusterProcesses
    reporter: Reporter
    topic: str
    loads: Sequence[Acknowledgements]
    jobs: JobSession

    @property
    def tables(self) -> Path:
        return self.cluster.run_dir / "tables"

    async def take(self) -> bool:
        """Run all jobs. Return False if Spark is not installed, a job failed, or the audit found a
        difference. Expected errors are printed and not raised.

        Tables of an earlier run are removed, and the answers of the jobs are written to
        ``pipeline.json`` of the cluster.
        """
        if not self.jobs.is_installed():
            self.reporter.trouble(
                "The pipeline is left out: Spark is not installed (`make spark`)."
            )
            return False
        shutil.rmtree(self.tables, ignore_errors=True)
        done: dict[str, Mapping[str, Any]] = {}
        try:
            async with asyncio.TaskGroup() as meanwhile:
                meanwhile.create_task(self._make_uneven())
                meanwhile.create_task(self._write_acknowledged())
                done["ingest"] = await self._ingest()
            audit = self._begin_audit()
            # The plan job queries the brokers while the audit runs.
            plan = self._begin_plan()
            done["audit"] = await self._audit(audit)
            done["plan"] = await self._even_out(plan)
            done["telemetry"] = await self._telemetry()
            done["report"] = await self._report()
        except* (KraftJbodError, OSError) as group:
            self.reporter.trouble(f"The pipeline stopped: {_first(group)}")
        finally:
            write_json(self.cluster.run_dir / "pipeline.json", done)
        return "report" in done and not done["audit"]["differences_that_count"]

    async def _make_uneven(self) -> None:
        self.reporter.step(
            f"Making the disks uneven: topic {uneven_topic.TOPIC} is on disk-1 of each broker."
        )
        async with ClusterClient(self.cluster.bootstrap_servers) as client:
            await client.retry(client.refresh_metadata)
            await uneven_topic.make_uneven_topic(client, self.cluster)

    async def _write_acknowledged(self) -> None:
        path, loads = self._acknowledged, self.loads
        await asyncio.to_thread(write_acknowledged, path, self.topic, loads)

    @property
    def _acknowledged(self) -> Path:
        return self.cluster.run_dir / "acknowledged.jsonl"

    async def _ingest(self) -> Mapping[str, Any]:
        self.reporter.step(f"Spark ingests topic {self.topic}, each record once.")
        done = await self._done(self._ask("ingest", "--topics", self.topic))
        self.reporter.note(f"{done['rows']:,} records in {shortened(Path(done['table']))}")
        return done

    def _begin_audit(self) -> Asked:
        self.reporter.step("Spark searches for everything that producers were acknowledged.")
        said = ("--acknowledged", str(self._acknowledged))
        return self._ask("audit", "--topics", self.topic, *said)

    async def _audit(self, asked: Asked) -> Mapping[str, Any]:
        done = await self._done(asked, accept=(0, 1))
        self.reporter.note(
            f"{done['acknowledged']:,} records acknowledged, [green]{done['missing']} missing[/]; "
            f"{done['batches']:,} batches of {done['replicas']} replicas compared, "
            f"{done['differences_that_count']} differences"
        )
        if done["differences_that_count"]:
            self.reporter.trouble(f"{done['differences']}: see {done['table']}")
        return done

    def _begin_plan(self) -> Asked:
        picture = self.cluster.run_dir / "plan.svg"
        return self._ask("plan", "--out", str(self._plan), "--picture", str(picture))

    @property
    def _plan(self) -> Path:
        return self.cluster.run_dir / "plan.json"

    async def _even_out(self, asked: Asked) -> Mapping[str, Any]:
        self.reporter.step("Spark plans moves that balance the disks.")
        done = await self._done(asked)
        before, after = done["before"]["skew"], done["after"]["skew"]
        self.reporter.note(
            f"{done['moves']} moves, {done['moved_bytes'] / 1e6:.1f} MB: the fullest disk holds "
            f"{before:.2f} times the mean, then {after:.2f} times"
        )
        self.reporter.step("kraftjbod-reassign-partitions carries the plan out.")
        for action in ("--execute", "--verify"):
            await self._run(
                (*_REASSIGN, "--bootstrap-server", self.cluster.bootstrap_servers),
                (action, "--reassignment-json-file", str(self._plan), "--progress"),
            )
        fullest = await self._fullest_over_mean()
        self.reporter.note(f"now it holds {fullest:.2f} times the mean")
        return {**done, "skew_now": fullest}

    async def _fullest_over_mean(self) -> float:
        """Return the bytes of replicas in the fullest directory, divided by the mean of all."""
        async with ClusterClient(self.cluster.bootstrap_servers) as client:
            metadata = await client.retry(client.refresh_metadata)
            sizes = [
                sum(replica.size_bytes for replica in log_dir.replicas)
                for broker_id in metadata.brokers
                for log_dir in await describe_log_dirs(client, broker_id)
            ]
        return max(sizes) * len(sizes) / sum(sizes)

    async def _telemetry(self) -> Mapping[str, Any]:
        self.reporter.step("Spark reads what the brokers reported of their disks meanwhile.")
        return await self._done(self._ask("telemetry", "--window", "5 seconds"))

    async def _report(self) -> Mapping[str, Any]:
        page = self.cluster.run_dir / "report.html"
        done = await self._done(self._ask("report", "--out", str(page), live=False))
        self.reporter.step(f"The report, for any browser: {shortened(page)}")
        return done

    def _ask(self, name: str, *options: str, live: bool = True) -> Asked:
        """Queue a job; ``live`` jobs get the addresses of the cluster."""
        common = ["--tables", str(self.tables)]
        if live:
            common += ["--bootstrap-server", self.cluster.bootstrap_servers]
        return self.jobs.ask(name, *common, *options)

    async def _done(self, asked: Asked, *, accept: Sequence[int] = (0,)) -> Mapping[str, Any]:
        """Return the summary of a job.

        :raises JobFailedError: the job failed, or took more than 5 minutes.
        """
        answer = await self.jobs.answer(asked, accept=accept)
        self.reporter.note(f"{answer['job']}: {answer['seconds']:.1f} s")
        summary: Mapping[str, Any] = answer["summary"]
        return summary

    async def _run(self, command: Sequence[str], options: Sequence[str]) -> None:
        """Run a tool to its end.

        :raises JobFailedError: the tool failed, or took more than 5 minutes.
        """
        process = await asyncio.create_subprocess_exec(
            *command, *options, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                out, err = await process.communicate()
        except TimeoutError as e:
            raise JobFailedError(f"not done in {_TIMEOUT_S:.0f} s: {shlex.join(options)}") from e
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode != 0:
            said = (err or out).decode(errors="replace").strip()[-_SHOWN_CHARS:]
            raise JobFailedError(f"exit code {process.returncode}: {said}")


def _first(group: BaseException) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
