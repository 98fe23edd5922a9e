"""PURE. The output of ``kraftjbod-consumer-perf-test``: Kafka's columns, by its rules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kraftjbod.cli.perf.producer_figures import java_float, java_ratio
from kraftjbod.core.errors import ConfigError

_MB: Final = 1024.0 * 1024.0
_MORE: Final = ", rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec"
_COLUMNS: Final = "data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec" + _MORE
#: Letters of Java's SimpleDateFormat and the codes of strftime; milliseconds are separate.
_DATE_LETTERS: Final = {
    "y": "%Y",
    "M": "%m",
    "d": "%d",
    "H": "%H",
    "m": "%M",
    "s": "%S",
    "Z": "%z",
}
_PART: Final = re.compile(r"'((?:[^']|'')*)'|([A-Za-z])\2*|[^A-Za-z']+")
DATE_FORMAT: Final = "yyyy-MM-dd HH:mm:ss:SSS"


def header(*, is_detailed: bool) -> str:
    return f"{'time, threadId' if is_detailed else 'start.time, end.time'}, {_COLUMNS}"


@dataclass(frozen=True, slots=True)
class Read:
    """The bytes and the number of records that a consumer has read since the start of its run."""

    size_bytes: int = 0
    records: int = 0


def total_line(read: Read, *, times: tuple[str, str], elapsed_ms: int, join_ms: int) -> str:
    """Return the last line of a run: the CSV line of kafka-consumer-perf-test.

    :param times: start and end of the run, in the date format of that tool.
    :param elapsed_ms: duration of the run.
    :param join_ms: part of it in which the member had no partitions.
    """
    fetch_ms = elapsed_ms - join_ms
    mb = read.size_bytes / _MB
    rates = _per_second(mb, elapsed_ms), _per_second(read.records, elapsed_ms)
    return (
        f"{', '.join(times)}, {java_float(mb, 4)}, {rates[0]}, {read.records}, {rates[1]}, "
        f"{join_ms}, {fetch_ms}, {_per_second(mb, fetch_ms)}, "
        f"{_per_second(read.records, fetch_ms)}"
    )


def interval_line(read: Read, before: Read, *, at: str, elapsed_ms: int, join_ms: int) -> str:
    """Return the line of one interval, with ``--show-detailed-stats``.

    :param read: the amount since the start of the run.
    :param before: the amount at the start of the interval.
    :param at: formatted end of the interval.
    :param elapsed_ms: duration of the interval.
    :param join_ms: part of the interval in which the member had no partitions.
    """
    fetch_ms = elapsed_ms - join_ms
    mb = (read.size_bytes - before.size_bytes) / _MB
    records = read.records - before.records
    fetched = (mb, records) if fetch_ms > 0 else (0.0, 0)
    return (
        f"{at}, 0, {java_float(read.size_bytes / _MB, 4)}, {_per_second(mb, elapsed_ms)}, "
        f"{read.records}, {_per_second(records, elapsed_ms)}, {join_ms}, {fetch_ms}, "
        f"{_per_second(fetched[0], max(1, fetch_ms))}, {_per_second(fetched[1], max(1, fetch_ms))}"
    )


def _per_second(amount: float, elapsed_ms: int) -> str:
    return java_float(java_ratio(amount, elapsed_ms / 1000.0), 4)


def simple_date_format(pattern: str) -> Callable[[datetime], str]:
    """Return a function that formats a time as Java's SimpleDateFormat does.

    :raises ConfigError: the pattern has letters other than yMdHmsSZ, or an open quote.
    """
    parts: list[str | None] = []
    end = 0
    for part in _PART.finditer(pattern):
        quoted, letter = part.groups()
        if quoted is not None:
            parts.append((quoted.replace("''", "'") or "'").replace("%", "%%"))
        elif letter == "S":
            parts.append(None)
        elif letter is not None:
            if letter not in _DATE_LETTERS:
                raise ConfigError(f"--date-format {pattern}: {part[0]} is not known here")
            short = letter == "y" and len(part[0]) == 2
            parts.append("%y" if short else _DATE_LETTERS[letter])
        else:
            parts.append(part[0].replace("%", "%%"))
        end = part.end()
    if end != len(pattern):
        raise ConfigError(f"--date-format {pattern}: a quote has no end")

    def written(moment: datetime) -> str:
        millis = f"{moment.microsecond // 1000:03d}"
        return "".join(millis if part is None else moment.strftime(part) for part in parts)

    return written
