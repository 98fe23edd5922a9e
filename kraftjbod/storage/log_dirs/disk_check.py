"""DISK. Questions to the disk under a log dir, asked in the dir's thread.

Whether it still is the disk that it was, and takes writes, is asked every
``log.dir.check.interval.ms``; a wrong answer is an ``OSError`` without a number, which its dir
judges like any other. How long it takes to make one write certain is asked of a dir that takes
nothing else at the moment: that check is answered from memory and says little about its speed.
"""

from __future__ import annotations

from errno import ENOENT
from typing import Final

from kraftjbod.core.ids import DirectoryId
from kraftjbod.storage.dir_names import META_PROPERTIES, PROBE_FILE, parse_replica_dir
from kraftjbod.storage.meta_properties import read_meta_properties
from kraftjbod.storage.vfs import OpenMode, Space, Undoing, Vfs

_PROBE_BYTES: Final = bytes(4096)


def check_disk(
    vfs: Vfs, path: str, *, directory_id: DirectoryId, device: int, has_free_space: bool
) -> Space:
    """What the file system at ``path`` has, if it is the right one.

    With ``has_free_space`` a file must be made for it; without, one that exists must open for
    writing, which a full disk allows and a read-only one does not.
    """
    meta = f"{path}/{META_PROPERTIES}"
    # ``exists`` needs no descriptor, and the process may have none left.
    found = read_meta_properties(vfs, meta) if vfs.exists(meta) else None
    if found is None or found.directory_id != directory_id:
        held = "none" if found is None else str(found.directory_id)
        raise OSError(f"directory id is {held}, expected {directory_id}")
    if (now_on := vfs.device(path)) != device:
        raise OSError(f"now on device {now_on}, was on {device}: unmounted or replaced")
    if has_free_space:
        probe = f"{path}/{PROBE_FILE}"
        vfs.open(probe, OpenMode.CREATE).close()
        vfs.unlink_if_exists(probe)
    else:
        vfs.open(meta, OpenMode.READ_WRITE).close()
    return vfs.space(path)


def require_identity(vfs: Vfs, path: str) -> None:
    """Asked before a file is made by a path that an empty disk in this one's place has as well:
    what is left there keeps that disk from being added.

    :raises FileNotFoundError: there is no identity; the check that follows says the rest.
    """
    meta = f"{path}/{META_PROPERTIES}"
    if not vfs.exists(meta):
        raise FileNotFoundError(ENOENT, "not the disk that it was", meta)


def holds_replicas(vfs: Vfs, path: str) -> bool:
    """Whether anything would be served from the dir, the metadata log included."""
    return any(entry.is_dir and parse_replica_dir(entry.name) for entry in vfs.list_dir(path))


def write_probe(vfs: Vfs, directory: str) -> None:
    """A small file, written, synced and removed; the caller takes the time."""
    path = f"{directory}/{PROBE_FILE}"
    file = vfs.open(path, OpenMode.CREATE)
    with Undoing(lambda: vfs.unlink_if_exists(path)):
        file.write_at(0, [_PROBE_BYTES])
        file.sync()
    file.close()
    vfs.unlink_if_exists(path)
