"""LOOP. ``AssignmentsManager``: performs the actions of ``assignments_state.py``.

There is no event queue between the two, so ``queued`` counts an assignment from the call of
``assign`` on. The broker cannot seem idle while an assignment is on the way to the state machine.

A caller may pass a callback. The callback is dropped with its assignment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import assert_never

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.assignments_state import (
    MAX_ASSIGNMENTS_PER_REQUEST,
    Accepted,
    Answered,
    AssignmentRequested,
    AssignmentsState,
    Dropped,
    Event,
    Failed,
    Send,
    WakeAt,
    WokeUp,
)
from kraftjbod.broker.cluster.controller_channel import ControllerChannel
from kraftjbod.core.errors import OperatingError
from kraftjbod.core.ids import BrokerEpoch, BrokerId, DirectoryId, TopicIdPartition
from kraftjbod.core.loop.timing import Clock, ExponentialBackoff
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.protocol.rpc_messages import AssignedDirectory, AssignReplicasToDirsRequest


class AssignmentsManager:
    """Reports the directories of replicas to the controller (AssignReplicasToDirs).

    Call ``assign(partition, directory_id, on_accepted)`` on the event loop. ``queued`` counts the
    assignments that the controller has not accepted yet. ``await idle()`` waits for all but those
    that were refused repeatedly. ``await close()`` drops the rest.
    """

    def __init__(
        self,
        *,
        broker_id: BrokerId,
        broker_epoch: Callable[[], BrokerEpoch],
        is_replica: Callable[[TopicIdPartition], bool],
        channel: ControllerChannel,
        clock: Clock,
        random_unit: Callable[[], float],
        metrics: Metrics,
        request_timeout_ms: int = 2_000,
        gather_ms: int = 20,
        max_batch: int = MAX_ASSIGNMENTS_PER_REQUEST,
        backoff_ms: int = 100,
        backoff_max_ms: int = 10_000,
    ) -> None:
        """Create the manager.

        :param is_replica: returns whether the metadata still has the partition's replica on this
            broker.
        """
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._channel = channel
        self._clock = clock
        self._request_timeout_ms = request_timeout_ms
        self._state = AssignmentsState(
            is_replica=is_replica,
            backoff=ExponentialBackoff(
                initial_ms=backoff_ms, max_ms=backoff_max_ms, random_unit=random_unit
            ),
            gather_ms=gather_ms,
            max_batch=max_batch,
        )
        #: Callbacks for the latest assignment of each replica.
        self._on_accepted: dict[TopicIdPartition, Callable[[], None]] = {}
        self._tasks = BackgroundTasks()
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_closed = False
        self._log = get_logger(component="assignments", broker_id=broker_id)
        #: Number of refusals by the controller; each refused assignment is sent again.
        self._refusals = 0
        metrics.gauge("QueuedReplicaToDirAssignments", lambda: self.queued)
        metrics.gauge("RefusedReplicaToDirAssignments", lambda: self._refusals)

    def __repr__(self) -> str:
        return f"<AssignmentsManager {self._state!r}>"

    @property
    def queued(self) -> int:
        """Number of replicas whose latest report the controller has not accepted yet."""
        return self._state.queued

    def assign(
        self,
        partition: TopicIdPartition,
        directory_id: DirectoryId,
        on_accepted: Callable[[], None] | None = None,
    ) -> None:
        """Queue the report that the replica is, or will be, in ``directory_id``. Never blocks.

        The report replaces an earlier one, except that it is sent after a pending report of LOST.

        :param on_accepted: called once when the controller has accepted the report. Never called if
            another report for the replica replaces it, the replica leaves this broker, or the
            manager closes.
        """
        if on_accepted is None:
            self._on_accepted.pop(partition, None)
        else:
            self._on_accepted[partition] = on_accepted
        self._handle(AssignmentRequested(partition=partition, directory_id=directory_id))

    def is_queued(self, partition: TopicIdPartition) -> bool:
        """Return whether a report of the replica's directory is pending."""
        return self._state.is_queued(partition)

    def is_losing(self, partition: TopicIdPartition) -> bool:
        """Return whether a report that the replica is LOST is still pending."""
        return self._state.is_losing(partition)

    def queued_into(self, directory_id: DirectoryId) -> int:
        """Return the number of replicas whose pending report names ``directory_id``."""
        return self._state.queued_into(directory_id)

    async def idle(self) -> None:
        """Wait until the controller has accepted all reports, except those that it refused more
        than ``MAX_REFUSALS_AWAITED`` times in a row. They are still sent again.
        """
        await self._idle.wait()

    async def close(self) -> None:
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    def _handle(self, event: Event) -> None:
        if self._is_closed:
            return
        called: list[Callable[[], None]] = []
        for action in self._state.handle(event, self._clock.now_ms()):
            match action:
                case Send():
                    self._tasks.start(self._send(action.directories), "assign_replicas_to_dirs")
                case WakeAt():
                    self._wake_at(action.at_ms)
                case Accepted(partitions):
                    called += self._take_callbacks(partitions)
                case Dropped(partitions):
                    self._take_callbacks(partitions)
                case _:
                    assert_never(action)
        if self._state.is_idle:
            self._idle.set()
        else:
            self._idle.clear()
        # Last, because a callback may assign again.
        for on_accepted in called:
            on_accepted()

    def _take_callbacks(self, partitions: Iterable[TopicIdPartition]) -> list[Callable[[], None]]:
        found = (self._on_accepted.pop(partition, None) for partition in partitions)
        return [on_accepted for on_accepted in found if on_accepted is not None]

    def _wake_at(self, at_ms: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        delay_s = max(0, at_ms - self._clock.now_ms()) / 1000
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._handle, WokeUp())

    async def _send(self, directories: tuple[AssignedDirectory, ...]) -> None:
        request = AssignReplicasToDirsRequest(
            broker_id=self._broker_id,
            broker_epoch=self._broker_epoch(),
            directories=directories,
        )
        try:
            response = await self._channel.call(request, timeout_ms=self._request_timeout_ms)
        except OperatingError as e:
            self._log.warning("replica_assignments_failed", code=e.code.name, reason=str(e))
            self._handle(Failed())
            return
        self._refusals += len(response.refused)
        for refused in response.refused:
            self._log.warning(
                "replica_assignment_refused",
                partition=str(TopicIdPartition(refused.topic_id, refused.partition)),
                code=refused.error_code.name,
            )
        self._handle(
            Answered(
                refused=frozenset(
                    TopicIdPartition(r.topic_id, r.partition) for r in response.refused
                )
            )
        )
