"""DISK. Searching index files without loading them: some entries instead of megabytes.

What is found is only what the files say; the caller compares it with the segment.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kraftjbod.storage.segments.offset_index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    TimeEntry,
)
from kraftjbod.storage.vfs import Vfs, VfsFile

_HALF: Final = OFFSET_ENTRY_BYTES // 2
#: Entries that are read at once at the end of a search: one block of the disk.
_ENTRIES_PER_BLOCK: Final = 4096 // OFFSET_ENTRY_BYTES


class LargestEntry(NamedTuple):
    """The last entry of a time index, and from which file position on its batch is found."""

    largest: TimeEntry
    position: int


def read_largest_entry(
    vfs: Vfs, index_path: str, time_index_path: str, *, base_offset: int
) -> LargestEntry | None:
    """Read the last entry of a time index; None if a file is absent or can not be whole.

    Cost: O(log n) reads of one entry, and one of a block.
    """
    largest = _last_time_entry(vfs, time_index_path, base_offset)
    if largest is None:
        return None
    file = vfs.open_if_exists(index_path)
    if file is None:
        return None
    try:
        size_bytes = file.size()
        if size_bytes % OFFSET_ENTRY_BYTES:
            return None
        relative = largest.offset - base_offset
        position = _position_before(file, size_bytes // OFFSET_ENTRY_BYTES, relative)
    finally:
        file.close()
    return LargestEntry(largest, position)


def read_last_position(vfs: Vfs, index_path: str) -> int:
    """Return where the last batch begins that an offset index names; 0 if it names none."""
    file = vfs.open_if_exists(index_path)
    if file is None:
        return 0
    try:
        entries = file.size() // OFFSET_ENTRY_BYTES
        if entries == 0:
            return 0
        entry = file.read_at((entries - 1) * OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
    finally:
        file.close()
    return int.from_bytes(entry[_HALF:], "big")


def _last_time_entry(vfs: Vfs, path: str, base_offset: int) -> TimeEntry | None:
    file = vfs.open_if_exists(path)
    if file is None:
        return None
    try:
        size_bytes = file.size()
        if size_bytes == 0 or size_bytes % TIME_ENTRY_BYTES:
            return None
        data = file.read_at(size_bytes - TIME_ENTRY_BYTES, TIME_ENTRY_BYTES)
    finally:
        file.close()
    timestamp = int.from_bytes(data[:8], "big", signed=True)
    return TimeEntry(timestamp, base_offset + int.from_bytes(data[8:], "big"))


def _position_before(file: VfsFile, entries: int, relative_offset: int) -> int:
    """The position in the last of the ``entries`` whose offset is not larger; 0 without one."""
    low, high = 0, entries
    probe = max(0, entries - _ENTRIES_PER_BLOCK)  # The largest timestamp is mostly near the end.
    while high - low > _ENTRIES_PER_BLOCK:
        entry = file.read_at(probe * OFFSET_ENTRY_BYTES, OFFSET_ENTRY_BYTES)
        if int.from_bytes(entry[:_HALF], "big") <= relative_offset:
            low = probe
        else:
            high = probe
        probe = (low + high) // 2
    block = file.read_at(low * OFFSET_ENTRY_BYTES, (high - low) * OFFSET_ENTRY_BYTES)
    found = 0
    for at in range(0, len(block), OFFSET_ENTRY_BYTES):
        if int.from_bytes(block[at : at + _HALF], "big") > relative_offset:
            break
        found = int.from_bytes(block[at + _HALF : at + OFFSET_ENTRY_BYTES], "big")
    return found
