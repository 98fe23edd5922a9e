"""WIRE. ``Collector``: keeps Python's cyclic garbage collector from blocking the event loop.

A full collection visits all objects whenever their number has grown by a quarter. With the metadata
of 100,000 partitions that takes a third of a second, with a million more than three. A controller
that is silent for a second is voted out. Objects that survive a long collection are permanent, so
they are excluded from later ones (``gc.freeze``). Reference counts still free them. Only cycles
among them would stay, and metadata has none.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

_OLDEST: Final = 2
_LONG_S: Final = 0.03


class Collector:
    """Watches collections. Call ``watch()`` once in a process."""

    def __init__(
        self, now_s: Callable[[], float] = time.perf_counter, long_s: float = _LONG_S
    ) -> None:
        """:param long_s: a collection that takes this long is followed by ``gc.freeze``."""
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
