"""The second half of ``make run``: the data pipeline on the cluster of the first half.

Each job runs as a user would run it, as a process of its own, and answers with a JSON document.
The tour needs neither Spark nor Java itself: where the jobs cannot run, that is told, and what the
first half proved stands.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kraftjbod.cli.cluster_client import ClusterClient
from kraftjbod.cli.replica_admin import describe_log_dirs
from kraftjbod.core.errors import OperatingError
from kraftjbod.local.cluster_process import ClusterProcesses
from kraftjbod.local.cluster_report import shortened
from kraftjbod.tour import uneven_topic
from kraftjbod.tour.acknowledged import write_acknowledged
from kraftjbod.tour.report import Reporter, write_json
from kraftjbod.tour.workload import Workload

_JOB: Final = (sys.executable, "-m", "kraftjbod.spark.pipeline_tool")
_REASSIGN: Final = (sys.executable, "-m", "kraftjbod.cli.reassign_partitions_tool")
_TIMEOUT_S: Final = 300.0
_TOLD_CHARS: Final = 2000


class JobFailedError(OperatingError):
    """A job or tool ended with another exit code than 0; the message holds its last words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Jobs over ``topic``, whose acknowledgements ``workload`` remembers."""

    cluster: ClusterProcesses
    reporter: Reporter
    topic: str
    workload: Workload

    @property
    def tables(self) -> Path:
        return self.cluster.run_dir / "tables"

    async def take(self) -> bool:
        """Whether every job did what it should and found nothing missing."""
        if importlib.util.find_spec("pyspark") is None:
            self.reporter.trouble(
                "The pipeline is left out: Spark is not installed (`make spark`)."
            )
            return False
        shutil.rmtree(self.tables, ignore_errors=True)
        told: dict[str, Mapping[str, Any]] = {}
        try:
            await self._make_uneven()
            told["ingest"] = await self._ingest()
            told["audit"] = await self._audit()
            told["plan"] = await self._even_out()
            told["telemetry"] = await self._telemetry()
            told["report"] = await self._report()
        except OperatingError as e:
            self.reporter.trouble(f"The pipeline stopped: {e}")
            return False
        finally:
            write_json(self.cluster.run_dir / "pipeline.json", told)
        return not told["audit"]["differences_that_count"]

    async def _make_uneven(self) -> None:
        self.reporter.step(
            f"Making the disks uneven: topic {uneven_topic.TOPIC} lies on disk-1 of each broker."
        )
        async with ClusterClient(self.cluster.bootstrap_servers) as client:
            await client.retry(client.refresh_metadata)
            await uneven_topic.make_uneven_topic(client, self.cluster)

    async def _ingest(self) -> Mapping[str, Any]:
        self.reporter.step(f"Spark takes topic {self.topic} in, each record once.")
        told = await self._job("ingest", "--topics", self.topic)
        self.reporter.note(f"{told['rows']:,} records in {shortened(Path(told['table']))}")
        return told

    async def _audit(self) -> Mapping[str, Any]:
        self.reporter.step("Spark looks for everything that producers were acknowledged.")
        said = self.cluster.run_dir / "acknowledged.jsonl"
        await asyncio.to_thread(write_acknowledged, said, self.topic, self.workload.loads)
        told = await self._job(
            "audit", "--topics", self.topic, "--acknowledged", str(said), accept=(0, 1)
        )
        self.reporter.note(
            f"{told['acknowledged']:,} records acknowledged, [green]{told['missing']} missing[/]; "
            f"{told['batches']:,} batches of {told['replicas']} replicas compared, "
            f"{told['differences_that_count']} differences"
        )
        if told["differences_that_count"]:
            self.reporter.trouble(f"{told['differences']}: see {told['table']}")
        return told

    async def _even_out(self) -> Mapping[str, Any]:
        self.reporter.step("Spark plans how to even the disks out.")
        plan, picture = self.cluster.run_dir / "plan.json", self.cluster.run_dir / "plan.svg"
        told = await self._job("plan", "--out", str(plan), "--picture", str(picture))
        before, after = told["before"]["skew"], told["after"]["skew"]
        self.reporter.note(
            f"{told['moves']} moves, {told['moved_bytes'] / 1e6:.1f} MB: the fullest disk holds "
            f"{before:.2f} times the mean, then {after:.2f} times"
        )
        self.reporter.step("kraftjbod-reassign-partitions carries the plan out.")
        for action in ("--execute", "--verify"):
            await self._run(
                (*_REASSIGN, "--bootstrap-server", self.cluster.bootstrap_servers),
                (action, "--reassignment-json-file", str(plan), "--progress"),
            )
        fullest = await self._fullest_over_mean()
        self.reporter.note(f"now it holds {fullest:.2f} times the mean")
        return {**told, "skew_now": fullest}

    async def _fullest_over_mean(self) -> float:
        """Bytes of replicas in the fullest directory of the cluster, over the mean of them all."""
        async with ClusterClient(self.cluster.bootstrap_servers) as client:
            metadata = await client.retry(client.refresh_metadata)
            sizes = [
                sum(replica.size_bytes for replica in log_dir.replicas)
                for broker_id in metadata.brokers
                for log_dir in await describe_log_dirs(client, broker_id)
            ]
        return max(sizes) * len(sizes) / sum(sizes)

    async def _telemetry(self) -> Mapping[str, Any]:
        self.reporter.step("Spark reads what the brokers told of their disks meanwhile.")
        return await self._job("telemetry", "--window", "5 seconds")

    async def _report(self) -> Mapping[str, Any]:
        page = self.cluster.run_dir / "report.html"
        told = await self._job("report", "--out", str(page), live=False)
        self.reporter.step(f"The report, for any browser: {shortened(page)}")
        return told

    async def _job(
        self, name: str, *options: str, live: bool = True, accept: Sequence[int] = (0,)
    ) -> Mapping[str, Any]:
        """What a job answers. ``live`` jobs ask the cluster."""
        common = ["--tables", str(self.tables), "--json"]
        if live:
            common += ["--bootstrap-server", self.cluster.bootstrap_servers]
        began_s = time.monotonic()
        answer = await self._run((*_JOB, name), (*common, *options), accept=accept)
        self.reporter.note(f"{name}: {time.monotonic() - began_s:.1f} s")
        told: Mapping[str, Any] = json.loads(answer)
        return told

    async def _run(
        self, command: Sequence[str], options: Sequence[str], *, accept: Sequence[int] = (0,)
    ) -> str:
        """Standard output of a process.

        :raises JobFailedError: with what it said, if it fails or takes minutes.
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
        if process.returncode not in accept:
            said = (err or out).decode(errors="replace").strip()[-_TOLD_CHARS:]
            raise JobFailedError(f"exit code {process.returncode}: {said}")
        return out.decode()
