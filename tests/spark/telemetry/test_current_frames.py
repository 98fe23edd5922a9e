"""The present directories."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.testing import assertDataFrameEqual

from kraftjbod.spark.telemetry.current_frames import current_dirs
from tests.spark.samples import log_dir, log_dir_frame, origin


def test_current_dirs_are_the_last_samples_of_their_paths(spark: SparkSession) -> None:
    said = [
        (origin(0), log_dir("/replaced", directory_id="old")),
        (origin(60), log_dir("/replaced", directory_id="new")),
        (origin(0), log_dir("/given-up")),
        (origin(240), log_dir("/replaced", directory_id="new", replicas=7)),
        (origin(239), log_dir("/late", state="offline")),
        (origin(0, broker_id=2), log_dir("/of-a-dead-broker")),
    ]
    assertDataFrameEqual(
        current_dirs(log_dir_frame(spark, said), 60), log_dir_frame(spark, said[3:])
    )
