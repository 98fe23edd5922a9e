"""PURE. ``PeerWarnings``: limits how often misbehaviour of a peer is logged.

* Warnings are counted per event name and peer address. The first few of a minute are logged. The
  others are counted, and :meth:`PeerWarnings.admit` or ``settle`` return the count later.
* The number of known addresses is limited. All further addresses share one count per event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

_LOGGED_PER_WINDOW: Final = 5
_WINDOW_S: Final = 60.0
_MAX_KNOWN: Final = 1_000
EVERYBODY_ELSE: Final = "*"


class LeftOut(NamedTuple):
    """How many events named ``event`` about the peer ``host`` were not logged since the last one
    that was.
    """

    event: str
    host: str
    times: int


@dataclass(slots=True)
class _Window:
    ends_s: float
    logged: int = 0
    left_out: int = 0


class PeerWarnings:
    """Limits how often each kind of warning about each peer is logged, and counts the rest.

    Five events of a kind and peer are logged per minute. Beyond 1,000 kinds and peers, all further
    peers count together as ``*``.

    :param now_s: returns monotonic time in seconds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        #: By event and host.
        self._windows: dict[tuple[str, str], _Window] = {}

    def admit(self, event: str, host: str) -> int | None:
        """Count an event about the peer ``host``. Return None if the event must not be logged.

        Otherwise return how many such events were left out since the last one that was logged.
        """
        key = (event, host)
        if key not in self._windows and len(self._windows) >= _MAX_KNOWN:
            key = (event, EVERYBODY_ELSE)
        now_s = self._now_s()
        window = self._windows.setdefault(key, _Window(now_s + _WINDOW_S))
        if now_s >= window.ends_s:
            window.ends_s, window.logged = now_s + _WINDOW_S, 0
        if window.logged >= _LOGGED_PER_WINDOW:
            window.left_out += 1
            return None
        window.logged += 1
        left_out, window.left_out = window.left_out, 0
        return left_out

    def settle(self) -> Iterator[LeftOut]:
        """Yield how many events were left out in each window that is over, and forget these
        windows.
        """
        now_s = self._now_s()
        for key, window in [*self._windows.items()]:
            if now_s >= window.ends_s:
                del self._windows[key]
                if window.left_out:
                    yield LeftOut(*key, window.left_out)
