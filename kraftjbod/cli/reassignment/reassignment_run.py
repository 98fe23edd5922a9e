"""WIRE. The actions of ``kraftjbod-reassign-partitions``, one function each.

The output is the lines of Kafka's tool, or the same values in JSON. All checks come before the
first change. If a later step fails, completed changes are reported before the error.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from kraftjbod.cli.clients.cluster_client import ClusterClient, ClusterMetadata
from kraftjbod.cli.clients.replica_admin import (
    LogDirDescription,
    Reassignment,
    Refusals,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    describe_log_dirs,
    list_partition_reassignments,
)
from kraftjbod.cli.reassignment.rack_aware_assignment import assign_replicas
from kraftjbod.cli.reassignment.reassignment_plan import (
    ReassignmentError,
    ReassignmentPlan,
    Replica,
)
from kraftjbod.cli.reassignment.reassignment_progress import Copying, brokers_to_ask, copies
from kraftjbod.cli.reassignment.reassignment_status import (
    LogDirs,
    MoveState,
    Ongoing,
    ids_by_path,
    joined,
    locate,
    move_states,
    named,
    named_replica,
    ongoing_line,
    partition_states,
    replicas_of,
    require_targets,
    resolve,
)
from kraftjbod.cli.reassignment.reassignment_throttles import (
    PartitionMove,
    clear_throttles,
    plan_moves,
    set_throttles,
)
from kraftjbod.cli.terminal.command import Answer, report
from kraftjbod.core.errors import ErrorCode, KraftJbodError, OperatingError
from kraftjbod.core.ids import ANY_DIRECTORY, TopicPartition

#: Interval of requests for a replica that its broker does not have yet (KIP-113).
_ASK_AGAIN_MS: Final = 100

_EXISTING: Final = (
    "Cannot execute because there is an existing partition assignment.  Use --additional to"
    " override this and create a new partition assignment in addition to the existing one. The"
    " --additional flag can also be used to change the throttle by resubmitting the current"
    " reassignment."
)


class RefusedError(KraftJbodError):
    """The cluster refuses the request, or its state does not allow it; see the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecuteOptions:
    """Options of --execute. Rates are in bytes per second; None leaves them unchanged.

    ``timeout_ms`` limits the time in which moves of replicas that their brokers do not have yet are
    requested again.
    """

    timeout_ms: int
    throttle: int | None = None
    mover_throttle: int | None = None
    is_additional: bool = False
    allow_replication_factor_change: bool = True


async def generate(
    client: ClusterClient,
    answer: Answer,
    topics: Sequence[str],
    brokers: Sequence[int],
    *,
    is_rack_aware: bool,
    random_below: Callable[[int], int],
) -> None:
    """Print the current replicas of ``topics``, and a proposal that spreads them over ``brokers``.

    :raises ReassignmentError: a topic or broker does not exist, or the brokers do not suffice.
    """
    metadata = await client.retry(partial(client.refresh_metadata, topics))
    _require_brokers(brokers, metadata)
    current: dict[TopicPartition, tuple[int, ...]] = {}
    proposed: dict[TopicPartition, tuple[int, ...]] = {}
    for topic in topics:
        here = _replicas_of_topic(metadata, topic)
        placed = assign_replicas(
            {
                broker: metadata.brokers[broker].rack if is_rack_aware else None
                for broker in brokers
            },
            partitions=len(here),
            replication_factor=len(next(iter(here.values()))),
            random_below=random_below,
        )
        current |= here
        proposed |= dict(zip(here, placed, strict=True))
    shown = await _with_real_dirs(client, current)
    plan = ReassignmentPlan(replicas=proposed)
    answer.say(
        f"Current partition replica assignment\n{shown.as_json()}\n", current=shown.document()
    )
    answer.say(
        f"Proposed partition reassignment configuration\n{plan.as_json()}",
        proposed=plan.document(),
    )


