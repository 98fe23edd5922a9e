"""LOOP. Operations on a log directory's files in threads other than its own: copies and reads.

* Errors of these operations are judged like errors in the directory's own thread.
* A copy uses two directories. Often neither a hang nor an error tells which directory caused it.
  Then the source's own thread reads the same bytes again: if that read fails, the source is at
  fault, else the target.
* When a directory of an operation goes offline, the operation fails at once, even if its thread
  still runs. Operations that have not started do not start, because their paths could refer to a
  reattached directory.
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

#: Errors of the kernel copy between file systems that do not support it.
_NO_KERNEL_COPIES: Final = frozenset({EINVAL, ENOSYS})
#: Errors that reads never fail with.
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
    """Run ``op``, which reads files of ``source`` and writes files of ``target``, in ``executor``.

    The argument of ``op`` says whether the kernel may copy. Exceptions of ``op`` that are no
    ``OSError`` are raised unchanged.

    :param read_again: repeats the current read of ``op``, if there is one. If this fails or hangs,
        the source is at fault, else the target.
    :param settle: as in :meth:`LogDir.submit_operation`.
    :raises KafkaStorageError: with the id of the directory at fault.
    :raises LogDirImpairedError: ``source`` is stalled, or ``target`` is stalled or full.
    :raises OverloadedError: the process lacks a resource, or the queue of ``executor`` is full. Or
        the kernel cannot copy: call again, and ``op`` gets False.
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
            await source.run_operation(OpKind.READ, read_again, replica=replica)
        if not done.done():
            target.go_offline(f"a copy into it has been running for {executor.running_for_ms()} ms")
        return await done
    except OSError as e:
        if by_kernel and e.errno in _NO_KERNEL_COPIES:
            target.kernel_copies = False
            raise OverloadedError(f"the kernel does not copy into {target.path}: {e}") from e
        if e.errno not in _WRITERS_ONLY:
            if _is_about_a_file_in(source, e):
                # The next attempt may succeed.
                raise source.judge_error(OpKind.READ, e, replica) from e
            await source.run_operation(OpKind.READ, read_again, replica=replica)
        raise target.judge_error(OpKind.APPEND, e, replica) from e
    finally:
        source.outside_ops.discard(done)
        target.outside_ops.discard(done)


def _require_online(*dirs: LogDir) -> None:
    """Raise KafkaStorageError if a directory is offline. Runs in the operation's thread."""
    for log_dir in dirs:
        if not log_dir.is_online:
            raise log_dir.offline_error()


def _is_about_a_file_in(log_dir: LogDir, error: OSError) -> bool:
    """Return whether ``error`` names a file below ``log_dir``.

    Errors of open files name no file.
    """
    return str(error.filename).startswith(f"{log_dir.path}/")


async def _until_done_or_hung(
    done: asyncio.Future[Any], executor: LogDirExecutor, timeout_ms: int
) -> None:
    """Wait until ``done`` is done, or until ``executor`` had no beat for ``timeout_ms``.

    Time during which the process was paused does not count.
    """
    beats = None
    while not done.done() and beats != executor.beats:
        beats = executor.beats
        await wait_awake(done, timeout_ms)


async def run_beside(
    log_dir: LogDir, executor: LogDirExecutor, op: Callable[[], T], *, replica: TopicPartition
) -> T:
    """Run ``op`` in ``executor`` and return its result. ``op`` only reads files of ``log_dir``.

    An ``OSError`` is judged as a read error, other exceptions of ``op`` are raised unchanged. The
    duration is not watched, because the watch of the directory's own thread finds a disk that does
    not respond.

    :raises KafkaStorageError: the directory is or goes offline.
    :raises LogDirImpairedError: the directory is stalled.
    :raises OverloadedError: the process lacks a resource, or the queue of ``executor`` is full.
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
        return await done
    finally:
        log_dir.outside_ops.discard(done)
