"""A separate Java process for one part of the bench, unaffected by earlier parts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql import SparkSession

from kraftjbod.spark import spark_session

_END_S: Final = 30


@contextmanager
def own_java(
    memory: str, *, master: str | None = None, shuffle_partitions: int | None = None
) -> Iterator[SparkSession]:
    """A session in a Java process that ends with it."""
    conf = {"spark.driver.memory": memory}
    if shuffle_partitions is not None:
        conf["spark.sql.shuffle.partitions"] = str(shuffle_partitions)
    spark = spark_session("bench", master=master, conf=conf)
    try:
        yield spark
    finally:
        spark.stop()
        context: Any = SparkContext
        gateway, context._gateway, context._jvm = context._gateway, None, None
        gateway.shutdown()
        # Java ends when its standard input is closed.
        gateway.proc.stdin.close()
        gateway.proc.wait(_END_S)
