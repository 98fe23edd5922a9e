"""WIRE. Proposes brokers for the partitions of a topic, by Kafka's round-robin assignment.

* All brokers lead the same number of partitions, plus or minus one.
* The followers of one leader's partitions are spread over all other brokers.
* With racks (KIP-36), no rack has two replicas before each rack has one.

Existing replicas and their sizes are not considered.
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
    """Return the brokers of each partition, the preferred leader first, by partition index.

    :param racks: rack by broker; all None to ignore racks.
    :param random_below: return a random number from 0 to the argument, exclusive. It selects the
        leader of partition 0 and the shift of the followers, so that topics begin on different
        brokers.
    :raises ReassignmentError: the brokers are too few, or only some of them have a rack.
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
    """Return the brokers in an order in which racks alternate; without racks, by id.

    :raises ReassignmentError: only some brokers have a rack.
    """
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
    """Yield the leader, then all other brokers repeatedly; ``shift`` selects the first of the
    others."""
    yield brokers[first]
    others = len(brokers) - 1
    # A shift by one would also move each follower to the next rack. A multiple of the number of
    # racks changes the brokers only.
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
