"""What went wrong in Spark, in one line: its own messages run to pages.

The last exception of a Python worker says more than all of Spark's frames around it, so it wins;
otherwise it is the first line of Spark's message without its codes.
"""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

#: What Spark raises, beside the errors of this package that come out of Python code.
SPARK_ERRORS: Final = (PySparkException, Py4JError)
_MOST: Final = 600
_TRACEBACK: Final = "Traceback (most recent call last):"
_CODES: Final = (
    # "An error occurred while calling o150.load.\n: org.apache.spark.SparkException: "
    re.compile(r"^An error occurred while calling \S+\s*:\s*([\w$.]+(Exception|Error): )?"),
    re.compile(r"^\[STREAM_FAILED\] Query \[.*?\] terminated with exception: "),
    re.compile(r"^Job aborted due to stage failure: .*?most recent failure: Lost task .*?\): "),
    re.compile(r"^\[[A-Z0-9_.]+\] "),
    re.compile(r"\s*SQLSTATE: \w+;?"),
)
_CAUSE: Final = re.compile(r"^Caused by: [\w$.]+: (.+)$", re.MULTILINE)
#: Who reads an error need not know which class of ours it was.
_OUR_CLASS: Final = re.compile(r"^kraftjbod\.[\w.]+: ")


def spark_reason(error: BaseException) -> str:
    """One line, at most 600 characters."""
    if isinstance(error, Py4JNetworkError):
        return "Spark's Java process is gone; --verbose shows what it said"
    text = str(error).strip()
    _, found, traceback = text.rpartition(_TRACEBACK)
    line = (_exception_line(traceback) if found else None) or _first_line(text)
    line = " ".join(line.split()) or type(error).__name__
    return line if len(line) <= _MOST else f"{line[:_MOST]} ..."


def _first_line(text: str) -> str:
    """Without codes; with the innermost cause, where Java names one that is not in the line."""
    line = text
    for code in _CODES:
        line = code.sub("", line)
    line = line.strip().partition("\n")[0]
    causes = _CAUSE.findall(text)
    return line if not causes or causes[-1] in line else f"{line} ({causes[-1]})"


def _exception_line(traceback: str) -> str | None:
    """``kraftjbod.core.errors.ConfigError: no such topic`` as ``no such topic``."""
    for line in traceback.splitlines():
        if line and not line[0].isspace():
            return _OUR_CLASS.sub("", line)
    return None
