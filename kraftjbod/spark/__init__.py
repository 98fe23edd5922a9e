"""The data pipeline: a building of its own, on Spark.

Topics come in and go out by the data source and sink ``kraftjbod``, storage state by
DescribeLogDirs and by the topic ``__storage_telemetry``. Transforms take frames and return frames;
jobs read, transform and write. No daemon and no other tool imports this room.
Begin at pipeline_tool.py; each job has a room of its own on top of connector, tables and session.

Programs of others import from here: ``spark_session``; ``register``, for a session that is there
already; ``read_table``, for what jobs have written.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kraftjbod.spark.connector.source import register as register
    from kraftjbod.spark.session.session import spark_session as spark_session
    from kraftjbod.spark.tables.stored_tables import read_table as read_table

#: Imported when they are asked for: executors need less than a session does.
_PUBLIC: Final[Mapping[str, str]] = {
    "read_table": "kraftjbod.spark.tables.stored_tables",
    "register": "kraftjbod.spark.connector.source",
    "spark_session": "kraftjbod.spark.session.session",
}


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PUBLIC[name]), name)
