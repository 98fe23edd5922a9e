"""Spark's official Kafka connector beside our source and sink, its jars fetched from Maven.

They go into a running session, so that one session has both formats: ``kafka`` and ``kraftjbod``.
Users would say ``spark.jars.packages``; the jars and what they do are the same.
"""

from __future__ import annotations

from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

#: The newest release that Maven has; it works with the Spark of this project, older ones do not.
VERSION: Final = "4.2.0"
#: Of the part for delegation tokens Maven has no newer release than this.
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
    """Maven cannot be reached from here; the message says how the attempt to connect failed."""


def add_connector(spark: SparkSession) -> None:
    """Let ``spark`` know the format ``kafka``; more than once does no harm.

    :raises ConnectorUnreachable: if the jars are not here and Maven cannot be connected to.
    """
    try:
        for jar in _JARS:
            spark.sql(f"ADD JAR {jar}")
    except (PySparkException, Py4JJavaError) as e:
        reason = _why_unreachable(spark)
        if reason is None:
            raise
        raise ConnectorUnreachable(reason) from e


def _why_unreachable(spark: SparkSession) -> str | None:
    """Asks for Maven's first page as the resolver would; any answer counts as reached."""
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
