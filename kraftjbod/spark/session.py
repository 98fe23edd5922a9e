"""The one way to a Spark session: Java found, quiet, in UTC, with our source and sink in it.

A session that runs already in this process is taken as it is; source and sink are registered in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession

DEFAULT_MASTER: Final = "local[*]"


def spark_session(
    app_name: str, *, master: str = DEFAULT_MASTER, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session on ``master``; ``conf`` holds Spark settings that win over ours.

    :raises StartupError: without a Java that Spark can use, or if Spark does not start.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        **(conf or {}),
    }
    builder = SparkSession.builder.appName(app_name).master(master)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
