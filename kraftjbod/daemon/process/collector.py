"""WIRE. ``Collector``: keeps the cyclic collector from holding up the loop for all that is known.

Python looks through everything it holds whenever that has grown by a quarter: with the metadata of
100,000 partitions a third of a second, with a million more than three, and a controller that is
silent for a second is voted out. What survived a collection that took long is there to stay, so
it is not looked at again (``gc.freeze``). What becomes garbage of that is freed by its count, as
nearly everything is; only cycles among it stay, of which metadata has none.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

_OLDEST: Final = 2
_LONG_S: Final = 0.03


class Collector:
    """``watch()`` once in a process."""

    def __init__(
        self, now_s: Callable[[], float] = time.perf_counter, long_s: float = _LONG_S
    ) -> None:
        """:param long_s: from then on a collection took long."""
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
