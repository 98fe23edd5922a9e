"""``python -m tests.bench.main``: measure, print a table, write ``run/bench.json``.

Each part starts its clusters and removes them; ``--only`` names the parts to run. All parts take
about an hour.
"""

from __future__ import annotations

import importlib
import json
import os
import platform
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import click

from tests.bench import disasters
from tests.bench.balance import drains, placement, planner
from tests.bench.broker import (
    group_telemetry_cost,
    groups,
    latency,
    memory,
    record_validation,
    telemetry_cost,
    throughput,
)
from tests.bench.controller import control_plane, failover, large_metadata
from tests.bench.figures import Report
from tests.bench.scale import idle, large_logs, restarts, truncation
from tests.bench.storage import compaction, impaired, moves, scrub


def _with_spark(module: str, part: str) -> Callable[[Report], None]:
    """Return a part that imports its module when it runs, because other parts need no Spark."""

    def run(report: Report) -> None:
        getattr(importlib.import_module(f"tests.bench.spark.{module}"), part)(report)

    return run


PARTS: Final[dict[str, Callable[[Report], None]]] = {
    "one-broker": throughput.one_broker,
    "three-brokers": throughput.three_brokers,
    "latency": latency.single_produces,
    "record-validation": record_validation.cost,
    "groups": groups.on_own_cluster,
    "memory": memory.per_item,
    "restart": disasters.restart,
    "dead-dir-1": disasters.one_dead_replica,
    "dead-dir-1000": partial(disasters.many_dead_replicas, replicas=1000),
    "dead-dir-4000": partial(disasters.many_dead_replicas, replicas=4000),
    "partitions-100000": control_plane.hundred_thousand,
    "failover": failover.killed,
    "failover-10000": partial(failover.many_partitions, partitions=10_000),
    "failover-100000": partial(failover.many_partitions, partitions=100_000),
    "metadata-100000": partial(large_metadata.measure, partitions=100_000),
    "metadata-1000000": partial(large_metadata.measure, partitions=1_000_000),
    "metadata-write": failover.metadata_write,
    "moves": moves.between_directories,
    "drains": drains.directory_and_broker,
    "placement": placement.heterogeneous_disks,
    "full-dir": partial(impaired.full_dir, replicas=6),
    "full-dir-1000": partial(impaired.full_dir, replicas=1000),
    "hung-dir": impaired.hung_dir,
    "scrub": scrub.cold_segments,
    "compaction": compaction.whole_log,
    "balance": planner.plans,
    "scale-restart": restarts.by_size,
    "scale-restart-replicas": restarts.by_replicas,
    "scale-list-offsets": large_logs.list_offsets,
    "scale-read": large_logs.read_from_the_beginning,
    "scale-delete": large_logs.delete_topic,
    "scale-truncate": truncation.one_record,
    "scale-replicas": idle.replicas,
    "scale-connections": idle.connections,
    "scale-idle": idle.clusters,
    "scale-directories": disasters.one_of_many_dirs,
    "spark-planner": _with_spark("spark_planner", "plans"),
    "telemetry": telemetry_cost.on_and_off,
    "group-telemetry": group_telemetry_cost.on_and_off,
    "spark-source": _with_spark("spark_source", "beside_the_connector"),
    "spark-sink": _with_spark("spark_sink", "sinks"),
    "spark-latency": _with_spark("spark_latency", "end_to_end"),
}


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(list(PARTS)), help="A part; repeatable.")
@click.option(
    "--kafka-libs",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Jars of an Apache Kafka, which the parts scale-... measure as well.",
)
@click.option("--out", default="run/bench.json", show_default=True, help="Where the JSON goes.")
def main(only: tuple[str, ...], kafka_libs: Path | None, out: str) -> None:
    # SIGTERM ends the bench by an exception, so that it removes its clusters.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    report = Report(kafka_libs=kafka_libs)
    failed = []
    started = time.time()
    for name in only or PARTS:
        click.echo(f"bench: {name} ...", err=True)
        began = time.monotonic()
        try:
            PARTS[name](report)
        except AssertionError as e:
            # A part that fails must not hide the figures of the others.
            failed.append(name)
            click.echo(f"bench: {name} failed: {e}", err=True)
        click.echo(f"bench: {name} took {time.monotonic() - began:.0f} s", err=True)
    report.print()
    document = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "machine": f"{os.cpu_count()} cores, {platform.platform()}",
        "python": f"{platform.python_version()} of {sys.base_prefix}",
        "failed": failed,
        "figures": report.as_json(),
    }
    path = Path(out)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    click.echo(f"bench: written to {path}", err=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