async def execute(
    client: ClusterClient, answer: Answer, plan: ReassignmentPlan, options: ExecuteOptions
) -> None:
    """Start all moves of ``plan``: between brokers first, then between directories.

    Moves that have started continue after an error.

    :raises RefusedError: the cluster refuses the moves, others are running, or a move between
        directories did not start within ``options.timeout_ms``.
    :raises ReassignmentError: the plan is impossible, or a broker refuses a move between
        directories.
    :raises OperatingError: a running broker does not apply a throttle; nothing was moved.
    """
    ongoing = await _ongoing(client)
    if ongoing and not options.is_additional:
        raise RefusedError(_EXISTING)
    metadata = await client.retry(partial(client.refresh_metadata, plan.topics))
    current = _current(metadata, plan)
    # An existing replica on a broker that is not alive may stay there.
    _require_brokers(_newcomers(plan, current), metadata)
    found = await _log_dirs(client, _brokers_with_targets(plan))
    plan = resolve(plan, found)
    require_targets(plan, found)
    before = await _with_real_dirs(client, current)
    answer.say(
        f"Current partition replica assignment\n\n{before.as_json()}\n\n"
        "Save this to use as the --reassignment-json-file option during rollback",
        current=before.document(),
    )
    await set_throttles(
        client,
        answer,
        plan_moves(_running(ongoing), plan.replicas, current),
        rate=options.throttle,
        movers=_brokers_with_targets(plan),
        mover_rate=options.mover_throttle,
    )
    refusals = await client.retry(
        lambda: alter_partition_reassignments(
            client,
            _reassignments(plan, current, found),
            allow_replication_factor_change=options.allow_replication_factor_change,
        )
    )
    _raise_refusals("Error reassigning partition(s):", refusals)
    answer.say(
        f"Successfully started partition reassignment{_s(plan.replicas)} for"
        f" {joined(sorted(plan.replicas))}",
        startedPartitions=[named(partition) for partition in sorted(plan.replicas)],
    )
    await _start_moves(client, answer, plan.log_dirs, options.timeout_ms)


async def verify(
    client: ClusterClient, answer: Answer, plan: ReassignmentPlan, *, preserve_throttles: bool
) -> None:
    """Print the progress of each move of ``plan``.

    The throttles are removed if no reassignment runs in the whole cluster and no move of ``plan``
    between directories is in progress.

    :param preserve_throttles: whether to keep the throttles in any case.
    :raises OperatingError: the cluster does not respond, or refuses a request.
    """
    ongoing = await _ongoing(client)
    metadata = await client.retry(partial(client.refresh_metadata, plan.topics))
    answer.say("Status of partition reassignment:", partitions=[], moves=[])
    for state in partition_states(plan, ongoing, metadata):
        answer.say(str(state), partitions=[state.document()])
    moves = await _move_states(client, plan)
    answer.say("\n".join(map(str, moves)), moves=[move.document() for move in moves])
    if not ongoing and all(move.is_done for move in moves) and not preserve_throttles:
        await clear_throttles(client, answer, plan, metadata)


async def cancel(
    client: ClusterClient,
    answer: Answer,
    plan: ReassignmentPlan,
    *,
    preserve_throttles: bool,
    timeout_ms: int,
) -> None:
    """Cancel the moves of ``plan`` that are in progress, and remove the throttles.

    :param preserve_throttles: whether to keep the throttles.
    :param timeout_ms: time limit for brokers to end moves between directories.
    :raises RefusedError: the cluster refuses, or the time limit is exceeded.
    """
    metadata = await client.retry(partial(client.refresh_metadata, plan.topics))
    active = sorted(plan.replicas.keys() & await _ongoing(client))
    if active:
        cancelled = [Reassignment(topic_partition=partition, replicas=None) for partition in active]
        refusals = await client.retry(lambda: alter_partition_reassignments(client, cancelled))
        _raise_refusals(f"Error cancelling partition reassignment{_s(refusals)} for:", refusals)
        answer.say(
            f"Successfully cancelled partition reassignment{_s(active)} for: {joined(active)}",
            cancelledPartitions=[named(partition) for partition in active],
        )
    else:
        answer.say(
            "None of the specified partition reassignments are active.", cancelledPartitions=[]
        )
    found = await _log_dirs(client, _brokers_with_targets(plan))
    moves = move_states(resolve(plan, found), found)
    # A request for the replica's present directory ends its move.
    back = {
        move.replica: move.located.current_dir
        for move in moves
        if move.is_active and move.located.current_dir is not None
    }
    if back:
        await _start_moves(client, answer, back, timeout_ms)
    else:
        answer.say("None of the specified partition moves are active.", startedMoves=[])
    await _forget_targets(client, moves, found)
    if not preserve_throttles:
        await clear_throttles(client, answer, plan, metadata)


