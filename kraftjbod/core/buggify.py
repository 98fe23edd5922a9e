"""PURE. Buggify points: places at which a simulation causes a legal but unlikely event.

::

    if buggify.is_on and buggify.fires("storage.early_roll"):
        ...

* Outside of a simulation ``is_on`` is False: a point costs a global load and a branch.
* The event of a point is one that can also happen without the point: a smaller batch, a late
  callback, a lost answer, a full queue.
* Each point has a unique name, which begins with its package. docs/simulation.md lists all points.
* Points are in DISK and LOOP files: a PURE function gives the same result for the same arguments.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Final, Protocol

#: Share of the seeds without any point.
_QUIET: Final = 0.3
#: Share of the points that are in use in the other seeds.
_IN_USE: Final = 0.3
#: The probability of each point in use is drawn from these.
_PROBABILITIES: Final = (0.01, 0.05, 0.25)


class Rng(Protocol):
    """The part of :class:`random.Random` that this module uses."""

    def random(self) -> float: ...


class Points:
    """Decides in one simulation when each buggify point fires, and counts how often it fired.

    :param rng_of: creates a generator for a name; equal seeds and names give equal generators.
    :param least: lower limits of the probabilities of some points, by name.
    """

    def __init__(
        self, rng_of: Callable[[str], Rng], least: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        self._rng_of = rng_of
        self._least = least
        self._are_quiet = rng_of("buggify").random() < _QUIET
        #: Generator and probability of each point reached so far, by name.
        self._reached: dict[str, tuple[Rng, float]] = {}
        #: Probabilities that :meth:`forced` requests, by point.
        self._forced: dict[str, list[float]] = {}
        #: How often each point fired.
        self.fired: Counter[str] = Counter()

    def fires(self, name: str) -> bool:
        """Return whether the event of point ``name`` happens this time.

        Each point draws from a separate generator, so that a new point does not change the others.
        """
        rng, probability = self._reached.get(name) or self._reach(name)
        if self._forced:
            probability = max((probability, *self._forced.get(name, ())))
        if not probability or rng.random() >= probability:
            return False
        self.fired[name] += 1
        return True

    def _reach(self, name: str) -> tuple[Rng, float]:
        rng, probability = self._rng_of(f"buggify {name}"), 0.0
        if not self._are_quiet and rng.random() < _IN_USE:
            probability = _PROBABILITIES[int(rng.random() * len(_PROBABILITIES))]
        probability = max(probability, self._least.get(name, 0.0))
        self._reached[name] = rng, probability
        return rng, probability

    def limit(self, name: str, most: float) -> None:
        """Limit the probability of the point ``name`` to ``most`` from now on."""
        rng, probability = self._reached.get(name) or self._reach(name)
        self._reached[name] = rng, min(probability, most)

    @contextmanager
    def forced(self, name: str, probability: float) -> Iterator[None]:
        """Let the point ``name`` fire with at least ``probability`` during the context.

        Contexts of one point may overlap; the largest probability applies.
        """
        requested = self._forced.setdefault(name, [])
        requested.append(probability)
        try:
            yield
        finally:
            requested.remove(probability)


#: Check this flag before calling :func:`fires`, to save the call.
is_on = False
_points: Points | None = None


def use(points: Points | None) -> Points | None:
    """Install ``points``, or turn all points off with None. Return the previous points."""
    global is_on, _points
    before, _points = _points, points
    is_on = points is not None
    return before


def fires(name: str) -> bool:
    """Return whether the event of point ``name`` happens now; always False outside of a
    simulation.
    """
    return _points is not None and _points.fires(name)


def time_out(name: str) -> None:
    """Raise TimeoutError if the point ``name`` fires, as if a response came too late."""
    if fires(name):
        raise TimeoutError
