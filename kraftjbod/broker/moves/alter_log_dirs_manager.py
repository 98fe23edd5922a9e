"""LOOP. ``ReplicaAlterLogDirsManager``: moves replicas between the directories of this broker.

Each move is one coroutine, :meth:`_move`, that follows KIP-113, "Complete replica data movement",
with the two steps of KIP-858, "Intra-broker replica movement". replica_move_state.py has the
transitions.

* A move uses one mover thread until its end. Moves without a thread wait in order.
* All moves share one rate limit. Only the last bytes, for which appends wait at the gate, ignore
  it.
* A move ends only between steps, so the copying thread never loses a file that it uses. Only
  waits are cut short.
* A move that a stop of the broker interrupts stays on the disks and resumes at the next start.
* A move without progress is logged once, and again after further progress and another stall.
* A move into a full directory ends and its copy is deleted, because the copy takes space there. A
  move out of a full directory continues. A move from or to a stalled directory pauses.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar, assert_never

from kraftjbod.broker.background import BackgroundTasks
from kraftjbod.broker.cluster.assignments_manager import AssignmentsManager
from kraftjbod.broker.following.replica_fetcher_manager import ReplicaFetcherManager
from kraftjbod.broker.moves.replica_move import MoveProgress, ReplicaMove
from kraftjbod.broker.moves.replica_move_state import (
    Action,
    AssignDirectory,
    AssignmentAccepted,
    Cancelled,
    CloseGateAndPromote,
    Copied,
    CopyOn,
    DropFuture,
    End,
    Event,
    MoveEnd,
    Promoted,
    ReplicaMoveState,
    ReportDirectory,
    SourceFailed,
    SourceStalled,
    SwapFailed,
    TargetFailed,
    TargetFilledUp,
    TargetStalled,
    Unwanted,
)
from kraftjbod.broker.replicas.hosted_replicas import HostedReplica, HostedReplicas
from kraftjbod.broker.replicas.replica_manager import ReplicaManager
from kraftjbod.broker.replicas.replica_removals import ReplicaRemovals
from kraftjbod.core import buggify
from kraftjbod.core.errors import LogDirImpairedError, OperatingError
from kraftjbod.core.ids import TopicPartition, Uuid
from kraftjbod.core.log_dir_state import LogDirState
from kraftjbod.core.loop.job_guard import JobGuard
from kraftjbod.core.loop.timing import Clock, ExponentialBackoff, TokenBucket
from kraftjbod.core.telemetry import Metrics, get_logger
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.manager.log_manager import LogManager
from kraftjbod.storage.moves.future_replica import CopyStep, FutureReplica
from kraftjbod.storage.moves.mover_pool import MoverPool
from kraftjbod.storage.replicas.requested_moves import RequestedMoves

T = TypeVar("T")

#: Limits of the bytes copied in one step; a low rate makes steps smaller. Steps should be few,
#: because the threads of moves and the event loop contend between steps.
_STEP_BYTES: Final = 64 * 1024 * 1024
_SMALLEST_STEP_BYTES: Final = 64 * 1024
#: First pause of a move that has caught up. The pause doubles while there is nothing to copy, up to
#: one slice.
_IDLE_MS: Final = 10
#: Limit of one sleep, after which a move checks the rate limit and stalled directories again.
_SLICE_MS: Final = 200
_WATCH_INTERVAL_MS: Final = 1_000
_LEAVES_SOURCE: Final = (MoveEnd.PROMOTED, MoveEnd.SOURCE_FAILED, MoveEnd.UNWANTED)


class ReplicaAlterLogDirsManager:
    """Moves replicas between the directories of this broker.

    Call ``start``, ``cancel``, ``resume``, ``end`` and ``cancel_in`` on the event loop; they do not
    wait. ``await swap_over(tp)`` and ``await ended(tp)`` wait for running operations. ``await
    close()`` interrupts them.
    """

    def __init__(
        self,
        *,
        replicas: HostedReplicas,
        replica_manager: ReplicaManager,
        removals: ReplicaRemovals,
        logs: LogManager,
        assignments: AssignmentsManager,
        requested_moves: RequestedMoves,
        fetchers: ReplicaFetcherManager,
        pool: MoverPool,
        clock: Clock,
        random_bytes: Callable[[int], bytes],
        backoff: ExponentialBackoff,
        metrics: Metrics,
        bytes_per_second: int,
        jobs: JobGuard,
        stalled_after_ms: int = 60_000,
    ) -> None:
        self._replicas = replicas
        self._replica_manager = replica_manager
        self._removals = removals
        self._logs = logs
        self._assignments = assignments
        self._requested_moves = requested_moves
        self._fetchers = fetchers
        self._pool = pool
        self._clock = clock
        self._random_bytes = random_bytes
        self._backoff = backoff
        self._metrics = metrics
        self._bucket = TokenBucket(bytes_per_second, clock.now_ms())
        self._stalled_after_ms = stalled_after_ms
        self._tasks = BackgroundTasks(jobs)
        #: The last move of each partition, until all its operations have ended.
        self._moves: dict[TopicPartition, ReplicaMove] = {}
        #: Partitions whose last move ended because a directory failed or was full.
        self._failed: set[TopicPartition] = set()
        self._watch: asyncio.TimerHandle | None = None
        self._longest_gate_ms = 0
        self._log = get_logger(component="alter_log_dirs")
        metrics.gauge("ReplicaAlterLogDirsPartitionCount", lambda: len(self.moves()))
        metrics.count("ReplicaAlterLogDirsBytes", 0)
        metrics.gauge("ReplicaAlterLogDirsFailedPartitionsCount", lambda: len(self._failed))
        metrics.gauge(
            "ReplicaAlterLogDirsMaxLag", lambda: max((m.lag for m in self.moves()), default=0)
        )
        metrics.gauge("ReplicaAlterLogDirsMaxGateMs", lambda: self._longest_gate_ms)

    def __repr__(self) -> str:
        return f"<ReplicaAlterLogDirsManager moves={len(self._moves)}>"

    # --- requests --------------------------------------------------------------------------------

    def start(self, replica: HostedReplica, target: LogDir) -> None:
        """Start to move an open replica to ``target``. Wait for :meth:`swap_over` first.

        A previous move to another target is cancelled. A previous move to ``target`` continues. If
        the replica is in ``target`` already, no move starts.
        """
        assert replica.handle is not None, replica
        tp, source = replica.topic_partition, replica.handle.log_dir
        running = self._running(tp)
        if running is not None and running.target is target:
            return
        self.cancel(tp)
        if source is not target:
            move_id = Uuid.random(self._random_bytes)
            self._begin(replica, source, target, move_id, is_accepted=False)
            self._log.info("replica_move_started", partition=str(tp), target=target.path)

    def cancel(self, topic_partition: TopicPartition) -> bool:
        """Cancel the replica's move, if any; return whether there was one. A swap of the copies
        that is running is not stopped: the move is cancelled only if it fails.
        """
        running = self._running(topic_partition)
        if running is not None:
            self._handle(running, Cancelled())
        return running is not None

    def resume(self, replica: HostedReplica, *, is_accepted: bool) -> None:
        """Resume a move that a restart interrupted, if a future copy exists and the move does not
        run.

        :param is_accepted: whether the metadata already assigns the replica to the target.
        """
        tp = replica.topic_partition
        future = self._logs.future(tp)
        if future is None or replica.handle is None or self._running(tp) is not None:
            return
        source, target = replica.handle.log_dir, future.log_dir
        self._begin(replica, source, target, future.move_id, is_accepted=is_accepted)
        self._log.info("replica_move_resumed", partition=str(tp), target=target.path)

    def end(self, topic_partition: TopicPartition) -> None:
        """End the move, if any, of a replica that is no longer hosted here, and delete the future
        copy. A swap of the copies that is running ends first (:meth:`ended`).
        """
        self._failed.discard(topic_partition)
        running = self._running(topic_partition)
        if running is not None:
            self._handle(running, Unwanted())

    def cancel_in(self, log_dir: LogDir) -> None:
        """End the moves from and to a failed directory, without touching files. A move that is
        swapping its copies is left alone, because the swap ends on its own.
        """
        for move in list(self._moves.values()):
            if move.is_swapping:
                continue  # The swap fails on its own and knows its progress.
            if move.source is log_dir:
                self._handle(move, SourceFailed())
            elif move.target is log_dir:
                self._handle(move, TargetFailed())

    def cancel_into(self, log_dir: LogDir) -> None:
        """End the moves into a full directory and free the space of their copies.

        A move that is swapping its copies also ends, unless the swap succeeds.
        """
        for move in list(self._moves.values()):
            if move.target is log_dir:
                self._handle(move, TargetFilledUp())

    def take_back_in(self, log_dir: LogDir) -> None:
        """Withdraw the assignments of moves from or to ``log_dir`` if it is stalled.

        The controller is notified that each of the replicas is still in its source.
        """
        for move in list(self._moves.values()):
            if log_dir in (move.source, move.target):
                self._take_back_if_stalled(move)

    def moves(self) -> list[MoveProgress]:
        """Return the progress of all moves, in the order of their start."""
        return [move.progress for move in self._moves.values() if not move.state.is_over]

    def set_rate(self, bytes_per_second: int) -> None:
        """Set the rate limit that all moves share."""
        self._bucket.set_rate(bytes_per_second, self._clock.now_ms())

    async def swap_over(self, topic_partition: TopicPartition) -> None:
        """Wait until the replica's copies are not being swapped, so that its directory is
        certain."""
        move = self._moves.get(topic_partition)
        if move is not None:
            await move.is_settled.wait()

    async def ended(self, topic_partition: TopicPartition) -> None:
        """Wait until no move uses the replica's files. A stop of the broker ends this wait."""
        while (move := self._moves.get(topic_partition)) is not None:
            assert move.task is not None
            if move.task.done():
                return  # The stop of the broker interrupted it.
            await asyncio.wait({move.task})

    async def close(self) -> None:
        """Interrupt all moves; they resume at the next start."""
        if self._watch is not None:
            self._watch.cancel()
        await self._tasks.close()
        self._pool.close()

    # --- one move --------------------------------------------------------------------------------

    def _running(self, topic_partition: TopicPartition) -> ReplicaMove | None:
        move = self._moves.get(topic_partition)
        return None if move is None or move.state.is_over else move

    def _begin(
        self,
        replica: HostedReplica,
        source: LogDir,
        target: LogDir,
        move_id: Uuid,
        *,
        is_accepted: bool,
    ) -> None:
        state = ReplicaMoveState(
            move_id=move_id,
            source=source.directory_id,
            target=target.directory_id,
            is_accepted=is_accepted,
        )
        move = ReplicaMove(replica, source, target, state)
        before = self._moves.get(move.topic_partition)
        self._moves[move.topic_partition] = move
        self._failed.discard(move.topic_partition)
        replica.is_assigned_by_move = is_accepted
        move.task = self._tasks.attempt(
            partial(self._run, move, None if before is None else before.task),
            f"replica-move-{move.topic_partition}",
        )
        if self._watch is None:
            self._watch_moves()

    async def _run(self, move: ReplicaMove, before: asyncio.Task[None] | None) -> None:
        move.is_begun = True
        try:
            if before is not None:
                await asyncio.wait({before})
            await self._tasks.jobs.keep("replica_move", partial(self._move, move))
        except asyncio.CancelledError:
            if not move.state.is_over:
                raise  # The broker stops.
        if before is not None:
            await asyncio.wait({before})
        if move.was_source_left:
            await self._forget_asking(move)
        if move.drops_future:
            await self._removals.drop_future(move.topic_partition)
        if self._moves.get(move.topic_partition) is move:
            del self._moves[move.topic_partition]

    async def _move(self, move: ReplicaMove) -> None:
        """Run one move to its end. The numbers are those of KIP-113, "Complete replica data
        movement"."""
        if move.state.is_over:
            return
        # 1. The replica tracks two logs.
        future = await self._future_of(move)
        # 2. If a thread is available it gets this replica, else the replica waits for one.
        async with self._pool.executor() as executor:
            move.note_progress(self._clock.now_ms())
            idle_ms = _IDLE_MS
            while not move.state.is_over:
                # 3. Data is copied, by the file and not faster than allowed.
                step = await self._copy(move, future, executor)
                if step is None:
                    continue
                if buggify.is_on and buggify.fires("broker.late_move_step"):
                    await asyncio.sleep(_IDLE_MS / 1000)
                # KIP-858: ask the controller after the first catch-up, and continue with step 3
                # meanwhile.
                if step.is_caught_up and not await self._noted(move):
                    continue
                self._handle(move, Copied(is_caught_up=step.is_caught_up))
                if move.is_swapping:
                    # 4. to 9. The controller has agreed, and the copy has caught up again.
                    await self._swap(move, executor)
                elif step.is_caught_up:
                    # The controller may be unavailable for long; its response ends the pause.
                    idle_ms = _IDLE_MS if step.copied_bytes else min(2 * idle_ms, _SLICE_MS)
                    await move.pause(idle_ms)

    async def _future_of(self, move: ReplicaMove) -> FutureReplica:
        """Return the future copy of this move. Create it, and remove a copy of another move, if
        needed."""
        tp = move.topic_partition
        while True:
            future = self._logs.future(tp)
            if future is not None and future.move_id == move.state.move_id:
                return future
            try:
                if future is not None:
                    await self._whole(self._logs.drop_future(tp))
                await self._whole(self._logs.create_future(tp, move.target, move.state.move_id))
            except asyncio.CancelledError:
                # A copy that a hung disk creates after the end has no records and would never be
                # resumed.
                move.drops_future = True
                raise
            except OperatingError as e:
                await self._step_failed(move, e)

    async def _copy(
        self, move: ReplicaMove, future: FutureReplica, executor: LogDirExecutor
    ) -> CopyStep | None:
        """Copy one step within the rate limit and return its result. None if it failed."""
        await self._throttle(move)
        handle = move.replica.handle
        try:
            if handle is None:
                raise move.source.offline_error()
            step = await self._whole(future.catch_up(handle, executor, self._step_bytes()))
        except OperatingError as e:
            await self._step_failed(move, e)
            return None
        move.failures, move.lag = 0, step.lag_offsets
        if step.copied_bytes:
            move.copied_bytes += step.copied_bytes
            self._bucket.spend(step.copied_bytes, self._clock.now_ms())
            self._metrics.count("ReplicaAlterLogDirsBytes", step.copied_bytes)
            move.note_progress(self._clock.now_ms())
        return step

    async def _noted(self, move: ReplicaMove) -> bool:
        """Persist that the controller is asked to assign the target.

        Return False if that failed or if the move has ended meanwhile.
        """
        source, target = move.source.directory_id, move.target.directory_id
        try:
            await self._whole(self._requested_moves.note(move.replica.key, source, target))
        except OperatingError as e:
            await self._step_failed(move, e)
            return False
        return not move.state.is_over

    async def _forget_asking(self, move: ReplicaMove) -> None:
        """Remove the persisted note that the controller was asked. A failure is logged.

        A note that remains does no harm: only the creation of a new log reads it, and removes it
        then.
        """
        try:
            await self._requested_moves.forget(move.replica.key)
        except OperatingError as e:
            partition = str(move.topic_partition)
            self._log.info("asked_move_not_forgotten", partition=partition, reason=str(e))

    async def _swap(self, move: ReplicaMove, executor: LogDirExecutor) -> None:
        """Perform steps 4 to 9: close the gate, swap the copies, and open the gate."""
        replica, began_ms = move.replica, self._clock.now_ms()
        move.is_settled.clear()
        replica.gate.close()
        self._fetchers.unfollow([replica.topic_partition])
        try:
            event = await self._promote(move, executor)
            self._handle(move, event)
        finally:
            replica.gate.open()
            self._follow_again(replica)
            move.is_settled.set()
        gate_ms = self._clock.now_ms() - began_ms
        self._longest_gate_ms = max(self._longest_gate_ms, gate_ms)
        if isinstance(event, Promoted):
            self._log.info(
                "replica_moved",
                partition=str(move.topic_partition),
                source=move.source.path,
                target=move.target.path,
                copied_bytes=move.copied_bytes,
                gate_ms=gate_ms,
            )
        elif not move.state.is_over:
            move.failures += 1
            await move.pause(self._backoff.wait_ms(move.failures))

    async def _promote(self, move: ReplicaMove, executor: LogDirExecutor) -> Event:
        try:
            # Let a fetch loop queue the append that it has begun, then wait until it is written.
            await asyncio.sleep(0)
            await self._whole(move.source.run_operation(OpKind.READ, _nothing))
            handle = await self._whole(self._logs.promote_future(move.topic_partition, executor))
        except OperatingError as e:
            self._log_failure(move, e)
            failure = self._failure(move)
            if isinstance(failure, TargetFilledUp):
                self._handle(move, failure)  # The failed swap will end the move with this.
                return SwapFailed()
            return failure or SwapFailed()
        self._replica_manager.promoted(move.replica, handle)
        return Promoted()

    def _follow_again(self, replica: HostedReplica) -> None:
        """Fetch again if the replica is a follower, into its present directory."""
        if self._replicas.is_current(replica) and replica.should_follow:
            self._fetchers.follow([replica])

    # --- events and actions ----------------------------------------------------------------------

    def _handle(self, move: ReplicaMove, event: Event) -> None:
        phase = move.state.phase
        for action in move.state.handle(event):
            self._perform(move, action)
        if move.state.phase is not phase:
            move.note_progress(self._clock.now_ms())
            self._log.debug(
                "replica_move_phase",
                partition=str(move.topic_partition),
                phase=move.state.phase.value,
            )

        self._take_back_if_stalled(move)

    def _take_back_if_stalled(self, move: ReplicaMove) -> None:
        """Withdraw the assignment if a directory of the move is stalled."""
        if move.state.may_be_assigned and move.source.state is LogDirState.STALLED:
            self._handle(move, SourceStalled())
        elif (
            move.state.may_be_assigned
            and not move.is_swapping
            and move.target.state is LogDirState.STALLED
        ):
            self._handle(move, TargetStalled())

    def _perform(self, move: ReplicaMove, action: Action) -> None:
        replica = move.replica
        match action:
            case AssignDirectory(directory_id=directory_id, move_id=move_id):
                replica.is_assigned_by_move = True
                self._assignments.assign(
                    replica.key, directory_id, lambda: self._accepted(move, move_id)
                )
            case ReportDirectory(directory_id=directory_id):
                replica.is_assigned_by_move = False
                self._assignments.assign(replica.key, directory_id)
            case DropFuture():
                move.drops_future = True
            case CopyOn() | CloseGateAndPromote():
                pass  # The coroutine that reported the step continues according to the phase.
            case End(how=how):
                replica.is_assigned_by_move = False
                # In other cases the source keeps serving, and the controller may not know that yet.
                move.was_source_left = how in _LEAVES_SOURCE
                self._ended(move, how)
            case _:
                assert_never(action)

    def _accepted(self, move: ReplicaMove, move_id: Uuid) -> None:
        self._handle(move, AssignmentAccepted(move_id=move_id))
        move.changed.set()

    def _ended(self, move: ReplicaMove, how: MoveEnd) -> None:
        if how in (MoveEnd.SOURCE_FAILED, MoveEnd.TARGET_FAILED, MoveEnd.TARGET_FILLED_UP):
            self._failed.add(move.topic_partition)
            self._log.warning(
                "replica_move_failed",
                partition=str(move.topic_partition),
                source=move.source.path,
                target=move.target.path,
                reason=how.value,
            )
        elif how is not MoveEnd.PROMOTED:
            self._log.info(
                "replica_move_ended", partition=str(move.topic_partition), reason=how.value
            )
        assert move.task is not None
        # A task that has not begun would not clean up, and a task that reports its own end
        # continues.
        if move.is_begun and move.task is not asyncio.current_task():
            move.task.cancel()

    def _failure(self, move: ReplicaMove) -> Event | None:
        """Return the event if a directory of the move failed or its target is full; None
        otherwise."""
        if not move.source.is_online:
            return SourceFailed()
        if move.target.state is LogDirState.SATURATED:
            return TargetFilledUp()
        return None if move.target.is_online else TargetFailed()

    async def _step_failed(self, move: ReplicaMove, error: OperatingError) -> None:
        failure = self._failure(move)
        if failure is not None:
            self._handle(move, failure)
            return
        if not isinstance(error, LogDirImpairedError):
            self._log_failure(move, error)
        elif move.failures == 0:
            self._log.info(
                "replica_move_paused", partition=str(move.topic_partition), reason=str(error)
            )
        move.failures += 1
        await move.pause(self._backoff.wait_ms(move.failures))
        await self._while_stalled(move)

    def _log_failure(self, move: ReplicaMove, error: OperatingError) -> None:
        self._log.warning(
            "replica_move_step_failed",
            partition=str(move.topic_partition),
            phase=move.state.phase.value,
            reason=str(error),
        )

    # --- waiting ---------------------------------------------------------------------------------

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a disk operation and return its result. If the wait is cancelled, raise
        CancelledError only after the end of the operation."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # This wait may be cancelled again, so ``_retrieve_exception`` retrieves the result.
            task.add_done_callback(_retrieve_exception)
            await asyncio.wait({task})
            raise

    async def _throttle(self, move: ReplicaMove) -> None:
        """Wait until the rate limit allows another step; a changed limit applies at once."""
        while (wait_ms := self._bucket.wait_ms(self._clock.now_ms())) > 0:
            await move.pause(min(wait_ms, _SLICE_MS))

    async def _while_stalled(self, move: ReplicaMove) -> None:
        """Wait while one of the directories is stalled."""
        while not move.state.is_over and LogDirState.STALLED in (
            move.source.state,
            move.target.state,
        ):
            await move.pause(_SLICE_MS)

    def _step_bytes(self) -> int:
        """Return the size of the next step. At a low rate a step takes about a second."""
        return max(_SMALLEST_STEP_BYTES, min(_STEP_BYTES, int(self._bucket.per_second)))

    def check_progress(self, now_ms: int) -> None:
        """Log each move that has made no progress for ``stalled_after_ms``, once per stall.
        ``now_ms`` is monotonic.
        """
        for move in self._moves.values():
            if move.has_stalled(now_ms, self._stalled_after_ms):
                self._log.warning(
                    "replica_move_stalled",
                    partition=str(move.topic_partition),
                    phase=move.state.phase.value,
                    lag=move.lag,
                )

    def _watch_moves(self) -> None:
        self.check_progress(self._clock.now_ms())
        self._watch = None
        if self._moves:
            loop = asyncio.get_running_loop()
            self._watch = loop.call_later(_WATCH_INTERVAL_MS / 1000, self._watch_moves)


def _retrieve_exception(done: asyncio.Future[Any]) -> None:
    """Retrieve the exception of an abandoned operation, so that asyncio does not log it."""
    if not done.cancelled():
        done.exception()


def _nothing() -> None:
    """Do nothing: completes after all operations that were queued before."""
