"""DISK. ``copy_range``: copies bytes from a file of one log directory to a file of another.

* The kernel copies if it can, many bytes per call, so that the thread seldom holds the interpreter
  lock.
* Writeback of the target starts piece by piece, so that a later sync finds little to write.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.storage.vfs import VfsFile

#: Bytes after which writeback starts, while the next bytes are copied.
_PIECE_BYTES: Final = 4 * 1024 * 1024
#: Bytes read and written at once if the kernel cannot copy.
_CHUNK_BYTES: Final = 1024 * 1024


def copy_range(
    source: VfsFile, target: VfsFile, position: int, size_bytes: int, *, by_kernel: bool
) -> int:
    """Copy up to ``size_bytes`` from ``position`` of ``source`` to the same position of ``target``.

    Returns the number of bytes copied, which is less only at the end of ``source``.

    :param by_kernel: whether the kernel copies (``sendfile``).
    :raises OSError: EINVAL or ENOSYS if the kernel cannot copy between these file systems.
    """
    copied = 0
    while copied < size_bytes:
        at, wanted = position + copied, min(_PIECE_BYTES, size_bytes - copied)
        if by_kernel:
            got = target.copy_from(source, at, wanted)
        else:
            got = _copy_in_chunks(source, target, at, wanted)
        # The dirty pages stay in memory, but this call starts their writeback.
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
