"""``python -m tests.bench.controller.kafka_failover --libs DIR``: measures failover.py with Kafka.

Three controllers and three brokers of Apache Kafka run as six processes on this machine, with the
defaults of their release and the topic, load and client of ``python -m tests.bench.main --only
failover``. ``DIR`` is the folder ``libs`` of a Kafka distribution.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import click

from kraftjbod.cli.clients.cluster_admin import create_topic
from kraftjbod.cli.clients.cluster_client import ClusterClient
from kraftjbod.cli.quorum.quorum_admin import describe_quorum
from kraftjbod.core.errors import OperatingError
from kraftjbod.gameday.faults.cluster_watch import wait_in_sync
from tests.bench.controller.failover import PARTITIONS, TOPIC, measure_kill
from tests.bench.figures import Report
from tests.bench.kafka_process import KafkaProcess, kafka_nodes

_CONTROLLERS: Final = (100, 101, 102)
_BROKERS: Final = (1, 2, 3)
_START_S: Final = 180.0
_POLL_S: Final = 0.01


@click.command(help=__doc__)
@click.option(
    "--libs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Directory with Kafka's jars.",
)
def main(libs: Path) -> None:
    report = Report()
    with kafka_nodes(libs, controllers=_CONTROLLERS, brokers=_BROKERS) as nodes:
        bootstrap = ",".join(nodes[broker].address for broker in _BROKERS)
        asyncio.run(_kill_each(report, nodes, bootstrap))
    report.print()


async def _kill_each(report: Report, nodes: Mapping[int, KafkaProcess], bootstrap: str) -> None:
    async with ClusterClient(bootstrap) as client:
        await _serving(client)
        configs = {"min.insync.replicas": "2"}
        await create_topic(
            client, TOPIC, partitions=PARTITIONS, replication_factor=3, configs=configs
        )
        await wait_in_sync(client, TOPIC, timeout_s=_START_S)
        for what, is_controller, broker in (
            ("Kafka's active controller", True, None),
            ("a broker of Kafka's", False, 1),
            ("both of Kafka's at once", True, 2),
        ):
            victims = [] if broker is None else [nodes[broker]]
            activated = None
            if is_controller:
                active = (await client.retry(partial(describe_quorum, client))).leader_id
                victims.append(nodes[active])
                left = [address for n, address in _brokers_of(client) if n != broker]
                activated = partial(_activated, ",".join(left), active)
            await measure_kill(report, bootstrap, what, victims, activated)
            await _serving(client)
            await wait_in_sync(client, TOPIC, timeout_s=_START_S)


def _brokers_of(client: ClusterClient) -> list[tuple[int, str]]:
    return [(n, f"{one.host}:{one.port}") for n, one in client.metadata.brokers.items()]


async def _activated(bootstrap: str, died: int, died_wall_s: float) -> float:
    """Return the seconds until the remaining brokers report another leader of the quorum."""
    async with ClusterClient(bootstrap, request_timeout_ms=1_000) as client:
        while time.time() - died_wall_s < _START_S:
            try:
                if (await describe_quorum(client)).leader_id not in (died, -1):
                    return time.time() - died_wall_s
            except OperatingError:
                pass
            await asyncio.sleep(_POLL_S)
    raise AssertionError(f"no other controller within {_START_S:.0f} s")


async def _serving(client: ClusterClient) -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        try:
            if set(_BROKERS) <= set((await client.refresh_metadata()).brokers):
                return
        except OperatingError:
            pass
        await asyncio.sleep(0.2)
    raise AssertionError(f"Kafka's brokers did not serve within {_START_S:.0f} s")


if __name__ == "__main__":
    main()
