"""PURE. Selects the places that an audit must examine; sums show that all others are correct.

A partition is checked in stretches of offsets. The executors compute sums of each in one pass
(``STRETCH_SUMS``, ``BATCH_SUMS``). A stretch is done if every offset has one record, every
acknowledgement its record, and all replicas the same batches. This file returns the other
stretches, which the rules of audit_frames.py and replica_frames.py examine.

The selection may include correct stretches, but never omits an incorrect one. If sums cannot
decide, the rules do.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Partition = tuple[str, int]


class LogRange(NamedTuple):
    """One partition; the columns of ``LOG_RANGES``."""

    topic: str
    partition: int
    log_start: int | None
    log_end: int | None
    is_compacted: bool


class Stretch(NamedTuple):
    """A range of offsets, which starts at ``stretch`` times the common length of all stretches."""

    topic: str
    partition: int
    stretch: int


class StretchSums(NamedTuple):
    """The columns of ``STRETCH_SUMS``; minima and maxima are None without rows."""

    topic: str
    partition: int
    stretch: int
    acknowledged: int
    plain: int
    nameless: int
    records: int
    offsets: int
    odd: int
    first_record: int | None
    last_record: int | None
    first_acknowledged: int | None

    @property
    def place(self) -> Stretch:
        return Stretch(self.topic, self.partition, self.stretch)


class BatchSums(NamedTuple):
    """The columns of ``BATCH_SUMS``."""

    topic: str
    partition: int
    stretch: int
    batches: int
    findings: int
    odd: int
    fewest: int
    most: int
    control: int
    numbered: int

    @property
    def place(self) -> Stretch:
        return Stretch(self.topic, self.partition, self.stretch)


def odd_stretches(
    sums: Iterable[StretchSums],
    ranges: Iterable[LogRange],
    control: Mapping[Stretch, int],
    *,
    length: int,
) -> set[Stretch]:
    """Stretches with a missing record or an unused offset.

    :param control: number of control records per stretch, which no reader sees.
    :param length: length of a stretch, in offsets.
    """
    known = {(one.topic, one.partition): one for one in ranges}
    by_place = {one.place: one for one in sums}
    odd = {
        place
        for place, one in by_place.items()
        if not _is_acknowledged_well(one, known.get((one.topic, one.partition)))
    }
    for one in known.values():
        if one.log_start is None or one.log_end is None or one.is_compacted:
            continue
        for stretch in range(one.log_start // length, -(-one.log_end // length)):
            place = Stretch(one.topic, one.partition, stretch)
            begin = max(one.log_start, stretch * length)
            end = min(one.log_end, (stretch + 1) * length)
            if not _is_whole(by_place.get(place), control.get(place, 0), begin, end):
                odd.add(place)
    # Compaction can only be judged over the whole partition.
    compacted = {(p.topic, p.partition) for p in odd if _is_compacted(known, p)}
    return odd | {place for place in by_place if place[:2] in compacted}


def _is_acknowledged_well(sums: StretchSums, known_range: LogRange | None) -> bool:
    """Whether all acknowledged records are there, once and unchanged."""
    if sums.acknowledged == 0:
        return sums.odd == 0
    if known_range is None or known_range.log_start is None or known_range.log_end is None:
        return False
    assert sums.first_acknowledged is not None
    return sums.odd == 0 and sums.first_acknowledged >= known_range.log_start


def _is_whole(sums: StretchSums | None, control: int, begin: int, end: int) -> bool:
    """Whether exactly the offsets from ``begin`` (inclusive) to ``end`` (exclusive) are used."""
    if sums is None or sums.first_record is None or sums.last_record is None:
        return control == end - begin
    is_within = begin <= sums.first_record and sums.last_record < end
    return is_within and sums.offsets + control == end - begin


def _is_compacted(known: Mapping[Partition, LogRange], place: Stretch) -> bool:
    known_range = known.get((place.topic, place.partition))
    return known_range is not None and known_range.is_compacted


def ranges_from_first_of(ranges: Iterable[LogRange], sums: Iterable[StretchSums]) -> list[LogRange]:
    """Ranges extended to the first record of a table, if that is before the log's current start."""
    first: dict[Partition, int] = {}
    for one in sums:
        if one.first_record is not None:
            place = (one.topic, one.partition)
            first[place] = min(first.get(place, one.first_record), one.first_record)

    def since(one: LogRange) -> LogRange:
        begun = first.get((one.topic, one.partition))
        if begun is None or one.log_start is None:
            return one if begun is None else one._replace(log_start=begun)
        return one._replace(log_start=min(one.log_start, begun))

    return [since(one) for one in ranges]


def odd_replicas(
    sums: Iterable[BatchSums], asked: Sequence[Partition], *, passed_over: Iterable[str]
) -> set[Partition]:
    """Partitions whose replicas may differ, according to the sums.

    :param asked: the partition of each replica that was read.
    :param passed_over: topics whose replicas are compacted independently.
    """
    replicas: dict[Partition, int] = defaultdict(int)
    for partition in asked:
        replicas[partition] += 1
    left_out = frozenset(passed_over)
    return {
        (one.topic, one.partition)
        for one in sums
        if one.topic not in left_out
        and (
            one.odd
            or one.findings
            or not one.fewest == one.most == replicas[one.topic, one.partition]
        )
    }
