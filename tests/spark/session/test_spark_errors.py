"""Real errors of Spark, and the line that is printed for each."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from py4j.clientserver import ClientServer, JavaParameters, PythonParameters
from pyspark.sql import SparkSession

from kraftjbod.core.errors import ConfigError
from kraftjbod.spark.session.spark_errors import SPARK_ERRORS, spark_reason


def fail_as_ours(batches: Iterator[Any]) -> Iterator[Any]:
    for _ in batches:
        raise ConfigError("topic t: no such partition\nsecond line")
    yield from ()


def fail_as_python(batches: Iterator[Any]) -> Iterator[Any]:
    for _ in batches:
        raise ZeroDivisionError("nothing to divide by")
    yield from ()


def stream(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    failing = rows.mapInArrow(fail_as_ours, "id long")
    query = failing.writeStream.format("noop").trigger(once=True).start()
    query.awaitTermination()


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (
            lambda spark: spark.range(1).mapInArrow(fail_as_ours, "id long").collect(),
            "topic t: no such partition",
        ),
        (
            lambda spark: spark.range(1).mapInArrow(fail_as_python, "id long").collect(),
            "ZeroDivisionError: nothing to divide by",
        ),
        (stream, "topic t: no such partition"),
        (
            lambda spark: spark.read.parquet("/nowhere/at/all"),
            "Path does not exist: file:/nowhere/at/all.",
        ),
        (
            lambda spark: spark.read.format("nix").load(),
            "Failed to find the data source: nix. Make sure the provider name is correct and the "
            "package is properly registered and compatible with your Spark version. "
            "(ClassNotFoundException: nix.DefaultSource)",
        ),
        (
            lambda spark: spark.range(1).select("nix"),
            "A column, variable, or function parameter with name `nix` cannot be resolved. "
            "Did you mean one of the following? [`id`].",
        ),
        (
            lambda spark: spark.sql("select cast('x' as int)").collect(),
            'The value \'x\' of the type "STRING" cannot be cast to "INT" because it is malformed. '
            "Correct the value as per the syntax, or change its target type. Use `try_cast` to "
            "tolerate malformed input and return NULL instead.",
        ),
    ],
)
def test_spark_reason_reduces_errors_to_one_line(
    spark: SparkSession, action: Callable[[SparkSession], object], reason: str
) -> None:
    with pytest.raises(SPARK_ERRORS) as caught:
        action(spark)
    assert spark_reason(caught.value) == reason


def test_spark_reason_of_failed_write_names_the_file(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SPARK_ERRORS) as caught:
        spark.range(1).write.parquet(f"file:{tmp_path}/file/table")
    assert f"{tmp_path}/file" in spark_reason(caught.value)
    assert "\n" not in spark_reason(caught.value)


def test_spark_reason_returns_our_errors_completely() -> None:
    assert spark_reason(ConfigError("[x] is\n no topic")) == "[x] is no topic"
    assert spark_reason(OSError()) == "OSError"


def test_spark_reason_of_refused_connection_to_java_reports_its_end() -> None:
    """Py4J tries once more and raises that error; other refused connections are no such report."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        address, port = bound.getsockname()
        java = ClientServer(JavaParameters(address=address, port=port), PythonParameters(port=0))
        try:
            with pytest.raises(ConnectionRefusedError) as caught:
                java.jvm.System.currentTimeMillis()
        finally:
            java.shutdown_callback_server()
        with pytest.raises(ConnectionRefusedError) as others:
            socket.create_connection((address, port))
    assert spark_reason(caught.value).startswith("Spark's Java process is gone")
    assert spark_reason(others.value) == "[Errno 111] Connection refused"
