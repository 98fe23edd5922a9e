"""A job that acts by its argument, for tests of the behaviour that all jobs share."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import click
import pyarrow as pa

from kraftjbod.core import errors
from kraftjbod.spark.session.job import Job, JobOutcome, job_command

_PLACE = "module string, python string, zone string"


def _place(batches: Iterator[Any]) -> Iterator[Any]:
    """Return the place of a Python worker: its Python, time zone, and the path of our modules."""
    for _ in batches:
        place = {"module": errors.__file__, "python": sys.executable, "zone": os.environ.get("TZ")}
        yield pa.RecordBatch.from_pylist([place])


def _fail(batches: Iterator[Any]) -> Iterator[Any]:
    for _ in batches:
        raise errors.ConfigError("the disk of topic-7 is gone")
    yield from ()


def _wait(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(600)
        yield batch


@click.argument("what")
def work(job: Job, what: str) -> JobOutcome:
    """Do WHAT."""
    spark = job.spark
    job.step(f"doing {what}")
    java: Any = spark.sparkContext._jvm
    match what:
        case "places":
            places = spark.range(0, 8, 1, 4).mapInArrow(_place, _PLACE).distinct().collect()
            return JobOutcome(
                summary={
                    "places": sorted((row.asDict() for row in places), key=str),
                    "master": spark.sparkContext.master,
                    "java": java.java.lang.System.getProperty("java.version"),
                }
            )
        case "find":
            return JobOutcome(summary={"found": 1}, lines=("found one",), exit_code=1)
        case "own-error":
            raise errors.ConfigError("no such topic: t")
        case "worker-error":
            spark.range(4).mapInArrow(_fail, "id long").collect()
        case "spark-error":
            spark.read.parquet("/nowhere/at/all").collect()
        case "dead-java":
            os.kill(java.java.lang.ProcessHandle.current().pid(), signal.SIGKILL)
            spark.range(4).collect()
        case "wait":
            spark.range(4).mapInArrow(_wait, "id long").collect()
        case "stream":
            query = spark.readStream.format("rate").load().writeStream.format("noop").start()
            query.awaitTermination()
    return JobOutcome(summary={})


command = job_command("probe", finding="something was found")(work)

if __name__ == "__main__":
    command()
