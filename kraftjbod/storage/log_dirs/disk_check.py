"""DISK. Checks of the disk below a log directory, run in the directory's thread.

``check_disk`` runs every ``log.dir.check.interval.ms`` and finds out whether the disk is still the
same one and writable. If not, it raises an ``OSError``, which the directory judges like any other.
``write_probe`` is a durable write, whose duration the caller measures. The duration of
``check_disk`` says little, because the page cache answers it.
"""

from __future__ import annotations

from errno import ENOENT
from typing import Final

from kraftjbod.core.errors import StartupError
from kraftjbod.core.ids import DirectoryId
from kraftjbod.storage.dir_names import META_PROPERTIES, PROBE_FILE, parse_replica_dir
from kraftjbod.storage.meta_properties import read_meta_properties
from kraftjbod.storage.vfs import OpenMode, Space, Undoing, Vfs

_PROBE_BYTES: Final = bytes(4096)


def check_disk(
    vfs: Vfs, path: str, *, directory_id: DirectoryId, device: int, has_free_space: bool
) -> Space:
    """Return the space of the file system at ``path`` if it is the expected one.

    :param device: the expected ``st_dev``.
    :param has_free_space: True: the check creates and removes a file. False: it opens an existing
        file for writing, which a full disk allows and a read-only disk does not.
    :raises OSError: another directory id or device than expected, or an invalid
        ``meta.properties`` (all without errno), or a failed call.
    """
    meta = f"{path}/{META_PROPERTIES}"
    try:
        # ``exists`` needs no descriptor, and the process may have none left.
        found = read_meta_properties(vfs, meta) if vfs.exists(meta) else None
    except StartupError as e:
        raise OSError(str(e)) from e
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
    """Raise an error if ``meta.properties`` is missing in ``path``. Called before a file is created
    there.

    If the disk was unmounted, ``path`` can be an empty directory of another disk. Files left there
    would prevent that directory from being added later.

    :raises FileNotFoundError: the file is missing. The next :func:`check_disk` finds the cause.
    """
    meta = f"{path}/{META_PROPERTIES}"
    if not vfs.exists(meta):
        raise FileNotFoundError(ENOENT, "not the disk that it was", meta)


def holds_replicas(vfs: Vfs, path: str) -> bool:
    """Return whether ``path`` contains replica directories. The metadata log counts as one."""
    return any(entry.is_dir and parse_replica_dir(entry.name) for entry in vfs.list_dir(path))


def write_probe(vfs: Vfs, directory: str) -> None:
    """Write, sync and remove a file of 4 KiB. The caller measures the time. If the write or the
    sync fails, the file is removed too.
    """
    path = f"{directory}/{PROBE_FILE}"
    file = vfs.open(path, OpenMode.CREATE)
    with Undoing(lambda: vfs.unlink_if_exists(path)):
        # The check is repeated on a full disk, and files have no finalizer.
        with Undoing(file.close):
            file.write_at(0, [_PROBE_BYTES])
            file.sync()
        file.close()
    vfs.unlink_if_exists(path)
