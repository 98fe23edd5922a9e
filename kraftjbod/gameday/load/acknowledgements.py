"""PURE. The record of one partition's load: what was acknowledged, when and where, and the gaps
between."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from kraftjbod.protocol.records import Record


class RecordStream(Protocol):
    """An endless stream of records that is always the same: what record ``index`` must be is known
    without keeping what was sent.
    """

    def key(self, index: int) -> bytes: ...

    def value(self, index: int) -> bytes: ...

    def records(self, start: int, count: int, timestamp_ms: int) -> list[Record]:
        """The records ``start`` up to ``start + count``."""

    def owns(self, key: bytes) -> bool:
        """Whether a record with ``key`` can only be from this stream; others are nobody's loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The cluster took ``count`` records at ``offset`` and following.

    ``at_s`` is monotonic; ``took_s`` is the time since they were sent.
    """

    at_s: float
    offset: int
    count: int
    took_s: float = 0.0


class Gap(NamedTuple):
    """Time without an acknowledged write, between two that were."""

    start_s: float
    end_s: float

    @property
    def length_ms(self) -> int:
        return round((self.end_s - self.start_s) * 1000)


class Acknowledgements:
    """What one producer sent, and what the cluster acknowledged of it."""

    def __init__(self, partition: int, stream: RecordStream) -> None:
        self.partition = partition
        self.stream = stream
        self.acks: list[Ack] = []
        self.acked = 0
        #: Records of a last batch that was neither acknowledged nor refused.
        self.in_doubt = 0
        self.error: str | None = None

    def longest_gap(self, from_s: float, to_s: float, *, open_until_s: float | None = None) -> Gap:
        """The longest gap of all that end after ``from_s`` and begin before ``to_s``.

        :param open_until_s: when the producer stopped: what was not acknowledged up to then is a
            gap as well. By default only what lies between two acknowledgements is one.
        """
        instants = [ack.at_s for ack in self.acks]
        if open_until_s is not None and instants and instants[-1] < open_until_s:
            instants.append(open_until_s)
        gaps = [Gap(a, b) for a, b in pairwise(instants) if b >= from_s and a <= to_s]
        return max(gaps, key=lambda gap: gap.end_s - gap.start_s, default=Gap(from_s, to_s))

    def waits_s(self, from_s: float, to_s: float) -> list[float]:
        """Return how long each batch waited that was acknowledged between the two instants."""
        return [ack.took_s for ack in self.acks if from_s <= ack.at_s <= to_s]

    def longest_gap_within(self, from_s: float, to_s: float) -> Gap | None:
        """The longest gap of all that lie between the two instants, if any does."""
        instants = [ack.at_s for ack in self.acks if from_s <= ack.at_s <= to_s]
        gaps = (Gap(a, b) for a, b in pairwise(instants))
        return max(gaps, key=lambda gap: gap.end_s - gap.start_s, default=None)
