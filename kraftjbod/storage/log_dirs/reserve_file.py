"""DISK. ``ReserveFile``: space that a log directory reserves for a full disk (KIP-928).

* The content is random and differs for each MiB, so that no file system compresses or shares it.
* A complete reserve has the configured length, allocated blocks for all bytes, and is durable.
* The reserve is released by unlinking it. It is needed because freeing space may need space first:
  retention rolls a new segment before it deletes old ones.

The methods run in the directory's thread, and the directory judges their errors. After ENOSPC it
calls :meth:`release`, so that no incomplete file stays.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOSPC
from typing import Final

from kraftjbod.storage.dir_names import RESERVE_FILE
from kraftjbod.storage.vfs import OpenMode, Undoing, Vfs

_CHUNK_BYTES: Final = 1024 * 1024
#: Sync in steps: one long sync at the end could look like a hung disk.
_SYNC_BYTES: Final = 8 * _CHUNK_BYTES


class ReserveFile:
    """The reserve file of one directory.

    ``size_bytes`` 0 disables it: the reserve is complete if no file exists.
    """

    def __init__(
        self, *, vfs: Vfs, directory: str, size_bytes: int, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._vfs = vfs
        self._directory = directory
        self._path = f"{directory}/{RESERVE_FILE}"
        self._random_bytes = random_bytes
        self.size_bytes = size_bytes
        #: Whether the reserve is complete, as known to this process. Written in the directory's
        #: thread.
        self.is_held = False

    def find(self) -> bool:
        """Look at the disk, set ``is_held``, and return whether the reserve is complete.

        An earlier run of the process may have written the file.
        """
        found = self._vfs.extent_if_exists(self._path)
        if found is None or not self.size_bytes:
            self.is_held = found is None and not self.size_bytes
        else:
            self.is_held = (
                found.size_bytes == self.size_bytes and found.allocated_bytes >= self.size_bytes
            )
        return self.is_held

    def build(self, beat: Callable[[], None]) -> None:
        """Make the reserve complete and durable. Calls ``beat`` between the steps.

        :raises OSError: ENOSPC, if the file does not fit. Nothing is written if the file system
            reports too little space; otherwise an incomplete file may stay.
        """
        if self.find():
            return
        self.release()
        free_bytes = self._vfs.space(self._directory).usable_bytes
        if free_bytes < self.size_bytes:
            what = f"a reserve of {self.size_bytes} bytes does not fit into {free_bytes} free bytes"
            raise OSError(ENOSPC, what)
        if self.size_bytes:
            file = self._vfs.open(self._path, OpenMode.CREATE)
            # Unlinking frees no space while the file is open.
            with Undoing(file.close):
                for position in range(0, self.size_bytes, _CHUNK_BYTES):
                    size = min(_CHUNK_BYTES, self.size_bytes - position)
                    file.write_at(position, [self._random_bytes(size)])
                    if position % _SYNC_BYTES == 0:
                        file.sync()
                    beat()
                file.sync()
            file.close()
        self._vfs.sync_dir(self._directory)
        self.is_held = True

    def release(self) -> bool:
        """Unlink the file, if it exists. Return whether the reserve was complete (``is_held``)."""
        was_held, self.is_held = self.is_held and self.size_bytes > 0, False
        self._vfs.unlink_if_exists(self._path)
        return was_held
