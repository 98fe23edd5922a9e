"""Which replicas and brokers are slowed down while replicas move between brokers (KIP-73).

A throttle is a list of replicas per topic, read by leaders and by followers, and a rate per
broker. Every broker that holds or receives a partition gets the rate, as Kafka's tool does it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kraftjbod.core.ids import TopicPartition

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
MOVER_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"

TOPIC_THROTTLES: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
BROKER_THROTTLES: Final = (LEADER_RATE, FOLLOWER_RATE, MOVER_RATE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMove:
    """Brokers that hold a partition, and brokers that shall receive it."""

    sources: frozenset[int]
    destinations: frozenset[int]


Moves = Mapping[TopicPartition, PartitionMove]


def plan_moves(
    running: Moves,
    proposed: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
) -> dict[TopicPartition, PartitionMove]:
    """What will move once ``proposed`` is under way, beside what is ``running`` already.

    A partition that is being reassigned has the sources that it had before that.
    """
    moves = dict(running)
    for partition, brokers in proposed.items():
        known = running.get(partition)
        sources = known.sources if known else frozenset(current[partition])
        moves[partition] = PartitionMove(sources=sources, destinations=frozenset(brokers) - sources)
    return moves


def topic_throttles(moves: Moves) -> dict[str, dict[str, str]]:
    """Configurations by topic: ``partition:broker,...`` of the senders and of the receivers."""
    leaders: dict[str, set[tuple[int, int]]] = defaultdict(set)
    followers: dict[str, set[tuple[int, int]]] = defaultdict(set)
    for (topic, partition), move in moves.items():
        leaders[topic] |= {(partition, broker) for broker in move.sources}
        followers[topic] |= {(partition, broker) for broker in move.destinations}
    return {
        topic: {LEADER_REPLICAS: _listed(leaders[topic]), FOLLOWER_REPLICAS: _listed(listed)}
        for topic, listed in sorted(followers.items())
    }


def moving_brokers(moves: Moves) -> list[int]:
    """Whoever sends or receives."""
    return sorted(
        {broker for move in moves.values() for broker in move.sources | move.destinations}
    )


def _listed(replicas: Iterable[tuple[int, int]]) -> str:
    return ",".join(f"{partition}:{broker}" for partition, broker in sorted(replicas))
