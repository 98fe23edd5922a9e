"""WIRE. ``Collector``: keeps Python's cyclic garbage collector from blocking the event loop.

A full collection visits all objects, each time that their number has grown by a quarter. It takes a
third of a second with the metadata of 100,000 partitions, and more than three with a million. The
other controllers elect a new leader if the leader is silent for a second.

``gc.freeze`` therefore excludes the objects that survive a long collection from later ones.
Reference counts still free them. Only garbage cycles among them would stay, and metadata has none.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

_OLDEST: Final = 2
_LONG_S: Final = 0.03


class Collector:
    """Calls ``gc.freeze`` after each long full collection, so that later ones skip the objects that
    survived it. Call ``watch()`` once per process."""

    def __init__(
        self, now_s: Callable[[], float] = time.perf_counter, long_s: float = _LONG_S
    ) -> None:
        """:param long_s: ``gc.freeze`` is called after a collection of at least this many
        seconds."""
        self._now_s = now_s
        self._long_s = long_s
        self._began_s = 0.0

    def watch(self) -> None:
        gc.callbacks.append(self._heard)

    def unwatch(self) -> None:
        gc.callbacks.remove(self._heard)

    def _heard(self, phase: str, info: Mapping[str, Any]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            self._began_s = self._now_s()
        elif self._now_s() - self._began_s >= self._long_s:
            gc.freeze()
