"""LOOP. ``LogDir``: one log directory, its thread, and the only gate for disk errors.

* Every operation goes through :meth:`LogDir.begin`, or what is made of it; what it raises is
  judged here, and whoever waits sees :class:`KafkaStorageError`, never an ``OSError``.
  The child of it that names the operation (KIP-18) is for whoever asked for that operation.
* States change here only, by the table of ``core/log_dir_state.py``. An impaired dir refuses what
  the table in ``log_dir_policy.py`` says, with an error that is worth another try.
* A dir goes OFFLINE once and for good: what is reattached is a new object. Everything that waits
  for it fails at once, its thread is abandoned, and its open files are given up in yet another
  one: closing can hang as well. Their descriptors are closed once no thread may still use them.
* What a full disk means is in ``saturation.py``.
* An operation that does not end makes the dir STALLED (``dir_watch.py``): what may be taken back
  is, and nothing new is taken in, until it ends. One that runs for ``log.dir.io.timeout.ms`` is
  the end.
* What others do to its files in threads of their own is in ``outside_operations.py``.
* fsyncs of segments have a thread of their own, so that a slow one does not hold up appends. So has
  what only computes: it holds up no operation, and says nothing of the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from errno import EINVAL, EOPNOTSUPP
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar, assert_never, cast

import aiofiles.threadpool

from kraftjbod.core.errors import KafkaStorageError, OperatingError, OverloadedError
from kraftjbod.core.ids import LOST_DIR, DirectoryId, TopicPartition
from kraftjbod.core.log_dir_state import LogDirEvent, LogDirState
from kraftjbod.core.loop.completion import Completion
from kraftjbod.core.loop.job_guard import JobGuard
from kraftjbod.core.loop.own_time import wait_awake
from kraftjbod.core.loop.timing import Clock
from kraftjbod.storage.checkpoints import NO_CLEAN_SHUTDOWN
from kraftjbod.storage.dir_names import LOCK_FILE
from kraftjbod.storage.log_dirs.dir_condition import DirCondition
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor, MakeExecutor, ThreadCount
from kraftjbod.storage.log_dirs.dir_watch import DirWatch
from kraftjbod.storage.log_dirs.disk_check import check_disk, require_identity
from kraftjbod.storage.log_dirs.free_space_policy import FreeSpacePolicy
from kraftjbod.storage.log_dirs.io_statistics import GROUPS, IoGroup, IoStatistics
from kraftjbod.storage.log_dirs.log_dir_policy import (
    MAKES_NAMES,
    TAKES_SPACE,
    OpKind,
    Verdict,
    error_class,
    judge,
    kind_of_failure,
)
from kraftjbod.storage.log_dirs.reserve_file import ReserveFile
from kraftjbod.storage.log_dirs.saturation import Saturation
from kraftjbod.storage.vfs import Vfs, VfsFile

T = TypeVar("T")
R = TypeVar("R")

#: What tmpfs and old kernels say to RWF_NOWAIT.
_NO_CACHED_READS: Final = frozenset({EOPNOTSUPP, EINVAL})
#: What may wait to be computed for one dir.
_MAX_COMPUTED_OPS: Final = 1_000
_MAX_COMPUTED_BYTES: Final = 64 * 1024 * 1024
_LACKS_LOGGED_EVERY_MS: Final = 10_000


class _Way(NamedTuple):
    """How operations of one kind go through the dir's threads."""

    executor: LogDirExecutor
    on_error: Callable[[BaseException], None]
    group: IoGroup
    may_be_taken_back: bool
    makes_names: bool


class _OpName(NamedTuple):
    """An operation for messages: its kind, and its replica if it has one."""

    kind: OpKind
    replica: TopicPartition | None

    def __str__(self) -> str:
        return self.kind.value if self.replica is None else f"{self.kind.value} of {self.replica}"


