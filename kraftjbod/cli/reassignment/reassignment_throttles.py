"""WIRE. Sets and removes throttles of replicas and brokers for moves between brokers (KIP-73).

A throttle is a list of replicas per topic, for leaders and for followers, and a rate per broker. As
with Kafka's tool, every broker that has or receives a partition gets the rate. Throttles are set
before any move starts, and removed when all moves are done.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, ClusterMetadata
from kraftjbod.cli.clients.config_admin import (
    ConfigChange,
    ConfigOperation,
    ConfigResource,
    ResourceType,
    describe_configs,
    incremental_alter_configs,
)
from kraftjbod.cli.reassignment.reassignment_plan import ReassignmentPlan
from kraftjbod.cli.terminal.command import Answer
from kraftjbod.core.errors import ErrorCode, OperatingError
from kraftjbod.core.ids import TopicPartition

LEADER_REPLICAS: Final = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS: Final = "follower.replication.throttled.replicas"
LEADER_RATE: Final = "leader.replication.throttled.rate"
FOLLOWER_RATE: Final = "follower.replication.throttled.rate"
MOVER_RATE: Final = "replica.alter.log.dirs.io.max.bytes.per.second"

TOPIC_THROTTLES: Final = (LEADER_REPLICAS, FOLLOWER_REPLICAS)
BROKER_THROTTLES: Final = (LEADER_RATE, FOLLOWER_RATE, MOVER_RATE)

_POLLS_OF_RATES: Final = 100
_BETWEEN_POLLS_S: Final = 0.1
_MUST_VERIFY: Final = (
    "Warning: You must run --verify periodically, until the reassignment completes, to ensure the"
    " throttle is removed."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionMove:
    """The brokers that send the data of one partition, and the brokers that receive it."""

    sources: frozenset[int]
    destinations: frozenset[int]


Moves = Mapping[TopicPartition, PartitionMove]


def plan_moves(
    running: Moves,
    proposed: Mapping[TopicPartition, Sequence[int]],
    current: Mapping[TopicPartition, Sequence[int]],
) -> dict[TopicPartition, PartitionMove]:
    """Return all moves once ``proposed`` has started, including the ``running`` ones.

    A partition that is being reassigned keeps its original sources.
    """
    moves = dict(running)
    for partition, brokers in proposed.items():
        known = running.get(partition)
        sources = known.sources if known else frozenset(current[partition])
        moves[partition] = PartitionMove(sources=sources, destinations=frozenset(brokers) - sources)
    return moves


def topic_throttles(moves: Moves) -> dict[str, dict[str, str]]:
    """Return the throttled replicas as ``partition:broker,...`` by topic and configuration key.

    The keys are :data:`LEADER_REPLICAS`, with the brokers that send, and :data:`FOLLOWER_REPLICAS`,
    with the brokers that receive.
    """
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
    """Return all brokers that send or receive, sorted."""
    return sorted(
        {broker for move in moves.values() for broker in move.sources | move.destinations}
    )


def _listed(replicas: Iterable[tuple[int, int]]) -> str:
    return ",".join(f"{partition}:{broker}" for partition, broker in sorted(replicas))


# --- what changes the cluster -------------------------------------------------------------------


async def set_throttles(
    client: ClusterClient,
    answer: Answer,
    moves: Moves,
    *,
    rate: int | None,
    movers: Iterable[int],
    mover_rate: int | None,
) -> None:
    """Limit moves between brokers to ``rate``, and moves between directories to ``mover_rate``.

    Rates are in bytes per second; None leaves them unchanged. The call waits until all running
    brokers apply the new rates.

    :param movers: brokers whose moves between directories are limited.
    :raises OperatingError: REQUEST_TIMED_OUT: a running broker does not apply its rates.
    """
    if rate is not None or mover_rate is not None:
        answer.say(_MUST_VERIFY)
    if rate is not None:
        await _configure(client, ResourceType.TOPIC, topic_throttles(moves))
        rates = {LEADER_RATE: str(rate), FOLLOWER_RATE: str(rate)}
        await _slow_down(client, {str(broker): rates for broker in moving_brokers(moves)})
        answer.say(f"The inter-broker throttle limit was set to {rate} B/s", throttle=rate)
    if mover_rate is not None:
        rates = {MOVER_RATE: str(mover_rate)}
        await _slow_down(client, {str(broker): rates for broker in movers})
        answer.say(
            f"The replica-alter-dir throttle limit was set to {mover_rate} B/s",
            replicaAlterLogDirsThrottle=mover_rate,
        )


async def clear_throttles(
    client: ClusterClient, answer: Answer, plan: ReassignmentPlan, metadata: ClusterMetadata
) -> None:
    """Remove the throttles of the plan's topics and the rates of all brokers.

    An earlier call may have set the rate of any broker.
    """
    brokers = sorted({*metadata.brokers, *plan.brokers})
    answer.say(
        f"Clearing broker-level throttles on broker{_s(brokers)} {_joined(brokers)}",
        clearedBrokers=brokers,
    )
    none = dict.fromkeys(BROKER_THROTTLES)
    await _configure(client, ResourceType.BROKER, {str(broker): none for broker in brokers})
    topics = [topic for topic in plan.topics if metadata.topics[topic].partitions]
    if topics:
        answer.say(
            f"Clearing topic-level throttles on topic{_s(topics)} {_joined(topics)}",
            clearedTopics=topics,
        )
        none = dict.fromkeys(TOPIC_THROTTLES)
        await _configure(client, ResourceType.TOPIC, dict.fromkeys(topics, none))


async def _slow_down(client: ClusterClient, rates: Mapping[str, Mapping[str, str]]) -> None:
    await _configure(client, ResourceType.BROKER, rates)
    await _until_in_force(client, rates)


async def _configure(
    client: ClusterClient,
    kind: ResourceType,
    settings: Mapping[str, Mapping[str, str | None]],
) -> None:
    """Set configuration keys by resource name; None deletes a key."""
    changes = {
        ConfigResource(kind, name): [
            ConfigChange(
                key, value, ConfigOperation.DELETE if value is None else ConfigOperation.SET
            )
            for key, value in values.items()
        ]
        for name, values in settings.items()
    }
    if changes:
        await client.retry(lambda: incremental_alter_configs(client, changes))


async def _until_in_force(client: ClusterClient, settings: Mapping[str, Mapping[str, str]]) -> None:
    """Wait until all running brokers apply their rates, before any move starts.

    :raises OperatingError: REQUEST_TIMED_OUT: a running broker does not apply its rates.
    """
    metadata = await client.retry(client.refresh_metadata)
    running = {name: rates for name, rates in settings.items() if int(name) in metadata.brokers}
    resources = [ConfigResource(ResourceType.BROKER, name) for name in running]
    for _ in range(_POLLS_OF_RATES):
        configured = await client.retry(lambda: describe_configs(client, resources))
        if all(
            (entry := configured[resource].get(key)) is not None and entry.value == rate
            for resource in resources
            for key, rate in running[resource.name].items()
        ):
            return
        await asyncio.sleep(_BETWEEN_POLLS_S)
    raise OperatingError(
        f"brokers {', '.join(running)} have not taken their throttle over; nothing was moved",
        code=ErrorCode.REQUEST_TIMED_OUT,
    )


def _s(things: Sequence[object]) -> str:
    return "" if len(things) == 1 else "s"


def _joined(values: Iterable[object]) -> str:
    return ",".join(map(str, values))
