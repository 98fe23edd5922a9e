"""LOOP. Removing directories and files of any size in steps, so that no disk operation is long.

Each file is removed in an operation of its own. Appends and reads of other replicas that were
requested meanwhile come between two steps, and the stall watch sees each step end.
"""

from __future__ import annotations

from functools import partial

from kraftjbod.storage.dir_names import PARTITION_METADATA
from kraftjbod.storage.dirs.log_dir import LogDir
from kraftjbod.storage.dirs.log_dir_policy import OpKind


async def remove_replica_dir(log_dir: LogDir, path: str) -> None:
    """Remove the directory ``path`` of a replica that nothing uses any more.

    Cost: a listing, and one operation for each file. The topic id goes first: what a crash leaves
    is not taken for a replica.

    :raises OverloadedError: too much waits for the dir. Files may be gone; ask again.
    :raises KafkaStorageError: the dir is or goes offline.
    """
    vfs = log_dir.vfs
    entries = await log_dir.run(OpKind.DELETE, lambda: vfs.list_dir(path))
    files = [f"{path}/{entry.name}" for entry in entries if not entry.is_dir]
    for file in sorted(files, key=lambda name: not name.endswith(PARTITION_METADATA)):
        await log_dir.run(OpKind.DELETE, partial(vfs.unlink_if_exists, file))
    await log_dir.run(OpKind.DELETE, lambda: vfs.remove_tree(path))
