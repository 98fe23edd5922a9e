"""LOOP. Operations on a log dir's files in threads other than the dir's thread: copies and reads.

* An error of such an operation is judged as if the dir's own thread had met it.
* A copy touches two dirs. It is not always clear which dir a copy waits for, or which dir caused an
  error without a file name. Then the source's own thread reads the same bytes once more: an error
  of that read is the source's.
* Once a dir of an operation is offline, the operation fails at once, even if its thread still runs,
  and no new operation starts: its paths could refer to a directory that was reattached meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from errno import EDQUOT, EINVAL, ENOSPC, ENOSYS, EROFS
from typing import Any, Final, TypeVar

from kraftjbod.core.errors import OverloadedError
from kraftjbod.core.ids import TopicPartition
from kraftjbod.core.loop.own_time import wait_awake
from kraftjbod.storage.log_dirs.dir_executor import LogDirExecutor
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind

T = TypeVar("T")
R = TypeVar("R")

#: What file systems say that the kernel cannot copy between.
_NO_KERNEL_COPIES: Final = frozenset({EINVAL, ENOSYS})
#: No read ever fails with these.
_WRITERS_ONLY: Final = frozenset({ENOSPC, EDQUOT, EROFS})


async def run_copy(
    source: LogDir,
    target: LogDir,
    executor: LogDirExecutor,
    op: Callable[[bool], T],
    *,
    read_again: Callable[[], None],
    settle: Callable[[T], R],
    replica: TopicPartition,
) -> R:
    """Carry out ``op``, which reads files of ``source`` and writes to ``target``, in ``executor``.

    ``op`` gets whether the kernel may copy; ``settle`` as in :meth:`LogDir.begin`.
    ``read_again`` reads once more what ``op`` was reading, if it was: if that fails, or hangs, the
    source is to blame, and else the target is.

    :raises KafkaStorageError: with the id of the dir that is to blame.
    :raises OverloadedError: this process has no memory for the operation now.
    """
    source.require_allowed(OpKind.READ)
    target.require_allowed(OpKind.APPEND)
    by_kernel = target.kernel_copies

    def copy() -> T:
        with source.outside_threads, target.outside_threads:
            _require_online(source, target)
            return op(by_kernel)

    done: asyncio.Future[R] = executor.submit_op(copy, settle=settle)
    source.outside_ops.add(done)
    target.outside_ops.add(done)
    try:
        await _until_done_or_hung(done, executor, target.io_timeout_ms)
        if not done.done():
            await source.run(OpKind.READ, read_again, replica=replica)
        if not done.done():
            target.go_offline(f"a copy into it has been running for {executor.running_for_ms()} ms")
        return await done
    except OSError as e:
        if by_kernel and e.errno in _NO_KERNEL_COPIES:
            target.kernel_copies = False
            raise OverloadedError(f"the kernel does not copy into {target.path}: {e}") from e
        if e.errno not in _WRITERS_ONLY:
            if _is_about_a_file_in(source, e):
                # Read once more it may answer.
                raise source.judge_error(OpKind.READ, e, replica) from e
            await source.run(OpKind.READ, read_again, replica=replica)
        raise target.judge_error(OpKind.APPEND, e, replica) from e
    finally:
        source.outside_ops.discard(done)
        target.outside_ops.discard(done)


def _require_online(*dirs: LogDir) -> None:
    """In the operation's thread, counted already, so that :attr:`LogDir.is_busy` is true."""
    for log_dir in dirs:
        if not log_dir.is_online:
            raise log_dir.offline_error()


def _is_about_a_file_in(log_dir: LogDir, error: OSError) -> bool:
    """Whether the error says so: one of an open file names none."""
    return str(error.filename).startswith(f"{log_dir.path}/")


async def _until_done_or_hung(
    done: asyncio.Future[Any], executor: LogDirExecutor, timeout_ms: int
) -> None:
    """Who beats is not hung, however long it takes; nor is who stood still with this process."""
    beats = None
    while not done.done() and beats != executor.beats:
        beats = executor.beats
        await wait_awake(done, timeout_ms)


async def run_beside(
    log_dir: LogDir, executor: LogDirExecutor, op: Callable[[], T], *, replica: TopicPartition
) -> T:
    """Carry out ``op``, which only reads files of ``log_dir``, in ``executor``.

    What it raises is judged as any read's. How long it takes is not watched: a disk that
    does not answer shows that in the dir's own thread.

    :raises KafkaStorageError: the dir is or goes offline.
    :raises LogDirImpairedError: it takes no reads now.
    """
    log_dir.require_allowed(OpKind.READ)

    def read() -> T:
        with log_dir.outside_threads:
            _require_online(log_dir)
            return op()

    done: asyncio.Future[T] = executor.submit_op(
        read, translate=lambda error: log_dir.judge_error(OpKind.READ, error, replica)
    )
    log_dir.outside_ops.add(done)
    try:
        return await asyncio.shield(done)
    finally:
        log_dir.outside_ops.discard(done)
