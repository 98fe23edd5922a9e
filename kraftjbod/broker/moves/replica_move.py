"""LOOP. ``ReplicaMove``: the run-time state of one move between two directories.

It joins the state machine, the task, the progress and the pauses of a move.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kraftjbod.broker.moves.replica_move_state import MovePhase, ReplicaMoveState
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica
from kraftjbod.core.ids import TopicPartition
from kraftjbod.storage.log_dirs.log_dir import LogDir


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProgress:
    """The progress of one move.

    ``copied_bytes`` counts the bytes copied by this process. ``lag`` is the number of offsets that
    the future copy lacks; -1 before the first step.
    """

    topic_partition: TopicPartition
    source: LogDir
    target: LogDir
    phase: MovePhase
    copied_bytes: int
    lag: int


class ReplicaMove:
    """One running move of a replica between two directories: its state machine, its task, and its
    progress. Only ``ReplicaAlterLogDirsManager`` uses it.
    """

    def __init__(
        self, replica: HostedReplica, source: LogDir, target: LogDir, state: ReplicaMoveState
    ) -> None:
        self.replica = replica
        self.source = source
        self.target = target
        self.state = state
        self.task: asyncio.Task[None] | None = None
        #: The task has started.
        self.is_begun = False
        #: Ends the present pause.
        self.changed = asyncio.Event()
        #: Cleared while the copies are swapped.
        self.is_settled = asyncio.Event()
        self.is_settled.set()
        self.copied_bytes = 0
        self.lag = -1
        #: Consecutive failures.
        self.failures = 0
        #: Remove the future copy after all operations of the move have ended.
        self.drops_future = False
        #: The replica is no longer served from the source.
        self.was_source_left = False
        #: Time of the last progress; None while it waits for a thread.
        self._progress_at_ms: int | None = None
        self._is_stall_reported = False

    def __repr__(self) -> str:
        return f"<ReplicaMove {self.topic_partition} {self.state!r}>"

    @property
    def topic_partition(self) -> TopicPartition:
        return self.replica.topic_partition

    @property
    def is_swapping(self) -> bool:
        return self.state.phase is MovePhase.SWAPPING

    @property
    def progress(self) -> MoveProgress:
        return MoveProgress(
            topic_partition=self.topic_partition,
            source=self.source,
            target=self.target,
            phase=self.state.phase,
            copied_bytes=self.copied_bytes,
            lag=self.lag,
        )

    def note_progress(self, now_ms: int) -> None:
        self._progress_at_ms = now_ms
        self._is_stall_reported = False

    def has_stalled(self, now_ms: int, after_ms: int) -> bool:
        """Return whether the move has made no progress for ``after_ms`` until ``now_ms``
        (monotonic); True only once per such stall. False while the move waits for a thread, and
        after its end.
        """
        since_ms = self._progress_at_ms
        if since_ms is None or self._is_stall_reported or self.state.is_over:
            return False
        self._is_stall_reported = now_ms - since_ms >= after_ms
        return self._is_stall_reported

    async def pause(self, wait_ms: int) -> None:
        """Wait for ``wait_ms``, or until ``changed`` is set. Clears ``changed`` afterwards."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self.changed.wait()
        except TimeoutError:
            return
        finally:
            self.changed.clear()
