"""WIRE. Creates every Spark session: finds Java, sets UTC and quiet logs, registers the source.

Three ways to start:

* ``local[N]``: in this process and one Java process, on the loopback address.
* A cluster by its master's URL: executors get this package as a zip, and need its dependencies.
* ``spark-submit``: Spark started this process; its options and master apply.

An existing session of this process is used as it is; the source is registered in it.
"""

from __future__ import annotations

import functools
import logging
import os
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from kraftjbod.core.errors import StartupError
from kraftjbod.spark.connector.source import register
from kraftjbod.spark.session.java import find_java, launcher_home
from kraftjbod.spark.session.shipped_package import package_zip
from kraftjbod.spark.session.spark_errors import SPARK_ERRORS, spark_reason

DEFAULT_MASTER: Final = "local[*]"
#: Options for a Java process that runs for minutes only. The second compiler would not pay off, and
#: parallel garbage collection would compete with the work. The default code cache of the first
#: compiler, 48 MiB, is full after a few jobs, and then it stops compiling.
_SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=160m -XX:+UseSerialGC"
#: Folder of log4j2.properties.
_QUIET: Final = Path(__file__).parent / "conf"
_MASTERS: Final = re.compile(r"local(\[.*\])?|local-cluster\[.*\]|yarn|(spark|k8s)://.+")
_LOCAL: Final = re.compile(r"local(\[.*\])?")
_CONNECT_S: Final = 5.0
#: These loggers print every error of a query as a page of JSON before it is raised.
_LOUD_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    conf: Mapping[str, str] | None = None,
    is_short: bool = False,
) -> SparkSession:
    """Return a session on ``master``, by default ``local[*]``, or this process's existing session.

    An existing session keeps its master and its settings.

    :param conf: settings of Spark, which replace this project's.
    :param is_short: for a job of limited duration: a local Java starts faster, but runs slower
        after some minutes.
    :raises StartupError: Java is missing or too old, the master is wrong or does not answer, or
        Spark does not start.
    """
    running = SparkSession.getActiveSession()
    if running is not None:
        register(running)
        return running
    given = dict(conf or {})
    if _is_submitted():
        if master is not None:
            raise StartupError(
                f"--master {master} after spark-submit: give the master to spark-submit, "
                "before the name of this program"
            )
        settings = {**_settings_of_rows(), **given}
    else:
        master = master or DEFAULT_MASTER
        _check_master(master)
        _prepare_environment(master, given)
        settings = {**_settings_of_rows(), **_settings_of_driver(master, is_short), **given}
        settings["spark.master"] = master
    return _start(app_name, settings)


def is_local(master: str) -> bool:
    """Return whether Spark runs in the driver's Java process only."""
    return _LOCAL.fullmatch(master) is not None


def _is_submitted() -> bool:
    return "PYSPARK_GATEWAY_PORT" in os.environ


def _settings_of_rows() -> dict[str, str]:
    """Return the settings that affect results; they are the same for all sessions."""
    return {"spark.sql.session.timeZone": "UTC", "spark.executorEnv.TZ": "UTC"}


def _settings_of_driver(master: str, is_short: bool) -> dict[str, str]:
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    if is_local(master):
        # Spark's default of 200 would mean 200 tasks for each batch of a streaming aggregation.
        settings["spark.sql.shuffle.partitions"] = str(os.cpu_count() or 2)
        if is_short:
            settings["spark.driver.extraJavaOptions"] = _SHORT_LIVED
    return settings


def _check_master(master: str) -> None:
    """Check the URL of a master, which Spark would reject only after a minute or in a page of text.

    :raises StartupError: it is malformed, needs a missing configuration, or no master answers.
    """
    if not _MASTERS.fullmatch(master):
        raise StartupError(
            f"--master {master} is no master of Spark: expected local[*], local[N], "
            "spark://HOST:PORT, yarn or k8s://URL"
        )
    if master == "yarn" and not {"HADOOP_CONF_DIR", "YARN_CONF_DIR"} & os.environ.keys():
        raise StartupError(
            "--master yarn needs the cluster's configuration: set HADOOP_CONF_DIR or YARN_CONF_DIR "
            "to the folder that holds yarn-site.xml"
        )
    if master.startswith("spark://"):
        _check_standalone(master)


def _check_standalone(master: str) -> None:
    """Check that one of the masters accepts connections.

    :raises StartupError: none does.
    """
    problems = []
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        if not host or not port.isdigit():
            raise StartupError(f"--master {master}: {address} is not HOST:PORT")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_S).close()
        except (OSError, OverflowError) as e:
            problems.append(f"{address}: {e}")
        else:
            return
    raise StartupError(f"no Spark master answers at {master} ({'; '.join(problems)})")


def _prepare_environment(master: str, conf: dict[str, str]) -> None:
    """Set the environment variables of the Java process, which starts next."""
    os.environ["JAVA_HOME"] = _java_home()
    home = os.environ.get("SPARK_HOME")
    # A Spark installation of the user keeps its own configuration and logging.
    if "SPARK_CONF_DIR" not in os.environ and not (home and os.path.isdir(f"{home}/conf")):
        os.environ["SPARK_CONF_DIR"] = str(_QUIET)
    python = conf.get("spark.pyspark.python")
    if python is not None:
        # PySpark itself reads this setting under spark-submit only.
        os.environ["PYSPARK_PYTHON"] = python
    elif is_local(master):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


@functools.cache
def _java_home() -> str:
    java = find_java(os.environ)
    if java.warning is not None:
        print(f"warning: {java.warning}: {java.path}", file=sys.stderr)
    return launcher_home(java, os.environ)


@functools.cache
def _quieten_python() -> None:
    """Silence log records of errors that PySpark and py4j raise as well.

    The code that catches such an exception reports it.
    """
    for name in _LOUD_LOGGERS:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)
    # py4j logs by the root logger, which asks its own filters for those records only.
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)


def _start(app_name: str, settings: Mapping[str, str]) -> SparkSession:
    _quieten_python()
    builder = SparkSession.builder.appName(app_name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    where = settings.get("spark.master", "the master of spark-submit")
    try:
        session = builder.getOrCreate()
        if not is_local(str(session.sparkContext.master)):
            package = package_zip()
            if package is not None:
                session.sparkContext.addPyFile(package)
        register(session)
    except SPARK_ERRORS as e:
        raise StartupError(f"Spark did not start on {where}: {spark_reason(e)}") from e
    return session
