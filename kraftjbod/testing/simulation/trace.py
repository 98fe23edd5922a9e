"""WIRE. ``Trace``: all events of a simulation in order, as lines and as one hash.

A line is ``<virtual seconds> <host> <kind> <text>``: a file operation, received bytes,
an event that a daemon logged, a fault. The hash covers all lines and every step of time, so two
runs with the same hash did the same. Only the newest lines are kept.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Final

#: Fields of events that differ between runs: real time, and tracebacks with paths of this machine.
_NOT_HASHED: Final = frozenset({"timestamp", "exception"})
_HASHED_AT_ONCE: Final = 2_000
_LOUD: Final = frozenset({"warning", "error", "critical"})


class Trace:
    """Log of the events of a simulation, one line each.

    :param keep: number of lines to keep, the newest ones.
    :param on_line: called with every new line.
    """

    def __init__(self, *, keep: int = 20_000, on_line: Callable[[str], None] | None = None) -> None:
        self.lines: deque[str] = deque(maxlen=keep)
        #: The newest events that daemons logged, with ``host`` and ``at_ms``.
        self.events: deque[dict[str, Any]] = deque(maxlen=keep)
        #: Number of lines by kind.
        self.counts: Counter[str] = Counter()
        #: Lines about unexpected exceptions.
        self.bugs: list[str] = []
        self.now_us: Callable[[], int] = lambda: 0
        self._on_line = on_line
        self._hash = hashlib.blake2b(digest_size=16)
        #: Text that is not hashed yet.
        self._unhashed: list[str] = []

    def __repr__(self) -> str:
        return f"<Trace {self.hash} lines={sum(self.counts.values())}>"

    @property
    def hash(self) -> str:
        """Hash of all lines and steps of time so far, 32 hexadecimal digits: equal for equal
        runs."""
        self._hash_all()
        return self._hash.hexdigest()

    def _hash_all(self) -> None:
        self._hash.update("".join(self._unhashed).encode())
        self._unhashed.clear()

    def note(self, host: str, kind: str, text: str) -> None:
        """Add a line about ``host``, and count it by ``kind``. A line of kind ``bug`` is kept in
        ``bugs`` too."""
        line = f"{self.now_us() / 1e6:.6f} {host} {kind} {text}"
        self.counts[kind] += 1
        self._unhashed.append(line)
        self.lines.append(line)
        if kind == "bug":
            self.bugs.append(line)
        if self._on_line is not None:
            self._on_line(line)

    def step(self, now_us: int, callbacks: int) -> None:
        """Include in the hash that time advances to ``now_us`` after ``callbacks`` callbacks. No
        line is added."""
        self._unhashed.append(f"{now_us}/{callbacks};")
        if len(self._unhashed) > _HASHED_AT_ONCE:
            self._hash_all()

    def event(self, host: str, event: Mapping[str, Any]) -> None:
        """Add an event that a daemon of ``host`` logged; an event with an exception is also kept in
        ``bugs``."""
        self.events.append({"host": host, "at_ms": self.now_us() // 1000, **event})
        name, level = event.get("event"), event.get("level", "info")
        fields = " ".join(
            f"{key}={value}"
            for key, value in event.items()
            if key not in _NOT_HASHED and key not in ("event", "level")
        )
        self.note(host, "event" if level not in _LOUD else level, f"{name} {fields}")
        if "exception" in event:
            self.lines.append(str(event["exception"]))
            self.bugs.append(f"{name} {fields}\n{event['exception']}")
