"""Tables written without Spark are readable by Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from kraftjbod.spark.plan.plan_files import DIR_COLUMNS, MOVE_COLUMNS
from kraftjbod.spark.tables.local_tables import KEPT, local_folder, publish_rows
from kraftjbod.spark.tables.schemas import PLAN_DIRS, PLAN_MOVES
from kraftjbod.spark.tables.stored_tables import publish, read_table


@pytest.mark.parametrize(
    ("tables", "folder"),
    [
        ("run/tables", Path("run/tables")),
        ("/srv/a b", Path("/srv/a b")),
        ("file:///srv/a%20b", Path("/srv/a b")),
        ("hdfs://name/tables", None),
        ("s3a://bucket/tables", None),
    ],
)
def test_local_folder_accepts_only_local_paths(tables: str, folder: Path | None) -> None:
    assert local_folder(tables) == folder


def test_local_columns_equal_the_schemas() -> None:
    for columns, schema in ((DIR_COLUMNS, PLAN_DIRS), (MOVE_COLUMNS, PLAN_MOVES)):
        arrow = {field.name: str(field.type) for field in to_arrow_schema(schema)}
        assert {name: kind.replace("float64", "double") for name, kind in columns.items()} == arrow


def test_table_generations_written_with_and_without_spark_replace_each_other(
    spark: SparkSession, tmp_path: Path
) -> None:
    table = tmp_path / "plan_moves"
    row = ("t", 0, 1, "/a", 2, "/b", 10, 0.5)
    for size in range(KEPT + 1):
        publish_rows([(*row[:6], size, 0.5)], MOVE_COLUMNS, table)
    read = read_table(spark, str(tmp_path), "plan_moves", PLAN_MOVES)
    assert read is not None and [tuple(one) for one in read.collect()] == [(*row[:6], KEPT, 0.5)]
    publish(spark.createDataFrame([row], PLAN_MOVES), str(table))
    publish_rows([], MOVE_COLUMNS, table)
    assert len(list(table.iterdir())) == KEPT
    (table / f"generation={KEPT + 3}" / "_SUCCESS").unlink()
    read = read_table(spark, str(tmp_path), "plan_moves", PLAN_MOVES)
    assert read is not None and [tuple(one) for one in read.collect()] == [row], "half written"
