"""LOOP. ``LogDir``: one log directory, its threads, and the only place where disk errors are
judged.

* Every operation goes through :meth:`LogDir.submit_operation` or a method built on it. Its
  ``OSError`` is judged here, and the caller gets a :class:`KafkaStorageError`. The subclass of the
  error names the kind of operation (KIP-18).
* The state changes only here, by the table of ``core/log_dir_state.py``. An impaired directory
  (SATURATED or STALLED) refuses some kinds of operations with a retriable error:
  ``log_dir_policy.is_allowed``.
* OFFLINE is permanent: a reattached directory is a new object. All pending operations fail at once
  and the threads are abandoned. Another thread redirects the open files, because closing them can
  hang. Their descriptors are closed once no thread can still use them.
* ``saturation.py`` handles a full disk.
* An operation that runs for too long makes the directory STALLED (``dir_watch.py``). Queued
  operations that may be taken back fail. New ones are refused until the operation ends. After
  ``log.dir.io.timeout.ms`` the directory goes OFFLINE.
* ``outside_operations.py`` runs operations on the directory's files in other threads.
* fsyncs of segments and of checkpoints have their own thread, so that a slow fsync does not delay
  appends. Pure computations have another thread, whose duration says nothing about the disk.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
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
    FailsAs,
    OpKind,
    Verdict,
    error_class,
    judge,
    kind_of_failure,
)
from kraftjbod.storage.log_dirs.reserve_file import ReserveFile
from kraftjbod.storage.log_dirs.saturation import Saturation
from kraftjbod.storage.vfs import Vfs, VfsFile, sync_and_rename, write_temporary

T = TypeVar("T")
R = TypeVar("R")

#: Errors of RWF_NOWAIT on tmpfs and on old kernels.
_NO_CACHED_READS: Final = frozenset({EOPNOTSUPP, EINVAL})
#: Limit of pending computations of one directory.
_MAX_COMPUTED_OPS: Final = 1_000
_MAX_COMPUTED_BYTES: Final = 64 * 1024 * 1024
_LACKS_LOGGED_EVERY_MS: Final = 10_000


class _OpSettings(NamedTuple):
    """How operations of one kind run.

    - ``on_error``: called in the thread with the exception of a failed operation.
    - ``makes_names``: the thread checks ``meta.properties`` before the operation.
    """

    executor: LogDirExecutor
    on_error: Callable[[BaseException], None]
    group: IoGroup
    may_be_taken_back: bool
    makes_names: bool


def _do_nothing(_error: BaseException) -> None:
    pass


class _OpName(NamedTuple):
    """Text of an operation for messages: its kind, and its replica if it has one."""

    kind: OpKind
    replica: TopicPartition | None

    def __str__(self) -> str:
        return self.kind.value if self.replica is None else f"{self.kind.value} of {self.replica}"


class _LackEventLimit:
    """Limits the log event ``log_dir_operation_lacked_resources`` to one in 10 s."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._unlogged = 0
        self._logged_from_ms = 0

    def count(self) -> int:
        """Count one operation.

        Return the number since the last event if an event is due, else 0.
        """
        self._unlogged += 1
        now_ms, times = self._clock.now_ms(), self._unlogged
        if now_ms < self._logged_from_ms:
            return 0
        self._logged_from_ms, self._unlogged = now_ms + _LACKS_LOGGED_EVERY_MS, 0
        return times


class LogDirFailureChannel:
    """Queue of directories whose state changed while the daemon ran, oldest change first.

    A directory is in the queue at most once. The consumer acts on its state at the time of
    :meth:`take`.
    """

    def __init__(self, *, max_dirs: int) -> None:
        self._changed: asyncio.Queue[LogDir] = asyncio.Queue(max_dirs)
        self._waiting: set[LogDir] = set()

    def report(self, log_dir: LogDir) -> None:
        if log_dir not in self._waiting:
            self._waiting.add(log_dir)
            self._changed.put_nowait(log_dir)

    async def take(self) -> LogDir:
        """Wait until a directory is in the queue, remove it and return it. Its state may have
        changed again since the report.
        """
        log_dir = await self._changed.get()
        self._waiting.discard(log_dir)
        return log_dir


