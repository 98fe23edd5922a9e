"""Spark's official Kafka connector beside our source and sink, with its jars from Maven.

They are added to a running session, so one session has both formats: ``kafka`` and ``kraftjbod``.
Users set ``spark.jars.packages``; the jars and their effect are the same."""

from __future__ import annotations

from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

# The newest release on Maven; it works with the Spark of this project, older ones do not.
VERSION: Final = "4.2.0"
# Maven has no newer release of the part for delegation tokens.
TOKEN_VERSION: Final = "4.0.0"
_SCALA: Final = "2.13"
_CONNECTOR: Final = f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}"
_TOKENS: Final = f"org.apache.spark:spark-token-provider-kafka-0-10_{_SCALA}"
_JARS: Final = (
    f"ivy://{_TOKENS}:{TOKEN_VERSION}?transitive=false",
    f"ivy://{_CONNECTOR}:{VERSION}?exclude={_TOKENS}",
)
_TIMEOUT_MS: Final = 20_000


class ConnectorUnreachable(Exception):
    """Maven is unreachable; the message has the reason."""


def add_connector(spark: SparkSession) -> None:
    """Register the format ``kafka`` in ``spark``; repeated calls have no effect.

    :raises ConnectorUnreachable: if the jars are missing and Maven is unreachable."""
    try:
        for jar in _JARS:
            spark.sql(f"ADD JAR {jar}")
    except (PySparkException, Py4JJavaError) as e:
        reason = _why_unreachable(spark)
        if reason is None:
            raise
        raise ConnectorUnreachable(reason) from e


def _why_unreachable(spark: SparkSession) -> str | None:
    """Request Maven's first page as the resolver does; any answer counts as reachable."""
    jvm: Any = spark._jvm
    none, out = jvm.scala.Option.apply(None), jvm.java.lang.System.err
    settings = jvm.org.apache.spark.util.MavenUtils.buildIvySettings(none, none, False, out)
    resolvers = settings.getDefaultResolver().getResolvers()
    (root,) = [each.getRoot() for each in resolvers if each.getName() == "central"]
    connection = jvm.java.net.URL(root).openConnection()
    connection.setConnectTimeout(_TIMEOUT_MS)
    connection.setReadTimeout(_TIMEOUT_MS)
    try:
        connection.getResponseCode()
    except Py4JJavaError as e:
        return f"Maven cannot be reached: {e.java_exception.toString()}"
    return None
