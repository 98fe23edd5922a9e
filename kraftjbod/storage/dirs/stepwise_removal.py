"""LOOP. Removing directories and files of any size in steps, so that no disk operation is long.

Each file is removed in a separate operation. Appends and reads of other replicas run between two
steps, and the stall watch sees each step end.
"""

from __future__ import annotations

from functools import partial

from kraftjbod.storage.dir_names import PARTITION_METADATA
from kraftjbod.storage.dirs.log_dir import LogDir
from kraftjbod.storage.dirs.log_dir_policy import OpKind


async def remove_replica_dir(log_dir: LogDir, path: str) -> None:
    """Remove the directory ``path`` of an unused replica.

    Cost: a listing, and one operation for each file. The file with the topic id is removed first,
    so that the rest of the directory does not count as a replica after a crash.

    :raises OverloadedError: the dir's queue is full. Some files may be removed already; call again.
    :raises KafkaStorageError: the dir is or goes offline.
    """
    vfs = log_dir.vfs
    entries = await log_dir.run(OpKind.DELETE, lambda: vfs.list_dir(path))
    files = [f"{path}/{entry.name}" for entry in entries if not entry.is_dir]
    for file in sorted(files, key=lambda name: not name.endswith(PARTITION_METADATA)):
        await log_dir.run(OpKind.DELETE, partial(vfs.unlink_if_exists, file))
    await log_dir.run(OpKind.DELETE, lambda: vfs.remove_tree(path))