class _Lacks:
    """Operations that lacked resources; each check of the disk does while that lasts."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._unlogged = 0
        self._logged_from_ms = 0

    def count(self) -> int:
        """Count one. How many there were since the last time, if it is time to log; else 0."""
        self._unlogged += 1
        now_ms, times = self._clock.now_ms(), self._unlogged
        if now_ms < self._logged_from_ms:
            return 0
        self._logged_from_ms, self._unlogged = now_ms + _LACKS_LOGGED_EVERY_MS, 0
        return times


class LogDirFailureChannel:
    """Dirs whose state changed while the daemon ran, in order of the first change not taken yet.

    A dir waits here at most once: whoever takes it acts on the state it has by then.
    """

    def __init__(self, *, max_dirs: int) -> None:
        self._changed: asyncio.Queue[LogDir] = asyncio.Queue(max_dirs)
        self._waiting: set[LogDir] = set()

    def report(self, log_dir: LogDir) -> None:
        if log_dir not in self._waiting:
            self._waiting.add(log_dir)
            self._changed.put_nowait(log_dir)

    async def take(self) -> LogDir:
        """The next dir; ``state``, ``offline_reason`` and ``impaired_reason`` say what is so."""
        log_dir = await self._changed.get()
        self._waiting.discard(log_dir)
        return log_dir


class LogDir(DirCondition):
    """One directory of ``log.dirs``. All methods are for the loop's thread but ``beat``."""

    def __init__(
        self,
        *,
        path: str,
        vfs: Vfs,
        clock: Clock,
        failure_channel: LogDirFailureChannel,
        directory_id: DirectoryId = LOST_DIR,
        is_cordoned: bool = False,
        io_timeout_ms: int = 30_000,
        io_suspect_ms: int = 2000,
        check_interval_ms: int = 500,
        max_queued_ops: int = 20_000,
        max_queued_bytes: int = 256 * 1024 * 1024,
        reserve: ReserveFile | None = None,
        free_space_policy: FreeSpacePolicy | None = None,
        make_executor: MakeExecutor = LogDirExecutor,
    ) -> None:
        super().__init__(path, directory_id, clock.wall_ms())
        self.vfs = vfs
        self.is_cordoned = is_cordoned  # It takes no new replicas (KIP-1066).
        #: Up to which epoch of which incarnation it was whole at the start, by its clean mark.
        self.clean_shutdown = NO_CLEAN_SHUTDOWN
        self.statistics = IoStatistics()
        self.jobs = JobGuard(log_dir=path)
        self._failure_channel, self._news = failure_channel, failure_channel
        self.io_timeout_ms = io_timeout_ms
        #: For what works in threads of its own on this dir, such as its scrub.
        self.make_executor = make_executor
        self._make_executors(clock, max_queued_ops, max_queued_bytes)
        self._watch = DirWatch(
            self,
            {
                self._executor: min(io_suspect_ms, io_timeout_ms),
                # It takes as long as what is not written yet is large: 1 GiB is no hang.
                self._flush_executor: max(io_suspect_ms, io_timeout_ms // 2),
            },
            timeout_ms=io_timeout_ms,
            check_interval_ms=check_interval_ms,
        )
        self._saturation = Saturation(
            self,
            vfs=vfs,
            executor=self._executor,
            reserve=reserve
            or ReserveFile(vfs=vfs, directory=path, size_bytes=0, random_bytes=bytes),
            plan=free_space_policy or FreeSpacePolicy(),
            probe=lambda op, settle: self._probe(self.if_ours(op), settle),
            report_change=self._report_change,
        )
        self._ways = {kind: self._way_of(kind) for kind in OpKind}
        #: ``st_dev`` when the dir was identified; another number means another disk.
        self._device: int | None = None
        #: Held from :meth:`try_lock` to :meth:`close`.
        self._lock_file: VfsFile | None = None
        #: What gives the lock up, once there is no more to do here.
        self._unlocking: asyncio.Future[None] | None = None
        self._io_suspect_ms = io_suspect_ms
        self._cached_reads = True
        #: The kernel copies files into this dir, as far as is known.
        self.kernel_copies = True
        #: Those of outside_operations.py, and the threads in one, be it failed meanwhile.
        self.outside_ops: set[asyncio.Future[Any]] = set()
        self.outside_threads = ThreadCount()
        self._are_files_closed = False
        self._lacks = _Lacks(clock)
        self._check: asyncio.Future[None] | None = None
        self._gone = asyncio.Event()
        #: Why others hold it for stalled, though its operations end.
        self._demotion = ""

    def _make_executors(self, clock: Clock, max_queued_ops: int, max_queued_bytes: int) -> None:
        self._executor = self.make_executor(
            name=f"log-dir:{self.path}",
            clock=clock,
            max_ops=max_queued_ops,
            max_bytes=max_queued_bytes,
            statistics=self.statistics,
        )
        self._flush_executor = self.make_executor(
            name=f"log-dir-flush:{self.path}",
            clock=clock,
            max_ops=max_queued_ops,
            statistics=self.statistics,
        )
        #: Takes time but no disk, so nobody watches it.
        self._compute_executor = self.make_executor(
            name=f"log-dir-compute:{self.path}",
            clock=clock,
            max_ops=_MAX_COMPUTED_OPS,
            max_bytes=_MAX_COMPUTED_BYTES,
        )
        #: For the end alone: nobody waits for a disk that is gone to close its files.
        self._farewell = self.make_executor(name=f"log-dir-let-go:{self.path}", clock=clock)

    def __repr__(self) -> str:
        return f"<LogDir {self.path} {self.directory_id} {self.state.value}>"

    @property
    def is_busy(self) -> bool:
        """A thread is in an operation on its files, abandoned or not."""
        is_running = self._executor.is_running or self._flush_executor.is_running
        return is_running or bool(self.outside_threads)

    @property
    def running_ms(self) -> int:
        """How long the operation that reads wait for has been running; 0 if none is."""
        return self._executor.running_for_ms()

    @property
    def reserve_bytes(self) -> int:
        """What the reserve file holds for the day when the disk is full; 0 once it is given up."""
        return self._saturation.reserve_bytes

    # -- the gate ---------------------------------------------------------------------------

    def submit(
        self,
        kind: OpKind,
        op: Callable[[], T],
        *,
        settle: Callable[[T], R] | None = None,
        replica: TopicPartition | None = None,
    ) -> asyncio.Future[R]:
        """:meth:`begin` for who waits in a task; cancelling the future takes nothing back."""
        done: Completion[R] = self.begin(kind, op, settle=settle, replica=replica)
        return done.future()

    def begin(
        self,
        kind: OpKind,
        op: Callable[[], T],
        *,
        settle: Callable[[T], R] | None = None,
        size_bytes: int = 0,
        replica: TopicPartition | None = None,
    ) -> Completion[R]:
        """Queue ``op`` for the dir's thread; it completes in the turn in which that answers.

        ``settle`` turns the op's result into the answer, on the loop, and runs even if nobody
        waits any more: it is where an operation's effects are published.
        ``replica`` is whom the operation is about, for the story of a failure.

        :raises KafkaStorageError: at once if the dir is offline; it may be the answer later too.
        :raises LogDirImpairedError: at once, or later: the dir does not take it now.
        :raises OverloadedError: at once if the queue is full.
        """
        if self.state is not LogDirState.ONLINE:
            self.require_allowed(kind)
        executor, on_error, group, may_be_taken_back, makes_names = self._ways[kind]
        return executor.begin_op(
            self.if_ours(op) if makes_names else op,
            settle=settle,
            translate=lambda error: self.judge_error(kind, error, replica),
            on_error=on_error,
            size_bytes=size_bytes,
            group=group,
            may_be_taken_back=may_be_taken_back,
            what=_OpName(kind, replica),
        )

    def _way_of(self, kind: OpKind) -> _Way:
        return _Way(
            self._flush_executor if kind is OpKind.FLUSH else self._executor,
            partial(self._saturation.give_reserve_if_full, kind),
            GROUPS[kind],
            kind in TAKES_SPACE,
            kind in MAKES_NAMES,
        )

    def if_ours(self, op: Callable[[], T]) -> Callable[[], T]:
        """``op``, for the dir's thread, which fails where the disk is not there any more."""

        def op_if_ours() -> T:
            if self._device is not None:
                require_identity(self.vfs, self.path)
            return op()

        return op_if_ours

    async def run(
        self, kind: OpKind, op: Callable[[], T], *, replica: TopicPartition | None = None
    ) -> T:
        """:meth:`submit` and wait; cancelling the wait does not take the operation back."""
        future = cast("asyncio.Future[T]", self.submit(kind, op, replica=replica))
        return await asyncio.shield(future)

    async def read_text(self, kind: OpKind, path: str) -> str | None:
        """A small cold text file as a stream in the dir's thread; None if there is none.

        :raises KafkaStorageError: if the dir is or goes offline.
        """
        if not await self.run(kind, lambda: self.vfs.exists(path)):
            return None
        source = await self.run(kind, lambda: self.vfs.open_stream(path))
        stream = aiofiles.threadpool.wrap(source, executor=self._executor)
        try:
            data = bytes(await stream.read())
            await stream.close()
        except OSError as e:
            raise self.judge_error(kind, e) from e
        return data.decode("utf-8", errors="replace")

    def read_cached(
        self, file: VfsFile, position: int, size: int, *, replica: TopicPartition | None = None
    ) -> memoryview | None:
        """Bytes that are in memory already, maybe fewer than ``size``; None: ask the thread.

        Never waits for the disk, so it may run on the loop.

        :raises KafkaStorageError: if the dir is or goes offline.
        """
        if self.state is not LogDirState.ONLINE:
            self.require_allowed(OpKind.READ)
        if not self._cached_reads:
            return None
        try:
            return file.read_cached_at(position, size)
        except BlockingIOError:
            return None
        except OSError as e:
            if e.errno in _NO_CACHED_READS:
                self._cached_reads = False
                return None
            raise self.judge_error(OpKind.READ, e, replica) from e

    async def compute(self, op: Callable[[], T], *, size_bytes: int) -> T:
        """Carry out ``op``, which touches no file, beside the dir's threads: it proves nothing.

        ``size_bytes`` are held meanwhile.

        :raises KafkaStorageError: the dir is or goes offline.
        :raises OverloadedError: too much waits.
        """
        self.require_allowed(OpKind.READ)
        future: asyncio.Future[T] = self._compute_executor.submit_op(op, size_bytes=size_bytes)
        return await asyncio.shield(future)

    def beat(self) -> None:
        """A long operation is making progress; called in the dir's thread."""
        self._executor.beat()

    def flush_beat(self) -> None:
        """:meth:`beat` of a flush, in the thread of flushes."""
        self._flush_executor.beat()

    # -- life -------------------------------------------------------------------------------

    def identify(self, directory_id: DirectoryId, device: int) -> None:
        """Give the dir its id, and the device that its files are on."""
        self.directory_id = directory_id
        self._device = device

    def try_lock(self) -> bool:
        """In the dir's thread: hold the dir for this process; False if another one has it."""
        self._lock_file = self.vfs.try_lock(f"{self.path}/{LOCK_FILE}")
        return self._lock_file is not None

    def put_on_trial(self) -> None:
        """Report no change of state until :meth:`take_into_service`; before anything else."""
        self.is_on_trial = True
        self._news, self._failure_channel = self._failure_channel, LogDirFailureChannel(max_dirs=1)

    def take_into_service(self) -> None:
        """Changes of state are news from now on, and so is the present one if it is not ONLINE."""
        self.is_on_trial = False
        self._failure_channel = self._news
        if self.state is not LogDirState.ONLINE:
            self._failure_channel.report(self)

    def start_watches(self) -> None:
        """Watch for stalls and for a vanished disk from now until :meth:`close` or OFFLINE."""
        self._watch.start()

    async def secure_reserve(self) -> None:
        """Have the reserve whole and on the disk (KIP-928: before anything is recovered).

        :raises LogDirImpairedError: there is no memory for it; the dir is SATURATED.
        :raises KafkaStorageError: the dir goes offline.
        """
        await self.run(OpKind.START, lambda: self._saturation.secure_reserve(self.beat))

    def suspect(self, reason: str) -> None:
        """Hold the dir for stalled, though its operations end, until :meth:`absolve`."""
        self._demotion = reason
        self._stall(reason)

    def absolve(self) -> None:
        """Undo :meth:`suspect`."""
        self._demotion = ""
        self.on_answer()

    def go_offline(self, reason: str, *, report: bool = True, **failed: str) -> None:
        """Once; later calls change nothing. ``report`` is for what the daemon has yet to hear.

        ``failed`` names the operation: its kind, and its replica if there is one.
        """
        if not self.step(LogDirEvent.FAILED, reason, **failed):
            return
        self._gone.set()
        self._watch.stop()
        self._executor.abandon(self.offline_error)
        self._flush_executor.abandon(self.offline_error)
        self._compute_executor.abandon(self.offline_error)
        for op in [op for op in self.outside_ops if not op.done()]:
            op.set_exception(self.offline_error())
        # A disk in use cannot be unmounted, checked and mounted again.
        self._unlocks(self._farewell.submit_op(lambda: self.vfs.let_go(self.path)))
        self._close_files_when_unused()
        if report:
            self._report_change()

    async def leave(self) -> None:
        """Give up an online dir that holds nothing any more; :meth:`close` is included.

        :raises OperatingError: it does not take that now, or goes offline.
        """
        try:
            await self.run(OpKind.CLOSE, lambda: self.vfs.let_go(self.path))
        finally:
            self.close()
            if self.is_online:
                self._close_files_when_unused()

    def _close_files_when_unused(self) -> None:
        """Let the descriptors that are given up be closed as soon as no thread may use them.

        A thread that hangs in the kernel keeps them, for it may still hold one of their numbers.
        """
        loop = asyncio.get_running_loop()

        def left() -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._close_files_if_unused)

        self.outside_threads.on_none = left
        for executor in (self._executor, self._flush_executor):
            executor.on_end = self._close_files_if_unused
        if self._unlocking is not None:
            self._unlocking.add_done_callback(lambda _: self._close_files_if_unused())
        self._close_files_if_unused()

    def _close_files_if_unused(self) -> None:
        is_released = self._unlocking is None or self._unlocking.done()
        is_used = self._executor.has_thread or self._flush_executor.has_thread
        if self._are_files_closed or not is_released or is_used or self.outside_threads:
            return
        self._are_files_closed = True
        closing: asyncio.Future[None] = self._farewell.submit_op(
            lambda: self.vfs.close_let_go(self.path)
        )
        self._farewell.shutdown(wait=False)
        closing.add_done_callback(self._note_closed)

    def _note_closed(self, closing: asyncio.Future[None]) -> None:
        if not closing.cancelled() and (error := closing.exception()) is not None:
            self.jobs.log_failure("close_files", error)

    async def gone(self) -> None:
        """Return when the dir is OFFLINE, on trial or not."""
        await self._gone.wait()

    def close(self) -> None:
        """Stop the watches and let the threads end after what they still have to do."""
        self._watch.stop()
        if self.is_online:
            if self._lock_file is not None and self._unlocking is None:
                self._unlocks(self.submit(OpKind.START, self._lock_file.close))
            self._executor.shutdown(wait=False)
            self._flush_executor.shutdown(wait=False)
            self._compute_executor.shutdown(wait=False)

    def _unlocks(self, unlocking: asyncio.Future[None]) -> None:
        self._unlocking = unlocking
        # A disk that fails at the very end was judged for it; nobody needs to wait for this.
        unlocking.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def unlocked(self) -> bool:
        """Whether another object may lock the dir, after :meth:`close` or OFFLINE; it may hang."""
        if self._unlocking is None:
            return True
        return await wait_awake(self._unlocking, self._io_suspect_ms)

    # -- judging ----------------------------------------------------------------------------

    def judge_error(
        self, kind: OpKind, error: BaseException, replica: TopicPartition | None = None
    ) -> BaseException:
        """What the waiter shall see for ``error``; takes the dir OFFLINE if that is the verdict."""
        if not isinstance(error, OSError):
            return error
        if not self.is_online:
            return self.offline_error()
        part = kind_of_failure(error, kind)
        said = f"{part.value}: {error}"
        report = kind is not OpKind.START  # What fails while starting was never registered.
        failed = {"operation": part.value} | ({} if replica is None else {"replica": str(replica)})
        verdict = judge(error.errno, part)
        match verdict:
            case Verdict.FAILED:
                self.go_offline(said, report=report, **failed)
                message = f"log dir {self.path} is offline: {said}"
                return self._error(error_class(part), message, failed)
            case Verdict.FULL:
                self._saturation.fill_up(said, error, is_attempt=kind is OpKind.PROBE)
                return self.impaired_error()
            case Verdict.CALLER_BUG:
                self.check_disk()
                self._report_unless_gone(said, error)
                return self._error(error_class(part), f"log dir {self.path}: {said}", failed)
            case Verdict.PROCESS_LIMIT:
                self._report_lack(said)
                return OverloadedError(f"log dir {self.path}: {said}")
            case _:
                assert_never(verdict)

    def _report_unless_gone(self, said: str, error: OSError) -> None:
        """A directory that is not there any more explains whatever made no sense in it."""

        def checked(_check: object) -> None:
            if self.is_online:
                self.log.error("log_dir_operation_made_no_sense", reason=said, exc_info=error)

        if self._check is None or self._check.done():
            checked(None)
        else:
            self._check.add_done_callback(checked)

    def _report_lack(self, said: str) -> None:
        if times := self._lacks.count():
            self.log.warning("log_dir_operation_lacked_resources", reason=said, times=times)

    def _error(
        self, kind: type[KafkaStorageError], message: str, failed: dict[str, str]
    ) -> KafkaStorageError:
        return kind(message, directory_id=self.directory_id, path=self.path, **failed)

    # -- watches ----------------------------------------------------------------------------

    def _report_change(self) -> None:
        self._failure_channel.report(self)

    def on_suspect(self, running_ms: int) -> None:
        self._stall(self._still_running(running_ms))

    def _still_running(self, running_ms: int) -> str:
        queues = (self._executor, self._flush_executor)
        what = max(queues, key=LogDirExecutor.running_for_ms).running_op()
        return f"an operation ({what or 'unknown'}) has been running for {running_ms} ms"

    def _stall(self, reason: str) -> None:
        if self.step(LogDirEvent.SUSPECTED, reason):
            self._executor.take_back(self.impaired_error)
            self._report_change()

    def on_answer(self) -> None:
        """Nothing runs for too long any more."""
        if self._watch.is_suspicious or self._demotion:
            return
        event = LogDirEvent.ANSWERED_FULL if self._saturation.full_reason else LogDirEvent.ANSWERED
        if self.step(event, self._saturation.full_reason or "operations end again"):
            self._report_change()

    def on_hung(self, running_ms: int) -> None:
        self.go_offline(self._still_running(running_ms))

    def check_disk(self) -> None:
        """Queue one check unless the last is still queued; it judges itself."""
        self.statistics.sample(self._watch.running_ms())
        if self._device is None or (self._check is not None and not self._check.done()):
            return
        if self._saturation.is_rebuilding:
            return
        if self._executor.is_full:
            return  # Busy is not broken; a queue that stands still is the stall watch's business.
        device, has_free_space = self._device, not self._saturation.full_reason
        self._check = self._probe(
            lambda: check_disk(
                self.vfs,
                self.path,
                directory_id=self.directory_id,
                device=device,
                has_free_space=has_free_space,
            ),
            lambda space: self._saturation.note_space(space, self.beat),
        )

    def _probe(self, op: Callable[[], T], settle: Callable[[T], None]) -> asyncio.Future[None]:
        """Queue ``op``; nobody waits. A verdict acts in judge_error, a success in ``settle``."""
        probe: asyncio.Future[None] = self.submit(OpKind.PROBE, op, settle=settle)
        probe.add_done_callback(self._note_seen)
        return probe

    def _note_seen(self, probe: asyncio.Future[None]) -> None:
        """:meth:`judge_error` acted on all errors but one that nobody expected."""
        error = None if probe.cancelled() else probe.exception()
        if error is not None and not isinstance(error, OperatingError):
            self.jobs.log_failure("disk_check", error)
