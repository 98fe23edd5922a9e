"""LOOP. ``ReplicaAlterLogDirsManager``: moves of replicas between the directories of this broker.

Each move is one coroutine, :meth:`_move`, that reads like KIP-113, "Complete replica data
movement", with the two steps of KIP-858, "Intra-broker replica movement". What may happen when is
decided in replica_move_state.py.

* A move gets one mover thread for as long as it lasts; moves beyond the threads wait in order.
* All moves share one rate. Only the last bytes, for which appends wait at the gate, ignore it.
* Nothing but the end of a step ends a move: the thread that copies is never pulled away from
  under a file. Only waiting is cut short.
* A move that a stop of the broker interrupts stays on the disks and is resumed at the next start.
* A move that makes no progress is logged once, and again when it has moved and stalled once more.
* A move into a directory that is full ends, and what it copied goes, for it takes space there; one
  out of it goes on. A move from or to a stalled directory pauses until that answers again.
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
from kraftjbod.storage.replicas.asked_moves import AskedMoves

T = TypeVar("T")

#: Copied at once, and the least of it that a low rate allows. Between steps the threads of moves
#: and the loop get in each other's way, so there should be few.
_STEP_BYTES: Final = 64 * 1024 * 1024
_SMALLEST_STEP_BYTES: Final = 64 * 1024
#: How long a move that has caught up waits before it asks for more; twice as long each time that
#: there is none, up to a slice.
_IDLE_MS: Final = 10
#: How long a move sleeps at most before it looks whether the rate has changed, or whether a
#: stalled directory answers again.
_SLICE_MS: Final = 200
_WATCH_INTERVAL_MS: Final = 1_000
_LEAVES_SOURCE: Final = (MoveEnd.PROMOTED, MoveEnd.SOURCE_FAILED, MoveEnd.UNWANTED)


class ReplicaAlterLogDirsManager:
    """``start``, ``cancel``, ``resume``, ``end`` and ``cancel_in`` at any time on the loop.

    None of them waits. ``await swap_over(tp)`` and ``await ended(tp)`` wait for what is under way,
    ``await close()`` interrupts it.
    """

    def __init__(
        self,
        *,
        replicas: HostedReplicas,
        replica_manager: ReplicaManager,
        removals: ReplicaRemovals,
        logs: LogManager,
        assignments: AssignmentsManager,
        asked_moves: AskedMoves,
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
        self._asked_moves = asked_moves
        self._fetchers = fetchers
        self._pool = pool
        self._clock = clock
        self._random_bytes = random_bytes
        self._backoff = backoff
        self._metrics = metrics
        self._bucket = TokenBucket(bytes_per_second, clock.now_ms())
        self._stalled_after_ms = stalled_after_ms
        self._tasks = BackgroundTasks(jobs)
        #: The last move of each partition, until nothing of it is under way any more.
        self._moves: dict[TopicPartition, ReplicaMove] = {}
        #: Partitions whose last move was ended by a dead directory.
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

    # --- what others ask for ---------------------------------------------------------------------

    def start(self, replica: HostedReplica, target: LogDir) -> None:
        """Move an open replica to ``target``, and not to wherever it was moving before.

        Wait for :meth:`swap_over` first. A target where the replica is already ends its move.
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
        """Let the replica stay where it is; False if it was not moving."""
        running = self._running(topic_partition)
        if running is not None:
            self._handle(running, Cancelled())
        return running is not None

    def resume(self, replica: HostedReplica, *, is_accepted: bool) -> None:
        """Go on with what a restart interrupted; nothing if that goes on already."""
        tp = replica.topic_partition
        future = self._logs.future(tp)
        if future is None or replica.handle is None or self._running(tp) is not None:
            return
        source, target = replica.handle.log_dir, future.log_dir
        self._begin(replica, source, target, future.move_id, is_accepted=is_accepted)
        self._log.info("replica_move_resumed", partition=str(tp), target=target.path)

    def end(self, topic_partition: TopicPartition) -> None:
        """The replica is not hosted here any more."""
        self._failed.discard(topic_partition)
        running = self._running(topic_partition)
        if running is not None:
            self._handle(running, Unwanted())

    def cancel_in(self, log_dir: LogDir) -> None:
        """The directory died: every move out of it and into it ends, and no file is touched."""
        for move in list(self._moves.values()):
            if move.is_swapping:
                continue  # The swap fails by itself, and knows how far it has come.
            if move.source is log_dir:
                self._handle(move, SourceFailed())
            elif move.target is log_dir:
                self._handle(move, TargetFailed())

    def cancel_into(self, log_dir: LogDir) -> None:
        """The directory is full: every move into it ends, and the space of its copy is given back.

        One that is changing places at this moment ends too, unless that succeeds.
        """
        for move in list(self._moves.values()):
            if move.target is log_dir:
                self._handle(move, TargetFilledUp())

    def take_back_in(self, log_dir: LogDir) -> None:
        """The directory does not answer: the controller hears where its replicas are served."""
        for move in list(self._moves.values()):
            if log_dir in (move.source, move.target):
                self._take_back_if_stalled(move)

    def moves(self) -> list[MoveProgress]:
        """What is being moved, in the order in which it began."""
        return [move.progress for move in self._moves.values() if not move.state.is_over]

    def set_rate(self, bytes_per_second: int) -> None:
        """What all moves may copy together from now on."""
        self._bucket.set_rate(bytes_per_second, self._clock.now_ms())

    async def swap_over(self, topic_partition: TopicPartition) -> None:
        """Return when it is certain in which directory the replica is."""
        move = self._moves.get(topic_partition)
        if move is not None:
            await move.is_settled.wait()

    async def ended(self, topic_partition: TopicPartition) -> None:
        """Return when no move has files of the replica under its hands."""
        while (move := self._moves.get(topic_partition)) is not None:
            assert move.task is not None
            if move.task.done():
                return  # It was interrupted by the end of the broker.
            await asyncio.wait({move.task})

    async def close(self) -> None:
        """Interrupt all moves; they are resumed at the next start."""
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
        """KIP-113, "Complete replica data movement"; the numbers are its own."""
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
                # KIP-858: caught up for the first time, the controller is asked; meanwhile 3.
                if step.is_caught_up and not await self._noted(move):
                    continue
                self._handle(move, Copied(is_caught_up=step.is_caught_up))
                if move.is_swapping:
                    # 4. to 9. The controller has agreed, and the copy has caught up again.
                    await self._swap(move, executor)
                elif step.is_caught_up:
                    # The controller may be away for long; its answer ends the pause.
                    idle_ms = _IDLE_MS if step.copied_bytes else min(2 * idle_ms, _SLICE_MS)
                    await move.pause(idle_ms)

    async def _future_of(self, move: ReplicaMove) -> FutureReplica:
        """The future copy of this very move."""
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
                # What a hung disk makes after the end holds nothing, and nobody would resume it.
                move.drops_future = True
                raise
            except OperatingError as e:
                await self._step_failed(move, e)

    async def _copy(
        self, move: ReplicaMove, future: FutureReplica, executor: LogDirExecutor
    ) -> CopyStep | None:
        """One step; None if it failed."""
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
        """That the controller is asked outlives this process, or False."""
        source, target = move.source.directory_id, move.target.directory_id
        try:
            await self._whole(self._asked_moves.note(move.replica.key, source, target))
        except OperatingError as e:
            await self._step_failed(move, e)
            return False
        return not move.state.is_over

    async def _forget_asking(self, move: ReplicaMove) -> None:
        """Nothing counts on it but a new log of the replica, which sees to it by itself."""
        try:
            await self._asked_moves.forget(move.replica.key)
        except OperatingError as e:
            partition = str(move.topic_partition)
            self._log.info("asked_move_not_forgotten", partition=partition, reason=str(e))

    async def _swap(self, move: ReplicaMove, executor: LogDirExecutor) -> None:
        """4. to 9.: under the gate, let the two copies change places."""
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
            # What a fetch loop has begun to append is queued now, and then it is written.
            await asyncio.sleep(0)
            await self._whole(move.source.run(OpKind.READ, _nothing))
            handle = await self._whole(self._logs.promote_future(move.topic_partition, executor))
        except OperatingError as e:
            self._log_failure(move, e)
            failure = self._failure(move)
            if isinstance(failure, TargetFilledUp):
                self._handle(move, failure)  # That is what the failed swap then comes to.
                return SwapFailed()
            return failure or SwapFailed()
        self._replica_manager.promoted(move.replica, handle)
        return Promoted()

    def _follow_again(self, replica: HostedReplica) -> None:
        """A follower goes on fetching, into the directory that it is in now."""
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
        """A directory may have stalled before the controller was asked, or while it thought."""
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
                pass  # The coroutine that reported the step goes on by the phase.
            case End(how=how):
                replica.is_assigned_by_move = False
                # Where it is not, the source serves on, and the controller may not know yet.
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
        # One that has not begun would never clean up, and one that reports its own end goes on.
        if move.is_begun and move.task is not asyncio.current_task():
            move.task.cancel()

    def _failure(self, move: ReplicaMove) -> Event | None:
        """Which of the two directories died, or has no space for the copy; None if neither."""
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
        """Wait for a piece of disk work; whoever ends the move waits for it too."""
        task = asyncio.ensure_future(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            # Who waits here may be cancelled once more, and nobody is interested any more.
            task.add_done_callback(_pass_over)
            await asyncio.wait({task})
            raise

    async def _throttle(self, move: ReplicaMove) -> None:
        """Until the bucket is even; another rate takes effect meanwhile."""
        while (wait_ms := self._bucket.wait_ms(self._clock.now_ms())) > 0:
            await move.pause(min(wait_ms, _SLICE_MS))

    async def _while_stalled(self, move: ReplicaMove) -> None:
        """Until both directories answer, or one of them died."""
        while not move.state.is_over and LogDirState.STALLED in (
            move.source.state,
            move.target.state,
        ):
            await move.pause(_SLICE_MS)

    def _step_bytes(self) -> int:
        """So much that a low rate lets a step through every second or so."""
        return max(_SMALLEST_STEP_BYTES, min(_STEP_BYTES, self._bucket.bytes_per_second))

    def check_progress(self, now_ms: int) -> None:
        """Log moves that stand still; happens by itself while there are any."""
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


def _pass_over(done: asyncio.Future[Any]) -> None:
    """What a piece of work ended with that nobody waits for: a disk that died meanwhile, say."""
    if not done.cancelled():
        done.exception()


def _nothing() -> None:
    """Done when everything that was queued before it is done."""
