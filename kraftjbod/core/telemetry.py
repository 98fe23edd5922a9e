"""LOOP. Diagnostics of a daemon: structured events and metrics.

The word "log" means the commit log in this project, so ordinary logging is called telemetry.

* Event names are unique snake_case literals (``log_dir_offline``). At least one test names each
  event at warning level or above, and thus documents the event.
* Metrics are plain numbers in a :class:`Metrics` registry that belongs to one daemon.
* PURE and DISK files must not import this module.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, NoReturn, Protocol, TextIO, cast

import structlog

from kraftjbod.core.peer_warnings import PeerWarnings

_MAX_NAME_CHARS: Final = 300

Logger = structlog.stdlib.BoundLogger


_LOUD: Final = frozenset({"warning", "error", "critical", "exception"})

#: Receives an event with all its fields, such as ``event`` (name) and ``level``. Never raises.
Sink = Callable[[Mapping[str, Any]], None]


class Stream(Protocol):
    """The part of a text file that telemetry uses to write lines."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


def configure(
    *,
    json_lines: bool,
    level: str,
    stream: Stream | None = None,
    sink: Sink | None = None,
    peer_warnings: PeerWarnings | None = None,
) -> None:
    """Send events of the process to ``stream``, one JSON object or one console line each.

    :param level: lowest level that is written, such as ``info``.
    :param stream: standard error by default.
    :param sink: receives the event dictionaries; nothing is written to ``stream`` then.
    :param peer_warnings: decides which warnings and errors with a ``peer`` are logged.
    """
    out: Stream = stream if stream is not None else sys.stderr
    is_console = sink is None and not json_lines
    renderer: Any
    if sink is not None:
        renderer = functools.partial(_hand_over, sink)
    elif json_lines:
        renderer = structlog.processors.JSONRenderer(default=str)
    else:
        renderer = structlog.dev.ConsoleRenderer(colors=out.isatty())
    structlog.configure(
        processors=[
            *([] if peer_warnings is None else [functools.partial(_limit_peers, peer_warnings)]),
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            *([_escape_controls] if is_console else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=cast("TextIO", out)),
        cache_logger_on_first_use=False,
    )


def set_level(level: str) -> None:
    """Change the lowest level that is written, such as ``info``. The rest of the configuration
    stays.
    """
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(number))


class LevelSwitch:
    """Changes the telemetry level of the process when the configured level changes."""

    def __init__(self, level: str, set_to: Callable[[str], None]) -> None:
        """Create a switch.

        :param level: the present level.
        :param set_to: called with the new level when the level changes.
        """
        self._level = level
        self._set_to = set_to

    def take(self, level: str) -> None:
        if level != self._level:
            self._level = level
            self._set_to(level)


@contextlib.contextmanager
def sent_to(sink: Sink, *, level: str = "info") -> Iterator[None]:
    """Context in which the events of the process go to ``sink`` only. Afterwards the previous
    configuration is restored.

    :param level: lowest level that is passed on.
    """
    before = structlog.get_config()
    configure(json_lines=True, level=level, sink=sink)
    try:
        yield
    finally:
        structlog.configure(**before)


def _limit_peers(
    peers: PeerWarnings, _logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Drop warnings about a peer beyond the limit, so that a bad peer cannot fill the disk.

    A processor of structlog.
    """
    if "peer" in event and method in _LOUD:
        left_out = peers.admit(str(event["event"]), str(event["peer"]).rpartition(":")[0])
        if left_out is None:
            raise structlog.DropEvent
        if left_out:
            event["left_out"] = left_out
    return event


def _escape_controls(
    _logger: object, _method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape control characters: names sent by clients must not control the operator's terminal.

    A processor of structlog.
    """
    return {
        key: "\n".join(map(_escaped, value.split("\n"))) if key == "exception" else _escaped(value)
        for key, value in event.items()
    }


def _escaped(value: Any) -> Any:
    """Return ``value`` if its text is printable, else the text with escapes."""
    text = value if isinstance(value, str) else repr(value)
    if text.isprintable():
        return value
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _hand_over(
    sink: Sink, _logger: object, _method: str, event: structlog.typing.EventDict
) -> NoReturn:
    sink(event)
    raise structlog.DropEvent


def get_logger(**context: object) -> Logger:
    """Return a logger that adds ``context`` to each of its events."""
    logger: Logger = structlog.get_logger(**context)
    return logger


def shortened(text: str) -> str:
    """Return ``text``, such as a name that a client sent, cut to 300 characters and an ellipsis if
    it is longer.
    """
    return text if len(text) <= _MAX_NAME_CHARS else text[:_MAX_NAME_CHARS] + "…"


class Metrics:
    """Metrics of one daemon, with Kafka's metric names where Kafka has one.

    A metric is either a counter (:meth:`count`) or is read on demand (:meth:`gauge`, and
    :meth:`gauges` for a set of metrics that changes).
    """

    def __init__(self) -> None:
        self._counters: dict[str, int] = {}
        self._gauges: dict[str, Callable[[], float]] = {}
        self._sources: list[Callable[[], Mapping[str, float]]] = []

    def count(self, name: str, by: int = 1) -> None:
        self._counters[name] = self._counters.get(name, 0) + by

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Register ``read`` as the source of the metric ``name``, in place of an earlier one."""
        self._gauges[name] = read

    def gauges(self, read: Callable[[], Mapping[str, float]]) -> None:
        """Register ``read`` as a source of metrics. ``read`` returns values by metric name."""
        self._sources.append(read)

    def snapshot(self) -> dict[str, float]:
        """Return the present values of all metrics, sorted by name."""
        values: dict[str, float] = dict(self._counters)
        values.update({name: read() for name, read in self._gauges.items()})
        for read_all in self._sources:
            values.update(read_all())
        return dict(sorted(values.items()))
