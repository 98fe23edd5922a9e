"""LOOP. Diagnostics of a daemon: structured events and named figures.

"Log" means the commit log here, so what other programs call logging is telemetry here.

* Event names are unique snake_case literals (``log_dir_offline``); each one at warning level or
  worse is named by at least one test, and that test is its explanation.
* Figures are plain numbers in a :class:`Metrics` registry that belongs to one daemon.
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

#: Takes an event with all its fields; ``event`` is its name, ``level`` how bad it is. Never raises.
Sink = Callable[[Mapping[str, Any]], None]


class Stream(Protocol):
    """Where lines go, a text file for instance."""

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
    """Send events to ``stream`` (stderr by default), one JSON object or one console line each.

    :param sink: gets the events instead, as they are.
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
    """Events below it are not written from now on; the rest of what was configured stays."""
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(number))


class LevelSwitch:
    """Sets the level of the process when what is wanted changes."""

    def __init__(self, level: str, set_to: Callable[[str], None]) -> None:
        """:param level: the one that holds now."""
        self._level = level
        self._set_to = set_to

    def take(self, level: str) -> None:
        if level != self._level:
            self._level = level
            self._set_to(level)


@contextlib.contextmanager
def sent_to(sink: Sink, *, level: str = "info") -> Iterator[None]:
    """Meanwhile ``sink`` gets the events, and afterwards who got them before."""
    before = structlog.get_config()
    configure(json_lines=True, level=level, sink=sink)
    try:
        yield
    finally:
        structlog.configure(**before)


def _limit_peers(
    peers: PeerWarnings, _logger: object, method: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """A peer that is broken, or means harm, must not fill the disk with what is said of it."""
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
    """What a client calls itself must not speak to the operator's terminal."""
    return {
        key: "\n".join(map(_escaped, value.split("\n"))) if key == "exception" else _escaped(value)
        for key, value in event.items()
    }


def _escaped(value: Any) -> Any:
    """``value``, or its text if that has characters that are not printed as they are."""
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
