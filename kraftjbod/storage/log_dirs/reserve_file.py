"""DISK. ``ReserveFile``: space that a log dir keeps for the day its disk is full (KIP-928).

* Random bytes, drawn afresh for each MiB, so that no file system compresses or shares them.
* Whole means: as long as it should be, with blocks for all of it, and on the disk.
* Given up by unlinking it: what frees space (a new segment before old ones go) may need some.

Everything here runs in the dir's thread, and an error is the dir's to judge: whoever judges that
there was no space calls :meth:`release`, so that nothing half made stays.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOSPC
from typing import Final

from kraftjbod.storage.dir_names import RESERVE_FILE
from kraftjbod.storage.vfs import OpenMode, Undoing, Vfs

_CHUNK_BYTES: Final = 1024 * 1024
#: A slow disk shall not be taken for one that hangs because of one long sync at the end.
_SYNC_BYTES: Final = 8 * _CHUNK_BYTES


class ReserveFile:
    """The one of a dir; ``size_bytes`` 0 means that it has none, and is whole without."""

    def __init__(
        self, *, vfs: Vfs, directory: str, size_bytes: int, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._vfs = vfs
        self._directory = directory
        self._path = f"{directory}/{RESERVE_FILE}"
        self._random_bytes = random_bytes
        self.size_bytes = size_bytes
        #: As far as this process knows; written in the dir's thread.
        self.is_held = False

    def find(self) -> bool:
        """Whether it is there and whole, from an earlier run perhaps."""
        found = self._vfs.extent_if_exists(self._path)
        if found is None or not self.size_bytes:
            self.is_held = found is None and not self.size_bytes
        else:
            self.is_held = (
                found.size_bytes == self.size_bytes and found.allocated_bytes >= self.size_bytes
            )
        return self.is_held

    def build(self, beat: Callable[[], None]) -> None:
        """Make it whole, and certain; ``beat`` is called between steps.

        Nothing is written if it cannot fit; that is ENOSPC like any other.
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
        """Give the space away; whether there was a whole reserve to give."""
        was_held, self.is_held = self.is_held and self.size_bytes > 0, False
        self._vfs.unlink_if_exists(self._path)
        return was_held
