"""Which replica lives in which directory, on its way to the controller, as a pure machine.

* The last wish for a replica wins; a wish that is on its way already is not repeated.
* One request is on its way at a time, with at most ``max_batch`` wishes, grouped by directory.
* Wishes gather for ``gather_ms`` before they are sent, unless they fill a batch.
* What was refused, or lost with its request, is sent again after a back-off, for as long as this
  broker hosts the replica.
* A wish is told to be accepted only while it is the last one: the late success of an older wish
  says nothing about what is wished now.

``assignments_manager.py`` is the driver.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from kraftjbod.core.errors import InvalidTransition
from kraftjbod.core.ids import DirectoryId, TopicId, TopicIdPartition
from kraftjbod.core.timing import ExponentialBackoff
from kraftjbod.protocol.rpc_messages import AssignedDirectory, AssignedTopic

MAX_ASSIGNMENTS_PER_REQUEST: Final = 2_250


@dataclass(frozen=True, slots=True, kw_only=True)
class Wished:
    """The replica is in ``directory_id``, and metadata says otherwise."""

    partition: TopicIdPartition
    directory_id: DirectoryId


@dataclass(frozen=True, slots=True)
class WokeUp:
    """The instant of the last ``WakeAt`` has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """The request is through; all its wishes are granted but the ``refused`` ones."""

    refused: frozenset[TopicIdPartition]


@dataclass(frozen=True, slots=True)
class Failed:
    """The request as a whole was refused, or nobody answered."""


Event = Wished | WokeUp | Answered | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Send:
    directories: tuple[AssignedDirectory, ...]


@dataclass(frozen=True, slots=True)
class WakeAt:
    """Replaces the ``WakeAt`` before it."""

    at_ms: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """The controller knows these as they are wished now."""

    partitions: tuple[TopicIdPartition, ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """This broker hosts these no more, so their wishes are not sent."""

    partitions: tuple[TopicIdPartition, ...]


Action = Send | WakeAt | Accepted | Dropped


class AssignmentsState:
    """``handle(event, now_ms)`` gives what is to be done.

    ``is_replica`` says whether this broker still hosts a partition, according to its metadata.

    :raises InvalidTransition: from ``handle``, if an answer comes that nobody waits for.
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
        #: In a row.
        self._failures = 0
        #: Whether a ``WakeAt`` is out.
        self._is_waking = False

    def __repr__(self) -> str:
        return f"<AssignmentsState ready={len(self._ready)} in_flight={len(self._in_flight)}>"

    @property
    def queued(self) -> int:
        """Replicas whose directory the controller does not know yet."""
        return len(self._ready) + sum(1 for key in self._in_flight if key not in self._ready)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued; cheaper than counting, and asked after each wish."""
        return not self._ready and not self._in_flight

    def queued_into(self, directory_id: DirectoryId) -> int:
        """Replicas that are wished into ``directory_id``, which the controller may not know."""
        wished = {**self._in_flight, **self._ready}
        return sum(1 for wish in wished.values() if wish == directory_id)

    def check_invariants(self) -> None:
        assert len(self._in_flight) <= self._max_batch, self
        assert not self._ready or self._in_flight or self._is_waking, self

    def handle(self, event: Event, now_ms: int) -> list[Action]:
        match event:
            case Wished():
                return self._wished(event, now_ms)
            case WokeUp():
                self._is_waking = False
                return self._send()
            case Answered():
                return self._answered(event.refused, now_ms)
            case Failed():
                return self._answered(frozenset(self._in_flight), now_ms)
            case _:
                assert_never(event)

    def _wished(self, wish: Wished, now_ms: int) -> list[Action]:
        if self._in_flight.get(wish.partition) == wish.directory_id:
            # Under way already; a wish that came between is taken back.
            self._ready.pop(wish.partition, None)
            return []
        self._ready[wish.partition] = wish.directory_id
        if self._in_flight:
            return []
        if len(self._ready) >= self._max_batch and not self._failures:
            return self._send()
        if self._is_waking:
            return []
        return self._wake_after(self._gather_ms, now_ms)

    def _wake_after(self, wait_ms: int, now_ms: int) -> list[Action]:
        self._is_waking = True
        return [WakeAt(now_ms + wait_ms)]

    def _send(self) -> list[Action]:
        if self._in_flight:
            return []
        dropped: list[TopicIdPartition] = []
        while self._ready and not self._in_flight:
            for partition in tuple(itertools.islice(self._ready, self._max_batch)):
                directory_id = self._ready.pop(partition)
                if self._is_replica(partition):
                    self._in_flight[partition] = directory_id
                else:
                    dropped.append(partition)
        actions: list[Action] = [Dropped(tuple(dropped))] if dropped else []
        if self._in_flight:
            actions.append(Send(directories=_grouped(self._in_flight)))
        return actions

    def _answered(self, refused: frozenset[TopicIdPartition], now_ms: int) -> list[Action]:
        if not self._in_flight:
            raise InvalidTransition(f"an answer, but {self!r} asked nothing")
        answered, self._in_flight = self._in_flight, {}
        accepted = tuple(p for p in answered if p not in refused and p not in self._ready)
        for partition in answered:
            if partition in refused:
                self._ready.setdefault(partition, answered[partition])
        actions: list[Action] = [Accepted(accepted)] if accepted else []
        self._failures = self._failures + 1 if refused else 0
        if refused:
            return actions + self._wake_after(self._backoff.wait_ms(self._failures), now_ms)
        return actions + self._send()


def _grouped(wishes: dict[TopicIdPartition, DirectoryId]) -> tuple[AssignedDirectory, ...]:
    by_directory: dict[DirectoryId, dict[TopicId, list[int]]] = {}
    for (topic_id, index), directory_id in wishes.items():
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
