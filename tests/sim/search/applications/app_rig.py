"""A small cluster with one application, and the findings of its run."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.testing.simulation.simulated_cluster import SimulatedCluster
from tests.sim.search.applications.application import (
    Application,
    Surroundings,
)
from tests.sim.search.seed_run import CONFIG


@dataclass
class Rig:
    cluster: SimulatedCluster
    findings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def around(self) -> Surroundings:
        host = self.cluster.client("client")
        return Surroundings(
            lambda name: host.new_kafka(client_id=name, request_timeout_ms=4_000),
            now_ms=lambda: self.cluster.now_ms,
            found=self.findings.append,
            note=self.notes.append,
        )

    async def make(self, name: str, partitions: int) -> None:
        kafka = self.cluster.client("client").kafka
        await create_topic(kafka, name, partitions=partitions, replication_factor=3)
        await asyncio.sleep(1)

    def play(self, application: Application, meanwhile: Callable[[], Awaitable[None]]) -> None:
        """Run the application from its start to its judgement; ``findings`` has the violations."""

        async def play() -> None:
            for name, partitions in application.topics.items():
                await self.make(name, partitions)
            application.start()
            await meanwhile()
            began_ms = self.cluster.now_ms
            while application.silent_since(began_ms):
                await asyncio.sleep(0.1)
            await application.stop()
            while application.unsettled():
                await asyncio.sleep(0.1)
            self.findings += await application.judge()
            await application.close()

        self.cluster.client("client").run(play(), timeout_ms=60_000)


@contextlib.contextmanager
def rig(seed: int = 4) -> Iterator[Rig]:
    with SimulatedCluster(seed, log_dirs=1, config=CONFIG) as cluster:
        cluster.start()
        yield Rig(cluster)