async def copies_under_way(client: ClusterClient, plan: ReassignmentPlan) -> list[Copying]:
    """Return the copies of ``plan`` in progress, with their sizes; empty if no copy is in
    progress."""
    ongoing = await _ongoing(client)
    metadata = await client.retry(partial(client.refresh_metadata, plan.topics))
    brokers = brokers_to_ask(plan, ongoing, metadata)
    found = await _log_dirs(client, brokers)
    return copies(plan, ongoing, metadata, found)


async def list_ongoing(client: ClusterClient, answer: Answer) -> None:
    """Print all running reassignments of the cluster."""
    ongoing = await _ongoing(client)
    found = "Current partition reassignments:" if ongoing else "No partition reassignments found."
    answer.say(found, reassignments=[])
    for partition, reassignment in sorted(ongoing.items()):
        document = named(partition) | reassignment.document()
        answer.say(ongoing_line(partition, reassignment), reassignments=[document])


# --- requests to the cluster ---------------------------------------------------------------------


async def _ongoing(client: ClusterClient) -> Ongoing:
    return await client.retry(lambda: list_partition_reassignments(client))


async def _log_dirs(client: ClusterClient, brokers: Iterable[int]) -> LogDirs:
    """Return the directories of ``brokers``; the request to each broker is retried separately."""
    asked = list(brokers)
    answers = await asyncio.gather(
        *(client.retry(partial(describe_log_dirs, client, broker)) for broker in asked)
    )
    return dict(zip(asked, answers, strict=True))


async def _move_states(client: ClusterClient, plan: ReassignmentPlan) -> list[MoveState]:
    found = await _log_dirs(client, _brokers_with_targets(plan))
    return move_states(resolve(plan, found), found)


async def _with_real_dirs(
    client: ClusterClient, current: Mapping[TopicPartition, tuple[int, ...]]
) -> ReassignmentPlan:
    """Return ``current`` with the current directories of the replicas, for a rollback."""

    async def ask(broker: int) -> Sequence[LogDirDescription]:
        try:
            return await describe_log_dirs(client, broker)
        except OperatingError as e:
            unknown = f"broker {broker} does not report its log directories: {e.message}"
            report(f"{unknown}; they are shown as {ANY_DIRECTORY}")
            return ()

    plan = ReassignmentPlan(replicas=current)
    answers = await asyncio.gather(*map(ask, plan.brokers))
    located = locate(dict(zip(plan.brokers, answers, strict=True)))
    log_dirs = {
        replica: place.current_dir
        for replica, place in located.items()
        if place.current_dir is not None
    }
    return ReassignmentPlan(replicas=current, log_dirs=log_dirs)


def _brokers_with_targets(plan: ReassignmentPlan) -> list[int]:
    return sorted({replica.broker_id for replica in plan.log_dirs})


def _newcomers(
    plan: ReassignmentPlan, current: Mapping[TopicPartition, tuple[int, ...]]
) -> list[int]:
    """Return the brokers that get a new replica, and those with target directories."""
    targets = {
        broker
        for partition, replicas in plan.replicas.items()
        for broker in replicas
        if broker not in current[partition]
    }
    return sorted(targets.union(_brokers_with_targets(plan)))


def _require_brokers(brokers: Iterable[int], metadata: ClusterMetadata) -> None:
    for broker in brokers:
        if broker not in metadata.brokers:
            raise ReassignmentError(f"Unknown broker id {broker}")


def _replicas_of_topic(
    metadata: ClusterMetadata, name: str
) -> dict[TopicPartition, tuple[int, ...]]:
    topic = metadata.topics.get(name)
    if topic is None or topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        raise ReassignmentError(f"Topic {name} not found.")
    return {
        TopicPartition(name, index): partition.replicas
        for index, partition in metadata.topic(name).partitions.items()
    }


def _current(
    metadata: ClusterMetadata, plan: ReassignmentPlan
) -> dict[TopicPartition, tuple[int, ...]]:
    for topic in plan.topics:
        _replicas_of_topic(metadata, topic)
    current = {partition: replicas_of(metadata, partition) for partition in plan.replicas}
    missing = [str(partition) for partition, replicas in current.items() if not replicas]
    if missing:
        raise ReassignmentError(f"Unable to find partition: {', '.join(missing)}")
    return current