class LogDir(DirCondition):
    """One log directory: runs disk operations in its threads, judges their errors, and changes its
    state accordingly. All methods run on the event loop, except as documented.

    OFFLINE is final: a reattached directory is a new object.
    """

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
        self.is_cordoned = is_cordoned  # No new replicas are placed here (KIP-1066).
        #: Broker epoch and incarnation of the clean shutdown mark found at the start.
        self.clean_shutdown = NO_CLEAN_SHUTDOWN
        self.statistics = IoStatistics()
        self.jobs = JobGuard(log_dir=path)
        self._failure_channel, self._service_channel = failure_channel, failure_channel
        self.io_timeout_ms = io_timeout_ms
        #: Creates executors for work in other threads on this directory, such as scrubbing.
        self.make_executor = make_executor
        self._make_executors(clock, max_queued_ops, max_queued_bytes)
        self._watch = DirWatch(
            self,
            {
                self._executor: min(io_suspect_ms, io_timeout_ms),
                # The duration of an fsync grows with the dirty data: 1 GiB may take seconds.
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
        self._op_settings = {kind: self._settings_of(kind) for kind in OpKind}
        #: ``st_dev`` when the directory was identified. Another number means another disk.
        self._device: int | None = None
        #: Held from :meth:`try_lock` to :meth:`close`.
        self._lock_file: VfsFile | None = None
        #: The operation that releases the lock, once the directory is closed or OFFLINE.
        self._unlocking: asyncio.Future[None] | None = None
        self._io_suspect_ms = io_suspect_ms
        self._cached_reads = True
        #: False after the kernel refused to copy files into this directory.
        self.kernel_copies = True
        #: Pending operations of outside_operations.py, and the threads that still run one.
        self.outside_ops: set[asyncio.Future[Any]] = set()
        self.outside_threads = ThreadCount()
        self._are_files_closed = False
        self._lack_events = _LackEventLimit(clock)
        self._check: asyncio.Future[None] | None = None
        self._gone = asyncio.Event()
        #: Reason of :meth:`suspect`: the directory counts as stalled though its operations end.
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
        #: Held during a replacement of each path: see :meth:`replace_file`.
        self._replacing: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        #: Computations use no disk, so no watch limits their duration.
        self._compute_executor = self.make_executor(
            name=f"log-dir-compute:{self.path}",
            clock=clock,
            max_ops=_MAX_COMPUTED_OPS,
            max_bytes=_MAX_COMPUTED_BYTES,
        )
        #: Abandons and closes files after the end, because both may hang with the disk.
        self._end_executor = self.make_executor(name=f"log-dir-let-go:{self.path}", clock=clock)

    def __repr__(self) -> str:
        return f"<LogDir {self.path} {self.directory_id} {self.state.value}>"

    @property
    def is_busy(self) -> bool:
        """Whether a thread runs an operation on the directory's files, even one that was
        abandoned.
        """
        is_running = self._executor.is_running or self._flush_executor.is_running
        return is_running or bool(self.outside_threads)

    @property
    def running_ms(self) -> int:
        """Milliseconds since the running operation of the main thread started or last reported
        progress (:meth:`beat`); 0 if none runs.
        """
        return self._executor.running_for_ms()

    @property
    def reserve_bytes(self) -> int:
        """Bytes that the reserve file holds for a full disk; 0 after it was released."""
        return self._saturation.reserve_bytes

    # -- operations -------------------------------------------------------------------------

    def submit(
        self,
        kind: OpKind,
        op: Callable[[], T],
        *,
        settle: Callable[[T], R] | None = None,
        replica: TopicPartition | None = None,
    ) -> asyncio.Future[R]:
        """Queue ``op`` as :meth:`submit_operation` does, with the same errors, and return a future
        of the answer.

        Cancelling the future does not cancel the operation.
        """
        done: Completion[R] = self.submit_operation(kind, op, settle=settle, replica=replica)
        return done.future()

    def submit_operation(
        self,
        kind: OpKind,
        op: Callable[[], T],
        *,
        settle: Callable[[T], R] | None = None,
        size_bytes: int = 0,
        replica: TopicPartition | None = None,
    ) -> Completion[R]:
        """Queue ``op`` for the directory's thread, or for the flush thread if ``kind`` is FLUSH.

        :param settle: called on the event loop with the result of ``op``, even if the caller
            stopped waiting. It publishes the effects of the operation and returns the answer.
            Without it, the result of ``op`` is the answer.
        :param size_bytes: memory that the operation holds until it is answered.
        :param replica: the replica of the operation, for log events about a failure.
        :returns: the completion, which gets the answer. If ``op`` raises an ``OSError``, it gets
            the error that :meth:`judge_error` returns, otherwise the exception of ``op``.
        :raises KafkaStorageError: the directory is offline.
        :raises LogDirImpairedError: the state of the directory forbids ``kind`` now.
        :raises OverloadedError: the queue is full.
        """
        if self.state is not LogDirState.ONLINE:
            self.require_allowed(kind)
        executor, on_error, group, may_be_taken_back, makes_names = self._op_settings[kind]
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

    def _settings_of(self, kind: OpKind) -> _OpSettings:
        is_flush = kind is OpKind.FLUSH
        return _OpSettings(
            self._flush_executor if is_flush else self._executor,
            # Only the main thread may change the reserve. After a full disk in the flush thread,
            # the saturation asks it to.
            _do_nothing if is_flush else partial(self._saturation.give_reserve_if_full, kind),
            GROUPS[kind],
            kind in TAKES_SPACE,
            kind in MAKES_NAMES,
        )

    def if_ours(self, op: Callable[[], T]) -> Callable[[], T]:
        """Return a function that checks that ``meta.properties`` exists and then runs ``op``.

        The check raises FileNotFoundError if the disk was unmounted. A directory that was not
        identified yet is not checked.
        """

        def op_if_ours() -> T:
            if self._device is not None:
                require_identity(self.vfs, self.path)
            return op()

        return op_if_ours

    async def run_operation(
        self, kind: OpKind, op: Callable[[], T], *, replica: TopicPartition | None = None
    ) -> T:
        """Run ``op`` as :meth:`submit_operation` does, and wait for its result.

        Raises the errors of :meth:`submit_operation` and of its completion. Cancelling the wait
        does not cancel ``op``.
        """
        return await cast("asyncio.Future[T]", self.submit(kind, op, replica=replica))

    async def read_text(self, kind: OpKind, path: str) -> str | None:
        """Return the content of a small text file, or None if it does not exist.

        Bytes that are not UTF-8 are replaced.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the state of the directory forbids ``kind``, or its queue is full.
        """
        if not await self.run_operation(kind, lambda: self.vfs.exists(path)):
            return None
        source = await self.run_operation(kind, lambda: self.vfs.open_stream(path))
        stream = aiofiles.threadpool.wrap(source, executor=self._executor)
        try:
            data = bytes(await stream.read())
            await stream.close()
        except OSError as e:
            raise self.judge_error(kind, e) from e
        return data.decode("utf-8", errors="replace")

    async def replace_file(self, path: str, data: bytes) -> None:
        """Replace the content of the file ``path`` atomically, and wait until it is durable.

        The flush thread syncs and renames the new file: on ext4 an fsync of even a small file
        waits for the data of all files that grew, which may take seconds and must not delay
        appends. Calls for the same path take effect in their order. Cancelling the wait does not
        cancel the replacement.

        :param path: one of a few files directly in the directory, such as a checkpoint.
        :raises KafkaStorageError: the directory is or goes offline.
        :raises OverloadedError: the directory is full or stalled, or its queue is full. The old
            content stays, or the new content is not durable.
        """
        replacing = asyncio.ensure_future(self._replace_file(path, data))
        replacing.add_done_callback(partial(self._report_bug, "replace_file"))
        await asyncio.shield(replacing)

    async def _replace_file(self, path: str, data: bytes) -> None:
        def sync_and_rename_it() -> None:
            with FailsAs(OpKind.CHECKPOINT):
                sync_and_rename(self.vfs, temporary, path)

        async with self._replacing[path]:
            temporary = await self.run_operation(
                OpKind.CHECKPOINT, lambda: write_temporary(self.vfs, path, data, sync=False)
            )
            await self.run_operation(OpKind.FLUSH, sync_and_rename_it)

    def read_cached(
        self, file: VfsFile, position: int, size: int, *, replica: TopicPartition | None = None
    ) -> memoryview | None:
        """Read up to ``size`` bytes at ``position`` from the page cache, without waiting for the
        disk. Fewer bytes are returned at the end of the file and before uncached bytes.

        Returns None if the first byte is not cached, or if the file system does not support such
        reads. Then read in the directory's thread.

        :raises KafkaStorageError: the directory is or goes offline.
        :raises LogDirImpairedError: the directory is stalled.
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
        """Run ``op`` in the thread for computations and return its result. ``op`` accesses no file.

        An exception of ``op`` is raised unchanged.

        :param size_bytes: memory that the computation holds until it has ended.
        :raises KafkaStorageError: the directory is or goes offline.
        :raises LogDirImpairedError: the directory is stalled.
        :raises OverloadedError: too many computations or bytes are queued.
        """
        self.require_allowed(OpKind.READ)
        computed: asyncio.Future[T] = self._compute_executor.submit_op(op, size_bytes=size_bytes)
        return await computed

    def beat(self) -> None:
        """Report progress of a long operation, so that it does not count as stalled. Called in the
        directory's thread.
        """
        self._executor.beat()

    def flush_beat(self) -> None:
        """Report progress of a long flush, so that it does not count as stalled. Called in the
        flush thread.
        """
        self._flush_executor.beat()

    # -- life cycle -------------------------------------------------------------------------

    def identify(self, directory_id: DirectoryId, device: int) -> None:
        """Set the directory id, and the device number (``st_dev``) that later checks expect."""
        self.directory_id = directory_id
        self._device = device

    def try_lock(self) -> bool:
        """Lock the directory (``.lock``) until it is closed or OFFLINE. Return False if another
        process or object holds the lock.

        Call it in the directory's thread.
        """
        self._lock_file = self.vfs.try_lock(f"{self.path}/{LOCK_FILE}")
        return self._lock_file is not None

    def put_on_trial(self) -> None:
        """Suppress reports of state changes until :meth:`take_into_service`.

        Call this before any operation on a directory that is opened at run time.
        """
        self.is_on_trial = True
        self._service_channel, self._failure_channel = (
            self._failure_channel,
            LogDirFailureChannel(max_dirs=1),
        )

    def take_into_service(self) -> None:
        """End the trial: report the present state unless it is ONLINE, and all later changes."""
        self.is_on_trial = False
        self._failure_channel = self._service_channel
        if self.state is not LogDirState.ONLINE:
            self._failure_channel.report(self)

    def start_watches(self) -> None:
        """Watch for stalled operations and for a missing disk until :meth:`close` or OFFLINE."""
        self._watch.start()

    async def secure_reserve(self) -> None:
        """Make the reserve file complete and durable, before logs are recovered (KIP-928).

        :raises LogDirImpairedError: no space is left for it; the directory is SATURATED.
        :raises KafkaStorageError: the directory goes offline.
        """
        await self.run_operation(OpKind.START, lambda: self._saturation.secure_reserve(self.beat))

    def suspect(self, reason: str) -> None:
        """Make the directory STALLED until :meth:`absolve`, although its operations end.

        Used for a directory that is slow compared with others (``slow_dirs.py``).
        """
        self._demotion = reason
        self._stall(reason)

    def absolve(self) -> None:
        """Undo :meth:`suspect`. The directory stays STALLED while an operation is running for too
        long.
        """
        self._demotion = ""
        self.on_answer()

    def go_offline(self, reason: str, *, report: bool = True, **failed: str) -> None:
        """Set the state to OFFLINE, fail all pending operations, abandon threads and files.

        Returns at once; another thread releases the files and the lock: see :meth:`unlocked`. No
        effect if the state is OFFLINE.

        :param reason: text for the log event and for the errors of later operations.
        :param report: whether the failure channel gets the directory.
        :param failed: fields of the log event: ``operation`` and ``replica``.
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
        # Open files would prevent the disk from being unmounted and checked.
        self._unlocks(self._end_executor.submit_op(lambda: self.vfs.let_go(self.path)))
        self._close_files_when_unused()
        if report:
            self._report_change()

    async def leave(self) -> None:
        """Abandon the open files of an online directory that holds no replicas, and :meth:`close`.

        The directory is closed even if an error is raised; then its files may still be open.

        :raises OverloadedError: the queue of the directory is full.
        :raises KafkaStorageError: the directory is or goes offline.
        """
        try:
            await self.run_operation(OpKind.CLOSE, lambda: self.vfs.let_go(self.path))
        finally:
            self.close()
            if self.is_online:
                self._close_files_when_unused()

    def _close_files_when_unused(self) -> None:
        """Close the abandoned descriptors as soon as no thread can still use one of their numbers.

        While a thread hangs in the kernel, they stay open.
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
        closing: asyncio.Future[None] = self._end_executor.submit_op(
            lambda: self.vfs.close_let_go(self.path)
        )
        self._end_executor.shutdown(wait=False)
        closing.add_done_callback(self._note_closed)

    def _note_closed(self, closing: asyncio.Future[None]) -> None:
        if not closing.cancelled() and (error := closing.exception()) is not None:
            self.jobs.log_failure("close_files", error)

    async def gone(self) -> None:
        """Wait until the directory is OFFLINE, even if it is on trial and the failure is not
        reported.
        """
        await self._gone.wait()

    def close(self) -> None:
        """Stop the watches, release the lock after the queued operations, and let the threads end.

        Returns at once; :meth:`unlocked` waits for the lock. Open files stay open. Submit no
        operation afterwards: it would get no answer.
        """
        self._watch.stop()
        if self.is_online:
            if self._lock_file is not None and self._unlocking is None:
                # A queue full of operations must not keep the lock while this process lives.
                unlocking: Completion[None] = self._executor.begin_op(
                    self._lock_file.close,
                    translate=lambda error: self.judge_error(OpKind.START, error),
                    what=_OpName(OpKind.START, None),
                    is_last=True,
                )
                self._unlocks(unlocking.future())
            self._executor.shutdown(wait=False)
            self._flush_executor.shutdown(wait=False)
            self._compute_executor.shutdown(wait=False)

    def _unlocks(self, unlocking: asyncio.Future[None]) -> None:
        self._unlocking = unlocking
        # judge_error has handled a failure, and no caller waits for this future.
        unlocking.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def unlocked(self) -> bool:
        """After :meth:`close` or OFFLINE, wait up to ``log.dir.io.suspect.ms`` for the release of
        the lock.

        Returns False if that time passed, else True: another object may lock the directory now.
        """
        if self._unlocking is None:
            return True
        return await wait_awake(self._unlocking, self._io_suspect_ms)

    # -- judging ----------------------------------------------------------------------------

    def judge_error(
        self, kind: OpKind, error: BaseException, replica: TopicPartition | None = None
    ) -> BaseException:
        """Return the exception for the caller of a failed operation, and change the state as
        ``error`` demands.

        The exception is a subclass of KafkaStorageError for a failed disk or an invalid call, a
        LogDirImpairedError for a full disk, and an OverloadedError if the process lacks
        descriptors or memory. An error that is no ``OSError`` is returned unchanged.
        """
        if not isinstance(error, OSError):
            return error
        if not self.is_online:
            return self.offline_error()
        part = kind_of_failure(error, kind)
        said = f"{part.value}: {error}"
        report = kind is not OpKind.START  # A directory that is starting was never registered.
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
        """Log an error that looks like a bug, unless the pending disk check takes the directory
        OFFLINE.
        """

        def checked(_check: object) -> None:
            if self.is_online:
                self.log.error("log_dir_operation_made_no_sense", reason=said, exc_info=error)

        if self._check is None or self._check.done():
            checked(None)
        else:
            self._check.add_done_callback(checked)

    def _report_lack(self, said: str) -> None:
        if times := self._lack_events.count():
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
        """End the state STALLED, unless an operation runs for too long or :meth:`suspect` is in
        effect. The next state is SATURATED if the disk is still full, else ONLINE.
        """
        if self._watch.is_suspicious or self._demotion:
            return
        event = LogDirEvent.ANSWERED_FULL if self._saturation.full_reason else LogDirEvent.ANSWERED
        if self.step(event, self._saturation.full_reason or "operations end again"):
            self._report_change()

    def on_hung(self, running_ms: int) -> None:
        self.go_offline(self._still_running(running_ms))

    def check_disk(self) -> None:
        """Update the latency average, and queue a check of the disk. Returns at once.

        No check is queued before :meth:`identify`, while a check or a rebuild of the reserve is
        pending, or while the queue is full. The check sets ``space``; an error is judged.
        """
        self.statistics.sample(self._watch.running_ms())
        if self._device is None or (self._check is not None and not self._check.done()):
            return
        if self._saturation.is_rebuilding:
            return
        if self._executor.is_full:
            return  # A full queue is no failure; the stall watch finds a stuck queue.
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
        """Queue ``op`` as a PROBE and return its future, which needs no waiter.

        :meth:`judge_error` handles a failure. ``settle`` gets the result of ``op``.
        """
        probe: asyncio.Future[None] = self.submit(OpKind.PROBE, op, settle=settle)
        probe.add_done_callback(partial(self._report_bug, "disk_check"))
        return probe

    def _report_bug(self, job: str, done: asyncio.Future[None]) -> None:
        """Log an error that :meth:`judge_error` does not handle, for a job without a waiter."""
        error = None if done.cancelled() else done.exception()
        if error is not None and not isinstance(error, OperatingError):
            self.jobs.log_failure(job, error)
