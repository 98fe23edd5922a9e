"""WIRE. Reads and writes tables of three kinds on any file system that Spark supports.

* Tables that a streaming query appends to: Spark's file sink keeps a log in the folder
  (``_spark_metadata``), so that readers see complete batches only.
* Tables that are recomputed: one folder per generation, ``generation=N``. The newest complete
  generation is the table. A few older ones are kept for concurrent readers.
* Plain folders of Parquet files. An unfinished folder is not a table.

Paths may be URIs.
"""

from __future__ import annotations

from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.tables.local_tables import COMPLETE, GENERATION, KEPT, generations
from kraftjbod.spark.tables.schemas import LOG_DIR_WINDOWS
from kraftjbod.spark.tables.window_frames import all_windows

#: Exists while Spark writes to a folder.
_UNDER_WAY: Final = "_temporary"
_SINK_LOG: Final = "_spark_metadata"
#: Closed windows are appended. Open windows are in another table, which is recomputed.
WINDOWS: Final = "log_dir_windows"
OPEN_WINDOWS: Final = "log_dir_windows_open"


class Folders:
    """Lists and deletes folders by path or URI, with Hadoop's file systems."""

    def __init__(self, spark: SparkSession) -> None:
        assert spark._jvm is not None
        self._path = spark._jvm.org.apache.hadoop.fs.Path
        self._conf = spark._jsc.hadoopConfiguration()

    def exists(self, path: str) -> bool:
        return bool(self._on(path).exists(self._path(path)))

    def names(self, path: str) -> list[str]:
        """Return the names directly in a folder; empty if the folder does not exist."""
        if not self.exists(path):
            return []
        found = self._on(path).listStatus(self._path(path))
        return sorted(status.getPath().getName() for status in found)

    def delete(self, path: str) -> None:
        """Delete a folder with its content. No effect if it does not exist."""
        self._on(path).delete(self._path(path), True)

    def _on(self, path: str) -> Any:
        return self._path(path).getFileSystem(self._conf)


def publish(frame: DataFrame, table: str) -> None:
    """Write ``frame`` as the newest generation of ``table``; keep the newest ``KEPT`` generations.

    Older generations are deleted. Readers of a kept generation are not disturbed.

    :param frame: a frame with the schema of the table.
    :param table: path or URI of the table.
    """
    folders = Folders(frame.sparkSession)
    numbers = _generations(folders, table)
    newest = max(numbers, default=0) + 1
    frame.write.parquet(_folder(table, newest))
    for number in numbers[: -(KEPT - 1)]:
        folders.delete(_folder(table, number))


def read_table(spark: SparkSession, tables: str, name: str, schema: StructType) -> DataFrame | None:
    """Return the table ``name`` in the folder ``tables``; None if it has no complete data.

    ``log_dir_windows`` includes the windows that are still open.
    """
    table = read_folder(spark, f"{tables.rstrip('/')}/{name}", schema)
    if name != WINDOWS:
        return table
    opened = read_folder(spark, f"{tables.rstrip('/')}/{OPEN_WINDOWS}", LOG_DIR_WINDOWS)
    if table is None or opened is None:
        return table if opened is None else opened
    return all_windows(table, opened)


def check_checkpoint(spark: SparkSession, table: str, checkpoint: str) -> None:
    """Check that a file sink's table and its query's checkpoint belong together.

    The sink skips batch numbers that it has already written. With a new checkpoint it would
    silently drop as many batches as the table has.

    :raises ConfigError: one of the two exists without the other.
    """
    folders = Folders(spark)
    has_table = bool(folders.names(f"{table}/{_SINK_LOG}"))
    has_batches = bool(folders.names(f"{checkpoint}/commits"))
    if has_table and not folders.names(f"{checkpoint}/offsets"):
        raise ConfigError(
            f"{table} was written with another checkpoint than {checkpoint}, which is empty: give "
            "that one with --checkpoint, or other --tables, or delete the table and restart"
        )
    if has_batches and not has_table:
        raise ConfigError(
            f"checkpoint {checkpoint} remembers batches that are not in {table}: give the --tables "
            "that it was used with, or delete the checkpoint and restart"
        )


def read_folder(spark: SparkSession, table: str, schema: StructType) -> DataFrame | None:
    """Return a folder or its newest complete generation as a frame; None without complete data."""
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
    """Return whether the last computation of ``table`` was interrupted or is still running.

    Only for tables whose generations are numbered. False if there is no generation.
    """
    folders = Folders(spark)
    numbers = _generations(folders, table)
    return bool(numbers) and not _complete(folders, table, numbers[-1:])


def _complete(folders: Folders, table: str, numbers: list[int]) -> list[int]:
    return [n for n in numbers if folders.exists(f"{_folder(table, n)}/{COMPLETE}")]


def _generations(folders: Folders, table: str) -> list[int]:
    return generations(folders.names(table))


def _folder(table: str, generation: int) -> str:
    return f"{table}/{GENERATION}{generation}"