# --- what changes the cluster -------------------------------------------------------------------


def _reassignments(
    plan: ReassignmentPlan, current: Mapping[TopicPartition, tuple[int, ...]], found: LogDirs
) -> list[Reassignment]:
    """Return the requests of ``plan``, with directory ids as targets if the broker supports
    them."""
    ids = {broker: ids_by_path(log_dirs) for broker, log_dirs in found.items()}

    def target(partition: TopicPartition, broker: int) -> str:
        path = plan.log_dirs.get(Replica(broker, *partition))
        known = ids.get(broker, {}).get(path) if path else None
        if known is None or broker in current[partition]:
            return ANY_DIRECTORY
        return known.reference

    return [
        Reassignment(
            topic_partition=partition,
            replicas=replicas,
            target_dirs=[target(partition, broker) for broker in replicas],
        )
        for partition, replicas in sorted(plan.replicas.items())
    ]


async def _start_moves(
    client: ClusterClient, answer: Answer, targets: Mapping[Replica, str], timeout_ms: int
) -> None:
    """Request each move until its broker has the replica and has started the move (KIP-113).

    :raises RefusedError: some moves did not start within ``timeout_ms``.
    """
    pending = dict(targets)
    deadline = time.monotonic() + timeout_ms / 1000
    while pending:
        for replica in await _ask_to_move(client, pending):
            path = pending.pop(replica)
            answer.say(
                f"Successfully started moving log directory to {path} for replica"
                f" {replica.topic_partition} with broker {replica.broker_id}",
                startedMoves=[named_replica(replica) | {"logDir": path}],
            )
        if pending and time.monotonic() >= deadline:
            raise RefusedError(
                f"Timed out before log directory move{_s(pending)} could be started for:"
                f" {joined(sorted(pending))}"
            )
        if pending:
            await asyncio.sleep(_ASK_AGAIN_MS / 1000)


async def _forget_targets(
    client: ClusterClient, moves: Iterable[MoveState], found: LogDirs
) -> None:
    """Clear the target directories that brokers remember for replicas that they do not have.

    Kafka's brokers have no request for that.
    """
    targets = {
        move.replica: ANY_DIRECTORY
        for move in moves
        if move.located.current_dir is None and ids_by_path(found[move.replica.broker_id])
    }
    await _ask_to_move(client, targets)


async def _ask_to_move(client: ClusterClient, targets: Mapping[Replica, str]) -> list[Replica]:
    """Request moves between directories; return the replicas whose moves have started.

    :raises ReassignmentError: a broker refused a move permanently; names the first one.
    """
    by_broker: dict[int, dict[str, list[TopicPartition]]] = defaultdict(lambda: defaultdict(list))
    for replica, target in targets.items():
        by_broker[replica.broker_id][target].append(replica.topic_partition)
    answers = await asyncio.gather(
        *(alter_replica_log_dirs(client, broker, moves) for broker, moves in by_broker.items())
    )
    refusals = {
        Replica(broker, *partition): refusal
        for broker, refused in zip(by_broker, answers, strict=True)
        for partition, refusal in refused.items()
    }
    for replica, refusal in sorted(refusals.items()):
        if refusal.code != ErrorCode.REPLICA_NOT_AVAILABLE:
            raise ReassignmentError(f"Failed to alter dir for {replica}: {refusal.message}")
    return sorted(targets.keys() - refusals.keys())


def _running(ongoing: Ongoing) -> dict[TopicPartition, PartitionMove]:
    return {
        partition: PartitionMove(
            sources=frozenset(known.replicas) - frozenset(known.adding),
            destinations=frozenset(known.adding),
        )
        for partition, known in ongoing.items()
    }


def _raise_refusals(what: str, refusals: Refusals) -> None:
    if refusals:
        refused = [f"{partition}: {e.message}" for partition, e in sorted(refusals.items())]
        raise RefusedError(f"{what} {'; '.join(refused)}")


def _s(things: Sequence[object] | Mapping[TopicPartition, object] | Mapping[Replica, str]) -> str:
    return "" if len(things) == 1 else "s"
