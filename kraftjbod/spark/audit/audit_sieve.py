"""PURE. Selects the stretches and replicas that an audit must examine, by their sums.

A partition is checked in stretches of offsets. The executors compute sums of each stretch in one
pass (``STRETCH_SUMS``, ``BATCH_SUMS``). The sums clear a stretch if every offset has one record,
every acknowledgement its record, and all replicas the same batches. The functions of this file
return the other stretches, called odd, which the rules of audit_frames.py and replica_frames.py
examine.

The selection may include correct stretches, but never omits an incorrect one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

Partition = tuple[str, int]


class LogRange(NamedTuple):
    """The existing offsets of one partition, from ``log_start`` to before ``log_end``: a row of
    ``LOG_RANGES``. Both are None if the partition has no leader.
    """

    topic: str
    partition: int
    log_start: int | None
    log_end: int | None
    is_compacted: bool


class Stretch(NamedTuple):
    """The number of a range of offsets in a partition.

    The first offset is ``stretch`` times the length that all stretches have.
    """

    topic: str
    partition: int
    stretch: int


class StretchSums(NamedTuple):
    """The sums over the acknowledgements and records of one stretch, a row of ``STRETCH_SUMS``.

    ``acknowledged`` counts acknowledgements, ``plain`` those without a CRC, and ``nameless`` those
    without a producer or sequence. ``records`` counts records, ``offsets`` the offsets that have
    one, and ``odd`` the offsets with several acknowledgements or with repeated, missing or changed
    records. The last three fields are offsets; None without such a row.
    """

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
    """The sums over the batches of all replicas in one stretch, a row of ``BATCH_SUMS``.

    ``batches`` counts valid batches, ``findings`` damaged or unread ones, ``odd`` the offsets at
    which batches differ, and ``numbered`` the leaders' batches with a producer id. ``fewest`` and
    ``most`` are numbers of replicas with a batch at one offset. ``control`` counts the offsets of
    control records.
    """

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
    """Return the stretches that may have a missing or changed record, or an unused offset.

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
    """Return whether the sums prove that all acknowledged records exist, once and unchanged."""
    if sums.acknowledged == 0:
        return sums.odd == 0
    if known_range is None or known_range.log_start is None or known_range.log_end is None:
        return False
    assert sums.first_acknowledged is not None
    return sums.odd == 0 and sums.first_acknowledged >= known_range.log_start


def _is_whole(sums: StretchSums | None, control: int, begin: int, end: int) -> bool:
    """Return whether exactly the offsets from ``begin`` (inclusive) to ``end`` (exclusive) are
    used.

    :param control: number of offsets that control records use.
    """
    if sums is None or sums.first_record is None or sums.last_record is None:
        return control == end - begin
    is_within = begin <= sums.first_record and sums.last_record < end
    return is_within and sums.offsets + control == end - begin


def _is_compacted(known: Mapping[Partition, LogRange], place: Stretch) -> bool:
    known_range = known.get((place.topic, place.partition))
    return known_range is not None and known_range.is_compacted


def ranges_from_first_of(ranges: Iterable[LogRange], sums: Iterable[StretchSums]) -> list[LogRange]:
    """Return ``ranges``, each extended to the first record of a table.

    A table may have records from before the current start of a log.
    """
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
    """Return the partitions whose replicas may differ, according to the sums.

    :param asked: the partition of each replica that was read, with repetitions.
    :param passed_over: topics that are skipped, because their replicas are compacted independently.
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
