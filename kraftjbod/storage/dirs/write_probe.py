"""DISK. How long a disk takes to make one write certain: a small file, written, synced and removed.

For a dir that takes nothing else at the moment: the check of whether it is still the same disk is
answered from memory and says little about its speed.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.storage.dir_names import PROBE_FILE
from kraftjbod.storage.vfs import OpenMode, Undoing, Vfs

_PROBE_BYTES: Final = bytes(4096)


def write_probe(vfs: Vfs, directory: str) -> None:
    """In the dir's thread; the caller takes the time."""
    path = f"{directory}/{PROBE_FILE}"
    file = vfs.open(path, OpenMode.CREATE)
    with Undoing(lambda: vfs.unlink_if_exists(path)):
        file.write_at(0, [_PROBE_BYTES])
        file.sync()
    file.close()
    vfs.unlink_if_exists(path)
