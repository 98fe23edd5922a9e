"""Tables that are replaced during reads, and tables to which streams append."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.tables.schemas import LOG_DIR_WINDOWS, SKEW
from kraftjbod.spark.tables.stored_tables import (
    KEPT,
    OPEN_WINDOWS,
    WINDOWS,
    check_checkpoint,
    publish,
    read_folder,
    read_table,
)
from tests.spark.samples import at


def skew_of(spark: SparkSession, name: str) -> DataFrame:
    return spark.createDataFrame([("topic", name, 1, 2.0, 2, 2, 1.0)], SKEW)


def test_read_folder_returns_the_newest_complete_generation(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = str(tmp_path / "skew")
    assert read_folder(spark, table, SKEW) is None
    publish(skew_of(spark, "first"), table)
    at_that_moment = read_folder(spark, table, SKEW)
    publish(skew_of(spark, "second"), table)
    # The remains of a killed publisher.
    (tmp_path / "skew" / "generation=7" / "_temporary").mkdir(parents=True)
    table_now = read_table(spark, str(tmp_path), "skew", SKEW)
    assert table_now is not None
    assert at_that_moment is not None
    assertDataFrameEqual(table_now, skew_of(spark, "second"))
    assertDataFrameEqual(at_that_moment, skew_of(spark, "first"))


def test_publish_removes_old_generations(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(KEPT + 2):
        publish(skew_of(spark, f"t{number}"), str(tmp_path / "skew"))
    names = sorted(path.name for path in (tmp_path / "skew").iterdir())
    assert names == [f"generation={number}" for number in range(3, KEPT + 3)]


def test_table_without_rows_is_an_empty_table(spark: SparkSession, tmp_path: Path) -> None:
    publish(spark.createDataFrame([], SKEW), str(tmp_path / "skew"))
    table = read_table(spark, str(tmp_path), "skew", SKEW)
    assert table is not None
    assertDataFrameEqual(table, spark.createDataFrame([], SKEW))


def test_read_table_of_windows_includes_open_windows(spark: SparkSession, tmp_path: Path) -> None:
    """A window that was closed after the open ones were computed is listed once."""

    def windows(*minutes: int, samples: int) -> DataFrame:
        nothing = (None,) * (len(LOG_DIR_WINDOWS) - 3)
        rows = [(at(60 * m), at(60 * m + 60), *nothing, samples) for m in minutes]
        return spark.createDataFrame(rows, LOG_DIR_WINDOWS)

    def whole() -> DataFrame:
        table = read_table(spark, str(tmp_path), WINDOWS, LOG_DIR_WINDOWS)
        assert table is not None
        return table

    assert read_table(spark, str(tmp_path), WINDOWS, LOG_DIR_WINDOWS) is None
    publish(windows(0, 1, 2, samples=1), str(tmp_path / OPEN_WINDOWS))
    assertDataFrameEqual(whole(), windows(0, 1, 2, samples=1))
    windows(samples=6).write.parquet(str(tmp_path / WINDOWS))
    assertDataFrameEqual(whole(), windows(0, 1, 2, samples=1))
    windows(0, 1, samples=6).write.mode("append").parquet(str(tmp_path / WINDOWS))
    assertDataFrameEqual(whole(), windows(0, 1, samples=6).union(windows(2, samples=1)))


def test_check_checkpoint_refuses_checkpoint_of_another_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    source, table, checkpoint = (str(tmp_path / name) for name in ("in", "out", "checkpoint"))
    check_checkpoint(spark, table, checkpoint)
    skew_of(spark, "t").write.parquet(source)
    (
        spark.readStream.schema(SKEW)
        .parquet(source)
        .writeStream.option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(table)
        .awaitTermination()
    )
    check_checkpoint(spark, table, checkpoint)
    with pytest.raises(ConfigError, match="was written with another checkpoint"):
        check_checkpoint(spark, table, str(tmp_path / "fresh"))
    with pytest.raises(ConfigError, match="remembers batches that are not in"):
        check_checkpoint(spark, str(tmp_path / "elsewhere"), checkpoint)
