"""WIRE. Tables on their file system, of three kinds, and the one way to read any of them.

* A table that a streaming query appends to: Spark's file sink keeps a log in it
  (``_spark_metadata``), and readers see whole batches only.
* A table that is computed anew each time: a folder per generation, ``generation=N``. The newest
  that is complete is the table. A few older ones stay for whoever reads them at this moment, so a
  reader finds neither half a table nor none.
* A plain folder of Parquet files. One in which nothing was finished is no table.

Paths may be URIs of any file system that Spark knows.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.tables.local_tables import COMPLETE, GENERATION, KEPT, generations
from kraftjbod.spark.tables.schemas import LOG_DIR_WINDOWS
from kraftjbod.spark.tables.window_frames import all_windows

#: It is there while Spark writes to a folder.
_UNDER_WAY: Final = "_temporary"
_SINK_LOG: Final = "_spark_metadata"
#: Closed windows are appended; those that may still change are computed anew.
WINDOWS: Final = "log_dir_windows"
OPEN_WINDOWS: Final = "log_dir_windows_open"


class Folders:
    """Folders by path or URI, with Hadoop's own file systems."""

    def __init__(self, spark: SparkSession) -> None:
        assert spark._jvm is not None
        self._path = spark._jvm.org.apache.hadoop.fs.Path
        self._conf = spark._jsc.hadoopConfiguration()

    def exists(self, path: str) -> bool:
        return bool(self._on(path).exists(self._path(path)))

    def names(self, path: str) -> list[str]:
        """What lies directly in a folder; nothing if there is none."""
        if not self.exists(path):
            return []
        found = self._on(path).listStatus(self._path(path))
        return sorted(status.getPath().getName() for status in found)

    def delete(self, path: str) -> None:
        """A folder with all that is in it."""
        self._on(path).delete(self._path(path), True)

    def _on(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._conf)


def publish(frame: DataFrame, table: str) -> None:
    """Make ``frame``, which has a table's schema, the newest generation of ``table``."""
    folders = Folders(frame.sparkSession)
    numbers = _generations(folders, table)
    newest = max(numbers, default=0) + 1
    frame.write.parquet(_folder(table, newest))
    for number in numbers[: -(KEPT - 1)]:
        folders.delete(_folder(table, number))


def read_table(spark: SparkSession, tables: str, name: str, schema: StructType) -> DataFrame | None:
    """The table ``name`` in the folder ``tables``, or None where there is none.

    ``log_dir_windows`` comes with the windows that are still open.
    """
    table = read_folder(spark, f"{tables.rstrip('/')}/{name}", schema)
    if name != WINDOWS:
        return table
    opened = read_folder(spark, f"{tables.rstrip('/')}/{OPEN_WINDOWS}", LOG_DIR_WINDOWS)
    if table is None or opened is None:
        return table if opened is None else opened
    return all_windows(table, opened)


def check_checkpoint(spark: SparkSession, table: str, checkpoint: str) -> None:
    """A file sink's table and its query's checkpoint belong together.

    The sink numbers batches as its query does, and takes a number that it knows for done: with a
    fresh checkpoint it would leave out as many batches as there were, and say nothing.

    :raises ConfigError: if one of the two is without the other.
    """
    folders = Folders(spark)
    has_table = bool(folders.names(f"{table}/{_SINK_LOG}"))
    has_batches = bool(folders.names(f"{checkpoint}/commits"))
    if has_table and not folders.names(f"{checkpoint}/offsets"):
        raise ConfigError(
            f"{table} was written with another checkpoint than {checkpoint}, which is empty: give "
            "that one with --checkpoint, or other --tables, or delete the table and begin anew"
        )
    if has_batches and not has_table:
        raise ConfigError(
            f"checkpoint {checkpoint} remembers batches that are not in {table}: give the --tables "
            "that it was used with, or delete the checkpoint and begin anew"
        )


def read_folder(spark: SparkSession, table: str, schema: StructType) -> DataFrame | None:
    """What lies in one folder: the newest generation, or all of it; None if there is none."""
    folders = Folders(spark)
    names = folders.names(table)
    if not names or (_UNDER_WAY in names and COMPLETE not in names):
        return None
    numbers = _generations(folders, table)
    if numbers:
        newest = max(_complete(folders, table, numbers), default=None)
        if newest is None:
            return None
        table = _folder(table, newest)
    return spark.read.schema(schema).parquet(table)


def is_unfinished(spark: SparkSession, table: str) -> bool:
    """Whether whoever computed ``table`` last has not come to the end, or is still at it."""
    folders = Folders(spark)
    numbers = _generations(folders, table)
    return bool(numbers) and not _complete(folders, table, numbers[-1:])


def _complete(folders: Folders, table: str, numbers: list[int]) -> list[int]:
    return [n for n in numbers if folders.exists(f"{_folder(table, n)}/{COMPLETE}")]


def _generations(folders: Folders, table: str) -> list[int]:
    return generations(folders.names(table))


def _folder(table: str, generation: int) -> str:
    return f"{table}/{GENERATION}{generation}"
