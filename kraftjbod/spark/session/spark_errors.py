"""PURE. Summarizes Spark's errors in one line, because its own messages are pages long.

The last exception of a Python worker is the most specific one, so it is preferred. Otherwise the
summary is the first line of Spark's message without its codes.
"""

from __future__ import annotations

import re
import traceback
from typing import Final

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

#: Exceptions of Spark, beside this package's errors raised in Python workers.
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
_UNANSWERED: Final = re.compile(r"An error occurred while calling \S+")
_MORE_MEMORY: Final = "give it more: --conf spark.driver.memory=4g or spark.executor.memory"
_CAUSE: Final = re.compile(r"^Caused by: [\w$.]*?(\w+): (.+)$", re.MULTILINE)
#: Prefix with the class of this package's errors, which does not help users.
_OUR_CLASS: Final = re.compile(r"^kraftjbod\.[\w.]+: ")


def spark_reason(error: BaseException) -> str:
    """Return the reason of an error in one line.

    The reason has at most 600 characters for an error of Spark, and is complete for any other
    error.
    """
    text = str(error).strip()
    if (
        isinstance(error, Py4JNetworkError)
        or _UNANSWERED.fullmatch(text)
        or (isinstance(error, ConnectionError) and _comes_from_py4j(error))
    ):
        return "Spark's Java process is gone: it was killed, or ran out of memory"
    if not isinstance(error, SPARK_ERRORS):
        return " ".join(text.split()) or type(error).__name__
    _, found, trace = text.rpartition(_TRACEBACK)
    line = (_exception_line(trace) if found else None) or _first_line(text)
    line = " ".join(line.split()) or type(error).__name__
    if "java.lang.OutOfMemoryError" in text:
        line = f"{line} ({_MORE_MEMORY})"
    return line if len(line) <= _MOST else f"{line[:_MOST]} ..."


def _comes_from_py4j(error: BaseException) -> bool:
    """Return whether ``error`` is a socket error of Py4J's connection to Java."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "/py4j/" in frames[-1].filename


def _first_line(text: str) -> str:
    """Return the first line of ``text`` without codes, with the innermost cause in Java if it is
    missing."""
    line = text
    for code in _CODES:
        line = code.sub("", line)
    line = line.strip().partition("\n")[0]
    for kind, words in _CAUSE.findall(text)[-1:]:
        if words not in line:
            line = f"{line} ({kind}: {words})"
    return line


def _exception_line(trace: str) -> str | None:
    """Return ``no such topic`` for ``kraftjbod.core.errors.ConfigError: no such topic``.

    :param trace: the text after the header of a traceback.
    """
    for line in trace.splitlines():
        if line and not line[0].isspace():
            return _OUR_CLASS.sub("", line)
    return None
