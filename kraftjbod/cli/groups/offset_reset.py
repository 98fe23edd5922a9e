"""PURE. The offsets that a reset sets: scenarios, scopes and the CSV file, as in Kafka's tool."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from kraftjbod.core.errors import KraftJbodError
from kraftjbod.core.ids import TopicPartition

_DURATION: Final = re.compile(
    r"(?P<sign>-?)P(?:(?P<days>-?\d+)D)?"
    r"(?:T(?:(?P<hours>-?\d+)H)?(?:(?P<minutes>-?\d+)M)?(?:(?P<seconds>-?\d+(?:\.\d+)?)S)?)?"
)
_FIELDS: Final = 3


class OffsetResetError(KraftJbodError):
    """An option or a file with offsets is malformed, or an offset cannot be determined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The log start offset and the high watermark of a partition."""

    earliest: int
    latest: int

    def clamp(self, offset: int) -> int:
        return max(self.earliest, min(offset, self.latest))


class _Lines(list[str]):
    """A list that a CSV writer can write to."""

    def write(self, text: str) -> None:
        self.append(text)


def parse_scope(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Parse ``topic`` or ``topic:0,1`` to topic and partitions; None for all partitions.

    :raises OffsetResetError: the text has another form.
    """
    topic, colon, numbers = text.partition(":")
    if not colon:
        return topic, None
    parts = numbers.split(",")
    if not topic or not all(part.strip().isdigit() for part in parts):
        raise OffsetResetError(f"{text!r}: write topic, or topic:0,1,2")
    return topic, tuple(int(part) for part in parts)


def parse_instant_ms(text: str) -> int:
    """Parse ``YYYY-MM-DDThh:mm:ss.sss``, with a zone or in UTC, to milliseconds since 1970.

    :raises OffsetResetError: the text has another form.
    """
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as e:
        raise OffsetResetError(f"{text!r}: write YYYY-MM-DDThh:mm:ss.sss") from e
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=UTC)
    return round(instant.timestamp() * 1000)


def parse_duration_ms(text: str) -> int:
    """Parse ``PnDTnHnMnS`` to milliseconds.

    :raises OffsetResetError: the text has another form.
    """
    found = _DURATION.fullmatch(text.upper())
    given = {} if found is None else found.groupdict()
    sign = given.pop("sign", "")
    parts = {unit: float(number) for unit, number in given.items() if number is not None}
    if not parts:
        raise OffsetResetError(f"{text!r}: write PnDTnHnMnS, PT1H30M for an hour and a half")
    return round(timedelta(**parts) / timedelta(milliseconds=1)) * (-1 if sign else 1)


def parse_file(text: str, groups: Collection[str]) -> dict[str, dict[TopicPartition, int]]:
    """Parse lines ``topic,partition,offset``, with the group in front if there are several groups.

    Lines of other groups than ``groups`` are ignored.

    :returns: the offsets by group and partition.
    :raises OffsetResetError: a malformed line; the message names it.
    """
    wanted: dict[str, dict[TopicPartition, int]] = {}
    for number, row in enumerate(csv.reader(text.splitlines()), start=1):
        if not row:
            continue
        *group, topic, partition, offset = row if len(row) >= _FIELDS else ["", "", ""]
        is_numbered = partition.isdigit() and offset.isdigit()
        if len(group) > 1 or not topic or not is_numbered or (not group and len(groups) != 1):
            raise OffsetResetError(
                f"line {number}: expected topic,partition,offset, with the group first if there "
                f"are several: {','.join(row)!r}"
            )
        name = group[0] if group else next(iter(groups))
        if name in groups:
            wanted.setdefault(name, {})[TopicPartition(topic, int(partition))] = int(offset)
    return wanted


def export(resets: Mapping[str, Mapping[TopicPartition, int]], *, has_several_groups: bool) -> str:
    """Return the new offsets as the text that :func:`parse_file` reads.

    :param has_several_groups: each line begins with the group. True if the command names several
        groups, even if all but one were refused: the same command reads the file later.
    """
    out = _Lines()
    writer = csv.writer(out, lineterminator="\n")
    for group, offsets in resets.items():
        for partition, offset in offsets.items():
            own = [group] if has_several_groups else []
            writer.writerow([*own, partition.topic, partition.partition, offset])
    return "".join(out)


def clamped(
    wanted: Mapping[TopicPartition, int],
    bounds: Mapping[TopicPartition, Bounds],
    report: Callable[[str], object],
) -> dict[TopicPartition, int]:
    """Return the offsets, limited to the bounds of their partitions.

    :param report: gets a line for each changed offset.
    """
    offsets = {}
    for partition, offset in wanted.items():
        within = offsets[partition] = bounds[partition].clamp(offset)
        if offset != within:
            side = "higher than latest" if offset > within else "lower than earliest"
            report(
                f"New offset ({offset}) is {side} offset for topic partition {partition}. "
                f"Value will be set to {within}"
            )
    return offsets


def shifted(
    committed: Mapping[TopicPartition, int],
    partitions: Iterable[TopicPartition],
    by: int,
    bounds: Mapping[TopicPartition, Bounds],
) -> dict[TopicPartition, int]:
    """Return the committed offsets plus ``by``, each limited to the bounds of its partition.

    :raises OffsetResetError: a partition has no committed offset.
    """
    wanted = {}
    for partition in partitions:
        if partition not in committed:
            raise OffsetResetError(
                f"Cannot shift offset for partition {partition} since there is no current "
                "committed offset"
            )
        wanted[partition] = bounds[partition].clamp(committed[partition] + by)
    return wanted
