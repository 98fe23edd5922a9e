"""WIRE. ``kraftjbod-pipeline telemetry``: reports of brokers about disks and groups, as tables.

Five streaming queries read ``__storage_telemetry``, and ``__group_telemetry`` if it exists at the
start. Each has its own checkpoint below ``--checkpoint`` and a file sink, so each record is in
their tables once, even if the job is killed:

* ``log_dir_samples``, ``replica_samples``, ``group_lag`` and ``telemetry_rejects`` contain every
  record, in one of the four.
* ``log_dir_windows`` has the closed windows, whose end is before the watermark: the newest sample's
  time less ``--watermark``. A later sample is in its samples table but in no window. The same holds
  for a sample from the future, of a broker with a wrong clock, which would close all windows.

The other tables are recomputed from these, at the end of an ``--available-now`` run and every
``--every`` of a continuous one: ``log_dir_windows_open`` (the windows after the closed ones, so
that both together cover all samples), ``log_dir_forecasts``, ``log_dir_outliers``, ``growth`` and
``skew``. ``stored_tables.read_table`` can read them at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import click
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from kraftjbod.core.errors import ConfigError
from kraftjbod.protocol.telemetry import group_telemetry
from kraftjbod.protocol.telemetry.storage_telemetry import TOPIC
from kraftjbod.spark.connector.durations import duration_s
from kraftjbod.spark.connector.offset_lookup import OffsetLookup
from kraftjbod.spark.connector.options import parse_source_options
from kraftjbod.spark.session.job import Job, JobOutcome, job_command, streaming_options
from kraftjbod.spark.tables.schemas import LOG_DIR_SAMPLES, LOG_DIR_WINDOWS, REPLICA_SAMPLES
from kraftjbod.spark.tables.stored_tables import (
    OPEN_WINDOWS,
    WINDOWS,
    check_checkpoint,
    publish,
    read_folder,
    read_table,
)
from kraftjbod.spark.tables.window_frames import log_dir_windows, open_windows
from kraftjbod.spark.telemetry import telemetry_frames
from kraftjbod.spark.telemetry.forecast_frames import log_dir_forecasts
from kraftjbod.spark.telemetry.growth_frames import growth, skew
from kraftjbod.spark.telemetry.outlier_frames import log_dir_outliers
from kraftjbod.spark.telemetry.telemetry_summary import lines, summarize

_POLL_S: Final = 1
_START_S: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Spans:
    """The durations that the options of the telemetry job set, in seconds.

    ``window_s`` is the length of a window, ``watermark_s`` the wait for late samples, ``history_s``
    the time that forecasts use, and ``horizon_s`` the length of forecasts.
    """

    window_s: int
    watermark_s: int
    history_s: int
    horizon_s: int


@job_command("telemetry")
@click.option("--window", default="1 minute", show_default=True, help="Length of a window.")
@click.option(
    "--watermark",
    default="2 minutes",
    show_default=True,
    help="Time that windows wait for late samples.",
)
@click.option(
    "--history",
    default="7 days",
    show_default=True,
    help="Time before the newest sample that forecasts, findings and growth use.",
)
@click.option(
    "--horizon",
    default="365 days",
    show_default=True,
    help="Length of forecasts; a directory that would be full later counts as never full.",
)
@click.option(
    "--every",
    default="1 minute",
    show_default=True,
    help="With --continuous: time between two computations of the other tables.",
)
@streaming_options
def command(
    job: Job,
    *,
    bootstrap_server: str,
    window: str,
    watermark: str,
    history: str,
    horizon: str,
    every: str,
    allow_data_loss: bool,
    kafka: Mapping[str, str],
    checkpoint: str | None,
    available_now: bool,
    trigger: str,
) -> JobOutcome:
    """Write usage, rates, forecasts and findings of directories, and group lag to tables.

    Reads the topics __storage_telemetry and __group_telemetry, which brokers write. Times are UTC.
    """
    spans = Spans(
        window_s=duration_s(window, "--window"),
        watermark_s=duration_s(watermark, "--watermark"),
        history_s=duration_s(history, "--history"),
        horizon_s=duration_s(horizon, "--horizon"),
    )
    every_s = duration_s(every, "--every")
    _check_windows(job, spans)
    options = {
        **kafka,
        "kafka.bootstrap.servers": bootstrap_server,
        "failOnDataLoss": str(not allow_data_loss).lower(),
    }
    streams = _streams(job, options, spans)
    folder = (checkpoint or job.table("_checkpoints/telemetry")).rstrip("/")
    for name in streams:
        check_checkpoint(job.spark, job.table(name), f"{folder}/{name}")
    job.step(f"{TOPIC} to {job.tables}")
    if available_now:
        for name, stream in streams.items():
            # Sequentially: each query starts Python processes, which takes some time.
            _writer(job, name, stream, folder).trigger(availableNow=True).start().awaitTermination()
        _compute(job, spans)
    else:
        writers = [_writer(job, name, stream, folder) for name, stream in streams.items()]
        _run_continuously(
            job, [writer.trigger(processingTime=trigger) for writer in writers], spans, every_s
        )
    summary = summarize(job.spark, job.tables)
    return JobOutcome(summary=summary, lines=tuple(lines(summary)))


def _streams(job: Job, options: Mapping[str, str], spans: Spans) -> dict[str, DataFrame]:
    """Return the streaming frames by the name of the table to which each is appended."""

    def read(*topics: str) -> DataFrame:
        reader = job.spark.readStream.format("kraftjbod").options(**options)
        reader = reader.option("startingOffsets", "earliest")
        return reader.option("subscribe", ",".join(topics)).load()

    records = of_all = read(TOPIC)
    dirs = telemetry_frames.log_dir_samples(records)
    in_time = telemetry_frames.not_from_the_future(dirs, spans.watermark_s)
    watermarked = in_time.withWatermark("time", f"{spans.watermark_s} seconds")
    streams = {
        # First, so that no window covers a sample that is not in its table.
        WINDOWS: log_dir_windows(watermarked, spans.window_s),
        "log_dir_samples": dirs,
        "replica_samples": telemetry_frames.replica_samples(records),
    }
    if _is_there(group_telemetry.TOPIC, options):
        of_all = read(TOPIC, group_telemetry.TOPIC)
        streams["group_lag"] = telemetry_frames.group_lag(read(group_telemetry.TOPIC))
    return {**streams, "telemetry_rejects": telemetry_frames.rejects(of_all)}


def _is_there(topic: str, options: Mapping[str, str]) -> bool:
    """Return whether ``topic`` exists. A cluster without groups has no ``__group_telemetry``."""
    asked = {**options, "subscribe": topic, "fetchOffset.numRetries": "1"}
    lookup = OffsetLookup(parse_source_options(asked, is_streaming=True))
    return bool(lookup.assigned(must_exist=False).partitions)


def _writer(job: Job, name: str, stream: DataFrame, folder: str) -> DataStreamWriter:
    return (
        stream.writeStream.format("parquet")
        .queryName(f"telemetry {name}")
        .option("path", job.table(name))
        .option("checkpointLocation", f"{folder}/{name}")
    )


def _run_continuously(
    job: Job, writers: Sequence[DataStreamWriter], spans: Spans, every_s: int
) -> None:
    """Recompute the other tables every ``every_s`` seconds until a query fails or the job is
    stopped.

    :raises StreamingQueryException: the error of the first query that failed.
    """
    queries: list[StreamingQuery] = []
    try:
        for writer in writers:
            queries.append(writer.start())
            _await_start(queries[-1])
        while True:
            _compute(job, spans)
            due_s = time.monotonic() + every_s
            while time.monotonic() < due_s:
                # True means that a query ended without an error; an error would be raised.
                if any(query.awaitTermination(_POLL_S) for query in queries):
                    return
    finally:
        for query in queries:
            query.stop()


def _await_start(query: StreamingQuery) -> None:
    """Wait for the first batch or a failure, for a limited time, as there may be no data."""
    deadline_s = time.monotonic() + _START_S
    while query.isActive and query.lastProgress is None and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def _compute(job: Job, spans: Spans) -> None:
    """Recompute the tables that are derived from the appended ones."""
    dirs = _recent(job, "log_dir_samples", LOG_DIR_SAMPLES, spans)
    replicas = _recent(job, "replica_samples", REPLICA_SAMPLES, spans)
    if dirs is None or replicas is None:
        return
    dirs, replicas = dirs.persist(), replicas.persist()
    try:
        closed = read_folder(job.spark, job.table(WINDOWS), LOG_DIR_WINDOWS)
        nothing = job.spark.createDataFrame([], LOG_DIR_WINDOWS)
        opened = open_windows(dirs, nothing if closed is None else closed, spans.window_s)
        publish(opened, job.table(OPEN_WINDOWS))
        windows = read_table(job.spark, job.tables, WINDOWS, LOG_DIR_WINDOWS)
        assert windows is not None
        computed = {
            "log_dir_forecasts": log_dir_forecasts(dirs, spans.horizon_s),
            "log_dir_outliers": log_dir_outliers(dirs, windows, spans.window_s),
            "growth": growth(dirs, replicas, spans.window_s),
            "skew": skew(dirs, replicas, spans.window_s),
        }
        for name, frame in computed.items():
            publish(frame, job.table(name))
    finally:
        dirs.unpersist()
        replicas.unpersist()


def _recent(job: Job, name: str, schema: StructType, spans: Spans) -> DataFrame | None:
    """Return the samples within the history; None if the table does not exist yet."""
    samples = read_table(job.spark, job.tables, name, schema)
    if samples is None:
        return None
    known = telemetry_frames.not_from_the_future(samples, spans.watermark_s)
    [[newest_s]] = known.agg(F.max("time").cast("double")).collect()
    since_s = 0 if newest_s is None else newest_s - spans.history_s
    return known.where(F.col("time") >= F.timestamp_seconds(F.lit(since_s)))


def _check_windows(job: Job, spans: Spans) -> None:
    """Check that the existing windows have the length ``spans.window_s``.

    :raises ConfigError: they have another length.
    """
    closed = read_folder(job.spark, job.table(WINDOWS), LOG_DIR_WINDOWS)
    if closed is None:
        return
    length = F.col("window_end").cast("double") - F.col("window_start").cast("double")
    for [seconds] in closed.select(length).limit(1).collect():
        if seconds != spans.window_s:
            raise ConfigError(
                f"--window of {spans.window_s} s: {job.table(WINDOWS)} holds windows of "
                f"{seconds:.0f} s; give that length, or other --tables"
            )
