"""PURE. The state machine of pending replica-to-directory assignments.

* The last assignment of a replica wins. An assignment that is already in flight is not repeated.
* One request is in flight at a time, with at most ``max_batch`` assignments, grouped by directory.
* Assignments are gathered for ``gather_ms`` before they are sent, unless they fill a batch.
* A refused assignment is sent again after its own backoff, as long as this broker hosts the
  replica. It delays no other assignment. After several refusals the broker no longer waits for it.
* A request that failed as a whole delays all assignments for a backoff.
* An assignment is reported as accepted only while it is the latest one of its replica.
* LOST is not withdrawn: a lost or incomplete copy must leave the ISR before a new one can join. A
  later assignment is sent once the controller has accepted LOST.

``assignments_manager.py`` is the driver.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from kraftjbod.core.errors import InvalidTransition
from kraftjbod.core.ids import LOST_DIR, DirectoryId, TopicId, TopicIdPartition
from kraftjbod.core.loop.timing import ExponentialBackoff
from kraftjbod.protocol.rpc_messages import AssignedDirectory, AssignedTopic

#: The controller decides a request in one event loop iteration, in about 35 ms for this number.
#: Kafka sends 2,250 at once, which is four times as long.
MAX_ASSIGNMENTS_PER_REQUEST: Final = 500
#: After more consecutive refusals the broker does not wait for an assignment, but still sends it.
MAX_REFUSALS_AWAITED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentRequested:
    """Event: the broker wants to report that the replica is, or will be, in ``directory_id``."""

    partition: TopicIdPartition
    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class WokeUp:
    """Event: the time of the last ``WakeAt`` action has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Event: the controller answered the request in flight. It accepted all assignments of that
    request except those of the replicas in ``refused``, which are sent again after a pause.
    """

    refused: frozenset[TopicIdPartition]


@dataclass(frozen=True, slots=True)
class Failed:
    """Event: the request in flight was refused as a whole, or had no response in time. After a
    pause its assignments are sent again, unless newer ones replace them.
    """


Event = AssignmentRequested | WokeUp | Answered | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    """Action: send one AssignReplicasToDirs request with the assignments in ``directories``.
    ``Answered`` or ``Failed`` must follow.
    """

    directories: tuple[AssignedDirectory, ...]


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Action: pass ``WokeUp`` to the state machine at ``at_ms`` (monotonic). Replaces the previous
    ``WakeAt``.
    """

    at_ms: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """Action: call and drop the callbacks of these replicas: the controller has accepted their
    latest assignments.
    """

    partitions: tuple[TopicIdPartition, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Action: drop the callbacks of these replicas without a call: this broker no longer hosts
    them.
    """

    partitions: tuple[TopicIdPartition, ...]


Action = Send | WakeAt | Accepted | Dropped


@dataclass(slots=True, kw_only=True)
class _Refusal:
    """An assignment that was refused ``times`` times in a row and is due again at ``due_ms``."""

    directory_id: DirectoryId
    times: int
    due_ms: int


class AssignmentsState:
    """The state machine of AssignReplicasToDirs requests.

    ``handle(event, now_ms)`` returns the actions to perform.

    :param is_replica: returns whether this broker hosts a partition according to the metadata.
    :param backoff: delays before a refused assignment, and before any request after a failed one.
    :param gather_ms: time from the first assignment to its request, unless they fill a batch.
    :param max_batch: maximum number of assignments per request.
    :raises InvalidTransition: from ``handle``: a response arrived without a request in flight.
    """

    def __init__(
        self,
        *,
        is_replica: Callable[[TopicIdPartition], bool],
        backoff: ExponentialBackoff,
        gather_ms: int = 20,
        max_batch: int = MAX_ASSIGNMENTS_PER_REQUEST,
    ) -> None:
        self._is_replica = is_replica
        self._backoff = backoff
        self._gather_ms = gather_ms
        self._max_batch = max_batch
        #: In order of arrival.
        self._ready: dict[TopicIdPartition, DirectoryId] = {}
        self._in_flight: dict[TopicIdPartition, DirectoryId] = {}
        #: Later assignments of replicas with a pending LOST.
        self._after_lost: dict[TopicIdPartition, DirectoryId] = {}
        #: Assignments whose last response was a refusal.
        self._refusals: dict[TopicIdPartition, _Refusal] = {}
        #: Refused assignments that wait for their backoff.
        self._held: dict[TopicIdPartition, _Refusal] = {}
        #: Consecutive failed requests, and the time of the next attempt.
        self._failures = self._resume_ms = 0
        #: Time of the pending ``WakeAt``; None if there is none.
        self._wake_ms: int | None = None

    def __repr__(self) -> str:
        return (
            f"<AssignmentsState ready={len(self._ready)} in_flight={len(self._in_flight)} "
            f"held={len(self._held)} after_lost={len(self._after_lost)}>"
        )

    @property
    def queued(self) -> int:
        """Number of replicas whose latest assignment the controller has not accepted yet."""
        return len(self._latest_assignments())

    @property
    def is_idle(self) -> bool:
        """Whether no assignment is pending, except those with more than ``MAX_REFUSALS_AWAITED``
        refusals in a row."""
        if self._ready or self._in_flight:
            # Called for each assignment, so it stops at the first one to wait for.
            return all(map(self._is_hopeless, itertools.chain(self._in_flight, self._ready)))
        return all(map(self._is_hopeless, self._held))

    def queued_into(self, directory_id: DirectoryId) -> int:
        """Return the number of replicas whose latest pending assignment is ``directory_id``."""
        return sum(
            1 for assigned in self._latest_assignments().values() if assigned == directory_id
        )

    def is_queued(self, partition: TopicIdPartition) -> bool:
        """Return whether an assignment of the replica is pending."""
        return any(
            partition in assignments for assignments in (self._ready, self._in_flight, self._held)
        )

    def is_losing(self, partition: TopicIdPartition) -> bool:
        """Return whether a LOST assignment of the replica is pending."""
        return LOST_DIR in (
            self._ready.get(partition),
            self._in_flight.get(partition),
            self._held[partition].directory_id if partition in self._held else None,
        )

    def _latest_assignments(self) -> dict[TopicIdPartition, DirectoryId]:
        held = {partition: refusal.directory_id for partition, refusal in self._held.items()}
        return {**held, **self._in_flight, **self._ready, **self._after_lost}

    def _is_hopeless(self, partition: TopicIdPartition) -> bool:
        refusal = self._refusals.get(partition)
        return refusal is not None and refusal.times > MAX_REFUSALS_AWAITED

    def check_invariants(self) -> None:
        assert len(self._in_flight) <= self._max_batch, self
        assert not self._held.keys() - self._refusals.keys(), self
        assert all(map(self.is_losing, self._after_lost)), self
        has_work = bool(self._ready or self._held)
        assert not has_work or self._in_flight or self._wake_ms is not None, self

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        match event:
            case AssignmentRequested():
                return self._on_assignment_requested(event, now_ms)
            case WokeUp():
                self._wake_ms = None
                return self._send(now_ms)
            case Answered():
                return self._answered(event.refused, now_ms)
            case Failed():
                return self._failed(now_ms)
            case _:
                assert_never(event)

    def _on_assignment_requested(self, assigned: AssignmentRequested, now_ms: int) -> list[Action]:
        partition, directory_id = assigned.partition, assigned.directory_id
        if self.is_losing(partition):
            self._after_lost.pop(partition, None)
            if directory_id != LOST_DIR:
                self._after_lost[partition] = directory_id
            return []
        if self._in_flight.get(partition) == directory_id:
            # Already in flight; drop an assignment that was made in between.
            self._ready.pop(partition, None)
            return []
        refusal = self._refusals.get(partition)
        if refusal is not None and refusal.directory_id == directory_id:
            if partition in self._held:
                return []  # The same assignment would be refused again.
        else:
            self._forget_refusal(partition)
        self._ready[partition] = directory_id
        if self._in_flight:
            return []
        if len(self._ready) >= self._max_batch:
            return self._send(now_ms)
        return self._wake_at(max(now_ms + self._gather_ms, self._resume_ms))

    def _wake_at(self, at_ms: int) -> list[Action]:
        if self._wake_ms is not None and self._wake_ms <= at_ms:
            return []
        self._wake_ms = at_ms
        return [WakeAt(at_ms)]

    def _send(self, now_ms: int) -> list[Action]:
        """Return the next request, or a time to wake at; nothing while a request is in flight."""
        if self._in_flight:
            return []
        self._release_held(now_ms)
        if now_ms < self._resume_ms:
            return self._wake_at(self._resume_ms)
        dropped: list[TopicIdPartition] = []
        while self._ready and not self._in_flight:
            for partition in tuple(itertools.islice(self._ready, self._max_batch)):
                directory_id = self._ready.pop(partition)
                if self._is_replica(partition):
                    self._in_flight[partition] = directory_id
                else:
                    dropped.append(partition)
                    self._after_lost.pop(partition, None)
                    self._forget_refusal(partition)
        actions: list[Action] = [Dropped(tuple(dropped))] if dropped else []
        if self._in_flight:
            actions.append(Send(directories=_grouped(self._in_flight)))
        elif self._held:
            actions += self._wake_at(min(refusal.due_ms for refusal in self._held.values()))
        return actions

    def _release_held(self, now_ms: int) -> None:
        for partition, refusal in list(self._held.items()):
            if refusal.due_ms <= now_ms:
                del self._held[partition]
                self._ready.setdefault(partition, refusal.directory_id)

    def _answered(self, refused: frozenset[TopicIdPartition], now_ms: int) -> list[Action]:
        answered, self._failures = self._take_answered(), 0
        for partition, directory_id in answered.items():
            is_known_lost = directory_id == LOST_DIR and partition not in refused
            if is_known_lost and partition in self._after_lost:
                self._ready[partition] = self._after_lost.pop(partition)
        accepted = tuple(p for p in answered if p not in refused and p not in self._ready)
        for partition, directory_id in answered.items():
            if partition not in refused:
                if partition not in self._ready:
                    self._forget_refusal(partition)
            elif self._ready.get(partition, directory_id) == directory_id:
                self._ready.pop(partition, None)
                self._refuse(partition, directory_id, now_ms)
        actions: list[Action] = [Accepted(accepted)] if accepted else []
        return actions + self._send(now_ms)

    def _failed(self, now_ms: int) -> list[Action]:
        for partition, directory_id in self._take_answered().items():
            self._ready.setdefault(partition, directory_id)
        self._failures += 1
        self._resume_ms = now_ms + self._backoff.wait_ms(self._failures)
        return self._send(now_ms)

    def _take_answered(self) -> dict[TopicIdPartition, DirectoryId]:
        if not self._in_flight:
            raise InvalidTransition(f"an answer, but {self!r} asked nothing")
        answered, self._in_flight = self._in_flight, {}
        return answered

    def _refuse(self, partition: TopicIdPartition, directory_id: DirectoryId, now_ms: int) -> None:
        before = self._refusals.get(partition)
        times = 1 if before is None else before.times + 1
        refusal = _Refusal(
            directory_id=directory_id, times=times, due_ms=now_ms + self._backoff.wait_ms(times)
        )
        self._refusals[partition] = self._held[partition] = refusal

    def _forget_refusal(self, partition: TopicIdPartition) -> None:
        self._refusals.pop(partition, None)
        self._held.pop(partition, None)


def _grouped(assignments: dict[TopicIdPartition, DirectoryId]) -> tuple[AssignedDirectory, ...]:
    by_directory: dict[DirectoryId, dict[TopicId, list[int]]] = {}
    for (topic_id, index), directory_id in assignments.items():
        by_directory.setdefault(directory_id, {}).setdefault(topic_id, []).append(index)
    return tuple(
        AssignedDirectory(
            directory_id=directory_id,
            topics=tuple(
                AssignedTopic(topic_id=topic_id, partitions=tuple(sorted(partitions)))
                for topic_id, partitions in topics.items()
            ),
        )
        for directory_id, topics in by_directory.items()
    )
