"""PURE. What went wrong in Spark, in one line: its own messages run to pages.

The last exception of a Python worker says more than all of Spark's frames around it, so it wins;
otherwise it is the first line of Spark's message without its codes.
"""

from __future__ import annotations

import re
import traceback
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
_UNANSWERED: Final = re.compile(r"An error occurred while calling \S+")
_MORE_MEMORY: Final = "give it more: --conf spark.driver.memory=4g or spark.executor.memory"
_CAUSE: Final = re.compile(r"^Caused by: [\w$.]*?(\w+): (.+)$", re.MULTILINE)
#: Who reads an error need not know which class of ours it was.
_OUR_CLASS: Final = re.compile(r"^kraftjbod\.[\w.]+: ")


def spark_reason(error: BaseException) -> str:
    """One line; of an error of Spark at most 600 characters, of any other all that it says."""
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
    """Py4J passes on what the socket to Java raised when it connects once more."""
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "/py4j/" in frames[-1].filename


def _first_line(text: str) -> str:
    """Without codes; with the innermost cause, where Java names one that is not in the line."""
    line = text
    for code in _CODES:
        line = code.sub("", line)
    line = line.strip().partition("\n")[0]
    for kind, words in _CAUSE.findall(text)[-1:]:
        if words not in line:
            line = f"{line} ({kind}: {words})"
    return line


def _exception_line(trace: str) -> str | None:
    """``kraftjbod.core.errors.ConfigError: no such topic`` as ``no such topic``."""
    for line in trace.splitlines():
        if line and not line[0].isspace():
            return _OUR_CLASS.sub("", line)
    return None
