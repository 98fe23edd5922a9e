"""PURE. The acknowledgements of one partition's load, and the gaps between them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from kraftjbod.protocol.records import Record


class RecordStream(Protocol):
    """An endless, deterministic stream of records.

    The expected record ``index`` is known without storing the sent records.
    """

    def key(self, index: int) -> bytes: ...

    def value(self, index: int) -> bytes: ...

    def records(self, start: int, count: int, timestamp_ms: int) -> list[Record]:
        """Return the records from ``start`` to before ``start + count``.

        :param timestamp_ms: timestamp of each of them.
        """

    def owns(self, key: bytes) -> bool:
        """Return whether a record with ``key`` is one of this stream. A check ignores all other
        records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ack:
    """The cluster acknowledged ``count`` records from ``offset`` on.

    ``at_s`` is the time (monotonic), ``took_s`` the time since the request was sent.
    """

    at_s: float
    offset: int
    count: int
    took_s: float = 0.0


class Gap(NamedTuple):
    """Time between two successive acknowledgements, in seconds of the monotonic clock."""

    start_s: float
    end_s: float

    @property
    def length_ms(self) -> int:
        return round((self.end_s - self.start_s) * 1000)


class Acknowledgements:
    """The records of ``stream`` that one producer sent to ``partition``, and their
    acknowledgements.

    ``acked`` is the number of acknowledged records. ``error`` is the reason why the producer
    failed; None if it did not fail.
    """

    def __init__(self, partition: int, stream: RecordStream) -> None:
        self.partition = partition
        self.stream = stream
        self.acks: list[Ack] = []
        self.acked = 0
        #: Number of records of a failed last batch, which may or may not be in the log.
        self.in_doubt = 0
        self.error: str | None = None

    def longest_gap(self, from_s: float, to_s: float, *, open_until_s: float | None = None) -> Gap:
        """Return the longest gap that overlaps the time from ``from_s`` to ``to_s`` (monotonic);
        without a gap, that whole time.

        A gap counts in full, with the parts before ``from_s`` and after ``to_s``.

        :param open_until_s: when the producer stopped. The time from the last acknowledgement to it
            is a gap too. By default, gaps lie between two acknowledgements only.
        """
        instants = [ack.at_s for ack in self.acks]
        if open_until_s is not None and instants and instants[-1] < open_until_s:
            instants.append(open_until_s)
        gaps = [Gap(a, b) for a, b in pairwise(instants) if b >= from_s and a <= to_s]
        return max(gaps, key=lambda gap: gap.end_s - gap.start_s, default=Gap(from_s, to_s))

    def waits_s(self, from_s: float, to_s: float) -> list[float]:
        """Return the latencies, in seconds, of batches that were acknowledged from ``from_s`` to
        ``to_s`` (monotonic).
        """
        return [ack.took_s for ack in self.acks if from_s <= ack.at_s <= to_s]

    def longest_gap_within(self, from_s: float, to_s: float) -> Gap | None:
        """Return the longest gap between two acknowledgements from ``from_s`` to ``to_s``
        (monotonic); None if there are fewer than two.
        """
        instants = [ack.at_s for ack in self.acks if from_s <= ack.at_s <= to_s]
        gaps = (Gap(a, b) for a, b in pairwise(instants))
        return max(gaps, key=lambda gap: gap.end_s - gap.start_s, default=None)
