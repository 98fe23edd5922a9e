"""Diagnostics of a daemon: structured events and named figures.

"Log" means the commit log in this house, so what other programs call logging is telemetry here.

* Event names are unique snake_case literals (``log_dir_offline``); each one at warning level or
  worse is named by at least one test, and that test is its explanation.
* Figures are plain numbers in a :class:`Metrics` registry that belongs to one daemon.
* PURE and DISK files must not import this module.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, TextIO

import structlog

_MAX_NAME_CHARS: Final = 300

Logger = structlog.stdlib.BoundLogger


#: Takes an event with all its fields; ``event`` is its name, ``level`` how bad it is. Never raises.
Sink = Callable[[Mapping[str, Any]], None]


def configure(
    *, json_lines: bool, level: str, stream: TextIO | None = None, sink: Sink | None = None
) -> None:
    """Send events to ``stream`` (stderr by default), one JSON object or one console line each.

    :param sink: gets the events instead, as they are.
    """
    out = stream if stream is not None else sys.stderr
    renderer: Any
    if sink is not None:
        renderer = functools.partial(_hand_over, sink)
    elif json_lines:
        renderer = structlog.processors.JSONRenderer(default=str)
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty())
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=False,
    )


def _hand_over(
    sink: Sink, _logger: object, _method: str, event: structlog.typing.EventDict
) -> NoReturn:
    sink(event)
    raise structlog.DropEvent


def get_logger(**context: object) -> Logger:
    """A logger whose every event carries ``context``."""
    logger: Logger = structlog.get_logger(**context)
    return logger


def shortened(text: str) -> str:
    """A name that came from outside, short enough for a line of telemetry."""
    return text if len(text) <= _MAX_NAME_CHARS else text[:_MAX_NAME_CHARS] + "…"


class Metrics:
    """The figures of one daemon, by Kafka's metric names where Kafka has one.

    A figure is either counted (:meth:`count`) or read when asked for (:meth:`gauge`, and
    :meth:`gauges` for things that come and go).
    """

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}
        self._gauges: dict[str, Callable[[], float]] = {}
        self._sources: list[Callable[[], Mapping[str, float]]] = []

    def count(self, name: str, by: int = 1) -> None:
        self._counters[name] = self._counters.get(name, 0) + by

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Let ``read`` answer for ``name``; a second call for the same name replaces the first."""
        self._gauges[name] = read

    def gauges(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Let ``read`` answer for all figures that it names at that moment."""
        self._sources.append(read)

    def snapshot(self) -> dict[str, float]:
        """Every figure's present value, sorted by name."""
        values: dict[str, float] = dict(self._counters)
        values.update({name: read() for name, read in self._gauges.items()})
        for read_all in self._sources:
            values.update(read_all())
        return dict(sorted(values.items()))
