"""WIRE. Which brokers the partitions of a topic go to when a tool proposes: Kafka's round robin.

* Each broker leads as many partitions as any other, give or take one.
* The followers of partitions with one leader spread over all other brokers.
* Where brokers have racks (KIP-36), no rack holds two replicas before each rack holds one.

What lies on the brokers already, and how big it is, does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import chain, count, zip_longest

from kraftjbod.cli.reassignment.reassignment_plan import ReassignmentError


def assign_replicas(
    racks: Mapping[int, str | None],
    *,
    partitions: int,
    replication_factor: int,
    random_below: Callable[[int], int],
) -> list[tuple[int, ...]]:
    """The brokers of each partition from 0 on.

    :param racks: by broker; all None where racks do not count.
    :param random_below: a number >= 0 and below the one given: where to start, so that not every
        topic begins on the first broker.
    :raises ReassignmentError: if there are too few brokers, or only some have a rack.
    """
    if replication_factor > len(racks):
        raise ReassignmentError(
            f"Replication factor: {replication_factor} larger than available brokers: {len(racks)}."
        )
    brokers = _by_alternating_rack(racks)
    start, first_shift = random_below(len(brokers)), random_below(len(brokers))
    proposed = []
    for partition in range(partitions):
        shift = first_shift + partition // len(brokers)
        candidates = _candidates(brokers, (start + partition) % len(brokers), shift, racks)
        proposed.append(_spread(candidates, racks, replication_factor))
    return proposed


def _by_alternating_rack(racks: Mapping[int, str | None]) -> list[int]:
    """One broker of each rack in turn; just by id where there are no racks."""
    rackless = sorted(broker for broker, rack in racks.items() if rack is None)
    if rackless and len(rackless) != len(racks):
        raise ReassignmentError(
            "Not all brokers have rack information. Add --disable-rack-aware in command line to"
            " make replica assignment without rack information."
        )
    by_rack = [
        sorted(broker for broker, own in racks.items() if own == rack)
        for rack in sorted({rack for rack in racks.values() if rack is not None})
    ]
    turns = chain.from_iterable(zip_longest(*by_rack))
    return rackless or [broker for broker in turns if broker is not None]


def _candidates(
    brokers: list[int], first: int, shift: int, racks: Mapping[int, str | None]
) -> Iterable[int]:
    """The leader, then every other broker, over and over; ``shift`` says who follows first."""
    yield brokers[first]
    others = len(brokers) - 1
    # Shifting by one would put the next broker's rack where this one's was.
    step = shift * len(set(racks.values()))
    for index in count() if others else ():
        yield brokers[(first + 1 + (step + index) % others) % len(brokers)]


def _spread(
    candidates: Iterable[int], racks: Mapping[int, str | None], replication_factor: int
) -> tuple[int, ...]:
    chosen: list[int] = []
    rack_count = len(set(racks.values()))
    for broker in candidates:
        used_racks = {racks[other] for other in chosen}
        has_fresh_rack = racks[broker] not in used_racks or len(used_racks) == rack_count
        if broker not in chosen and has_fresh_rack:
            chosen.append(broker)
        if len(chosen) == replication_factor:
            break
    return tuple(chosen)
