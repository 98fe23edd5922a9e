"""LOOP. Removal of directories and files of any size in steps, so that no disk operation is long.

Each file is removed in a separate operation, a large one in several: unlinking a GiB can take
seconds where the file system discards freed blocks. Appends and reads of other replicas run between
two steps, and the stall watch sees each step end.
"""

from __future__ import annotations

from functools import partial

from kraftjbod.storage.dir_names import PARTITION_METADATA
from kraftjbod.storage.log_dirs.log_dir import LogDir
from kraftjbod.storage.log_dirs.log_dir_policy import OpKind
from kraftjbod.storage.vfs import DirEntry, remove_part


async def remove_replica_dir(log_dir: LogDir, path: str) -> None:
    """Remove the directory ``path`` of an unused replica. No effect if it does not exist.

    Cost: a listing, and one operation for each file and for each further ``REMOVAL_BYTES`` of it.
    The file with the topic id is removed first, so that the rest of the directory does not count as
    a replica after a crash. The removal is not synced.

    :raises OverloadedError: the directory is stalled, or its queue is full. Some files may be
        removed already; call again.
    :raises KafkaStorageError: the directory is or goes offline.
    """
    vfs = log_dir.vfs

    def list_files() -> list[DirEntry]:
        return vfs.list_dir(path) if vfs.is_dir(path) else []

    entries = await log_dir.run_operation(OpKind.DELETE, list_files)
    files = [f"{path}/{entry.name}" for entry in entries if not entry.is_dir]
    for file in sorted(files, key=lambda name: not name.endswith(PARTITION_METADATA)):
        while await log_dir.run_operation(OpKind.DELETE, partial(remove_part, vfs, file)):
            pass
    await log_dir.run_operation(OpKind.DELETE, lambda: vfs.remove_tree(path))
