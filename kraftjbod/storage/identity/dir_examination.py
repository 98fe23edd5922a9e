"""LOOP. Examines a directory's identity in its own thread, and gives a new directory its id.

A start and the addition of a directory at run time use these functions. Only the lock file and a
first ``meta.properties`` are written.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kraftjbod.core.errors import KafkaStorageError, LogDirImpairedError, StartupError
from kraftjbod.core.ids import BrokerId, DirectoryId
from kraftjbod.core.loop.own_time import wait_awake
from kraftjbod.core.telemetry import get_logger
from kraftjbod.storage.checkpoints import (
    NO_CLEAN_SHUTDOWN,
    CleanShutdown,
    CorruptCheckpointError,
    parse_clean_shutdown,
)
from kraftjbod.storage.dir_names import (
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_METADATA_DIR,
    LOCK_FILE,
    META_PROPERTIES,
)
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.meta_properties import (
    MetaProperties,
    read_meta_properties,
    write_meta_properties,
)
from kraftjbod.storage.vfs import Vfs


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """Identity, device and state of a directory, as found on its disk.

    ``properties`` is None if ``meta.properties`` does not exist.
    """

    properties: MetaProperties | None
    device: int
    holds_cluster_metadata: bool
    clean_shutdown: CleanShutdown = NO_CLEAN_SHUTDOWN
    """Content of the clean shutdown mark, which is not removed."""


async def examine(log_dir: LogDir, *, timeout_ms: int) -> Examination | None:
    """Examine the directory, and lock it if it has ``meta.properties``. Return None if it is
    OFFLINE now.

    A missing directory, an error, or no answer within ``timeout_ms`` takes the directory OFFLINE,
    without a report.

    :raises StartupError: another process or object holds the lock.
    """
    try:
        asked: asyncio.Future[Examination] = log_dir.submit(OpKind.START, lambda: _examine(log_dir))
        if not await wait_awake(asked, timeout_ms):
            log_dir.go_offline("it did not answer while starting", report=False)
        return await asked
    except KafkaStorageError as e:
        log_dir.go_offline(e.message, report=False)
    except LogDirImpairedError as e:
        # There was no space for the lock file.
        log_dir.go_offline(str(no_space(log_dir.path, e)), report=False)
    return None


def no_space(path: str, error: LogDirImpairedError) -> StartupError:
    """Return the StartupError for a directory on whose disk the first files do not fit. The message
    names ``path`` and the remedy.
    """
    return StartupError(
        f"{path} has no space to start with: {error.message}. Free some space, "
        f"or lower log.dir.reserve.bytes (0: no reserve)"
    )


def _examine(log_dir: LogDir) -> Examination:
    """Implement :func:`examine` in the directory's thread."""
    vfs, path = log_dir.vfs, log_dir.path
    if not vfs.exists(path):
        raise KafkaStorageError(
            f"{path} does not exist: mount its disk, or restore the directory from a backup; "
            f"use `kraftjbod-storage format` only if it never existed"
        )
    if not vfs.is_dir(path):
        raise KafkaStorageError(f"{path} is no directory")
    device = vfs.device(path)
    try:
        properties = read_meta_properties(vfs, f"{path}/{META_PROPERTIES}")
    except StartupError as e:
        raise KafkaStorageError(str(e)) from e
    if properties is not None and not log_dir.try_lock():
        raise StartupError(
            f"Failed to acquire lock on file {LOCK_FILE} in {path}. "
            f"A process or thread is using this directory."
        )
    return Examination(
        properties=properties,
        device=device,
        holds_cluster_metadata=vfs.exists(f"{path}/{CLUSTER_METADATA_DIR}"),
        clean_shutdown=_clean_shutdown(vfs, f"{path}/{CLEAN_SHUTDOWN_FILE}"),
    )


def _clean_shutdown(vfs: Vfs, path: str) -> CleanShutdown:
    data = vfs.read_if_exists(path)
    try:
        text = "{}" if data is None else bytes(data).decode("utf-8")
        return parse_clean_shutdown(text, path)
    except (CorruptCheckpointError, UnicodeDecodeError):
        return NO_CLEAN_SHUTDOWN


async def give_id(
    log_dir: LogDir, directory_id: DirectoryId, *, cluster_id: str, node_id: BrokerId
) -> None:
    """Lock the directory and write its first ``meta.properties`` with ``directory_id``, durably.

    :raises StartupError: another process or object holds the lock.
    :raises KafkaStorageError: the directory goes offline.
    :raises LogDirImpairedError: no space is left.
    """
    properties = MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)
    if not await log_dir.run_operation(OpKind.START, log_dir.try_lock):
        raise StartupError(f"{log_dir.path} is in use by another process")
    await log_dir.run_operation(
        OpKind.START, lambda: write_meta_properties(log_dir.vfs, log_dir.path, properties)
    )
    get_logger().info("log_dir_given_id", log_dir=log_dir.path, directory_id=str(directory_id))
