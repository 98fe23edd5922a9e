"""How evenly disks of several sizes fill, by bytes and by Kafka's count of partitions.

A simulation creates thousands of partitions one after the other. Their sizes are heavy-tailed
(Pareto) and unknown when they are placed, since each partition grows at its own rate afterwards.
The simulation ends when the first disk is full. The second case creates all partitions at once on
empty disks. This is the worst case, because the reservation of a segment each says little about the
later sizes.

The rule by bytes is the product's ``choose_dir``. The other rule is Kafka's: the directory with the
fewest partitions.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from kraftjbod.core.ids import DirectoryId
from kraftjbod.storage.log_dirs.log_dir_policy import DirCandidate, choose_dir
from tests.bench.figures import Report

GIB: Final = 1024**3
TIB: Final = 1024 * GIB
SIZES: Final = (TIB, 2 * TIB, 4 * TIB, 8 * TIB)
SEGMENT_BYTES: Final = GIB
SEEDS: Final = range(8)
AT_ONCE: Final = 3_000
#: Time in which a partition grows, measured in creations of other partitions.
_GROWS_FOR: Final = 400
_MEAN_BYTES: Final = 4 * GIB
#: Of a Pareto distribution: a fifth of the partitions has most of the bytes.
_TAIL: Final = 1.3
_LARGEST_BYTES: Final = 256 * GIB


@dataclass(slots=True)
class Disk:
    total_bytes: int
    used_bytes: int = 0
    partitions: int = 0
    #: Present and final bytes of each partition that still grows.
    growing: list[list[int]] = field(default_factory=list)
    #: Bytes reserved for partitions that do not grow any more.
    idle_promises: int = 0

    @property
    def fill(self) -> float:
        return self.used_bytes / self.total_bytes

    @property
    def promised_bytes(self) -> int:
        """Reserved bytes: the rest of a segment for each partition."""
        return self.idle_promises + sum(max(0, SEGMENT_BYTES - has) for has, _ in self.growing)

    def take(self, wants_bytes: int) -> None:
        self.partitions += 1
        self.growing.append([0, wants_bytes])

    def grow(self) -> None:
        """Let each partition grow by one step."""
        still = []
        for partition in self.growing:
            has, wants = partition
            more = min(wants - has, max(1, wants // _GROWS_FOR))
            partition[0] += more
            self.used_bytes += more
            if partition[0] < wants:
                still.append(partition)
            else:
                self.idle_promises += max(0, SEGMENT_BYTES - wants)
        self.growing = still


Rule = Callable[[Sequence[Disk]], Disk]


def by_bytes(disks: Sequence[Disk]) -> Disk:
    """The product's rule."""
    chosen = choose_dir(
        [
            DirCandidate(
                directory_id=_id(index),
                usable_bytes=disk.total_bytes - disk.used_bytes,
                promised_bytes=disk.promised_bytes,
                replicas=disk.partitions,
            )
            for index, disk in enumerate(disks)
        ]
    )
    return next(disk for index, disk in enumerate(disks) if _id(index) == chosen)


def by_count(disks: Sequence[Disk]) -> Disk:
    """Kafka's rule."""
    return min(disks, key=lambda disk: disk.partitions)


def _id(index: int) -> DirectoryId:
    return DirectoryId((200 + index).to_bytes(16, "big"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The fill of the disks when the first one is full, as fractions of their sizes."""

    partitions: int
    fills: tuple[float, ...]
    used: float

    @property
    def spread(self) -> float:
        return max(self.fills) - min(self.fills)


def fill_until_one_is_full(
    rule: Rule, *, seed: int, sizes: Sequence[int] = SIZES, at_once: int = 0
) -> Outcome:
    """Create partitions by ``rule`` until a disk has no free space left.

    :param at_once: number of partitions that are created before any partition grows. The others are
        created after these have grown.
    """
    draw = random.Random(seed)
    disks = [Disk(size) for size in sizes]
    scale = _MEAN_BYTES * (_TAIL - 1) / _TAIL
    steps = 0
    while max(disk.fill for disk in disks) < 1:
        steps += 1
        if not at_once <= steps < at_once + _GROWS_FOR or not at_once:
            wanted = min(_LARGEST_BYTES, int(scale * draw.paretovariate(_TAIL)))
            rule(disks).take(wanted)
        if steps >= at_once:
            for disk in disks:
                disk.grow()
    return Outcome(
        partitions=sum(disk.partitions for disk in disks),
        fills=tuple(disk.fill for disk in disks),
        used=sum(disk.used_bytes for disk in disks) / sum(sizes),
    )


def heterogeneous_disks(report: Report) -> None:
    """Both rules on disks of 1, 2, 4 and 8 TiB, over several draws of sizes."""
    for story, at_once in (("one after the other", 0), (f"{AT_ONCE:,} at once", AT_ONCE)):
        ours, theirs = (
            [fill_until_one_is_full(rule, seed=seed, at_once=at_once) for seed in SEEDS]
            for rule in (by_bytes, by_count)
        )
        what = f"placement on 1, 2, 4 and 8 TiB, {story}"
        used = [100 * outcome.used for outcome in ours]
        report.add(
            f"{what}: used of all bytes when the first is full",
            _mean(used),
            "%",
            beside=f"by count {_mean([100 * outcome.used for outcome in theirs]):.1f} %",
            how=f"{len(ours)} draws, at worst {min(used):.1f} %",
        )
        spread = [100 * outcome.spread for outcome in ours]
        report.add(
            f"{what}: fullest less emptiest",
            _mean(spread),
            "%",
            beside=f"by count {_mean([100 * outcome.spread for outcome in theirs]):.1f} %",
            how=f"at worst {max(spread):.1f} %",
        )
        report.add(
            f"{what}: partitions until then",
            _mean([outcome.partitions for outcome in ours]),
            "partitions",
            beside=f"by count {_mean([outcome.partitions for outcome in theirs]):.0f}",
        )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
