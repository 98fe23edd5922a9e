"""The data pipeline on Spark, separate from daemons and tools.

Topics are read and written by the data source and sink ``kraftjbod``. The storage state comes from
DescribeLogDirs and from the topic ``__storage_telemetry``. Transforms take and return frames. Jobs
read, transform and write. No daemon and no other tool imports this package.

Start with pipeline_tool.py. Each job has a subpackage, which uses connector, tables and session.

External programs import three functions from here: ``spark_session``; ``register``, which adds the
source to an existing session; and ``read_table``, which reads the results of jobs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kraftjbod.spark.connector.source import register as register
    from kraftjbod.spark.session.session import spark_session as spark_session
    from kraftjbod.spark.tables.stored_tables import read_table as read_table

#: Imported on first use: executors need fewer modules than a session does.
_PUBLIC: Final[Mapping[str, str]] = {
    "read_table": "kraftjbod.spark.tables.stored_tables",
    "register": "kraftjbod.spark.connector.source",
    "spark_session": "kraftjbod.spark.session.session",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
