"""LOOP. ``ReplicaMove``: one move between two directories as its driver sees it.

The state decides, the task carries out, the rest is what others want to know of a move, and how a
move waits.
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
    """Where one move stands.

    ``copied_bytes`` counts what this process copied; ``lag`` is how many offsets the future copy
    lacks, -1 before the first step.
    """

    topic_partition: TopicPartition
    source: LogDir
    target: LogDir
    phase: MovePhase
    copied_bytes: int
    lag: int


class ReplicaMove:
    """Belongs to the ``ReplicaAlterLogDirsManager``."""

    def __init__(
        self, replica: HostedReplica, source: LogDir, target: LogDir, state: ReplicaMoveState
    ) -> None:
        self.replica = replica
        self.source = source
        self.target = target
        self.state = state
        self.task: asyncio.Task[None] | None = None
        #: The task has taken its first step.
        self.is_begun = False
        #: Ends the present pause.
        self.changed = asyncio.Event()
        #: Not set while the copies change places.
        self.is_settled = asyncio.Event()
        self.is_settled.set()
        self.copied_bytes = 0
        self.lag = -1
        #: In a row.
        self.failures = 0
        #: The future copy goes when nothing is under way any more.
        self.drops_future = False
        #: The replica is served from elsewhere now, or from nowhere.
        self.was_source_left = False
        #: When it last came further; None while it waits for its turn.
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
        """True once per time that it has not come further for ``after_ms``."""
        since_ms = self._progress_at_ms
        if since_ms is None or self._is_stall_reported or self.state.is_over:
            return False
        self._is_stall_reported = now_ms - since_ms >= after_ms
        return self._is_stall_reported

    async def pause(self, wait_ms: int) -> None:
        """Until there is something to look at, at most ``wait_ms``."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await self.changed.wait()
        except TimeoutError:
            return
        finally:
            self.changed.clear()
