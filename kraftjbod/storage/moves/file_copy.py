"""DISK. Copying bytes from a file of one log dir to a file of another, without reading them.

* The kernel copies where it can, much with one call, so that the thread that asks for it seldom
  gets in the way of others.
* The target's disk is asked to begin writing piece by piece, so that a sync finds little to do.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.storage.vfs import VfsFile

#: The disk begins to write after so much, while the next bytes are copied.
_PIECE_BYTES: Final = 4 * 1024 * 1024
#: What is read and written at once where the kernel cannot copy.
_CHUNK_BYTES: Final = 1024 * 1024


def copy_range(
    source: VfsFile, target: VfsFile, position: int, size_bytes: int, *, by_kernel: bool
) -> int:
    """Copy up to ``size_bytes`` from ``position`` to the same position; how many there were."""
    copied = 0
    while copied < size_bytes:
        at, wanted = position + copied, min(_PIECE_BYTES, size_bytes - copied)
        if by_kernel:
            got = target.copy_from(source, at, wanted)
        else:
            got = _copy_in_chunks(source, target, at, wanted)
        # Nothing of it can leave the memory yet, but the disk begins to write.
        target.forget_cached(at, got)
        copied += got
        if got < wanted:
            break
    return copied


def _copy_in_chunks(source: VfsFile, target: VfsFile, position: int, size_bytes: int) -> int:
    copied = 0
    while copied < size_bytes:
        at = position + copied
        data = source.read_at(at, min(_CHUNK_BYTES, size_bytes - copied))
        if not data:
            break
        target.write_at(at, [data])
        copied += len(data)
    return copied
