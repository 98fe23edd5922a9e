"""DISK. Searches in index files without loading them, by reads of some entries instead of
megabytes.
"""

from __future__ import annotations

from typing import Final

from kraftjbod.core.errors import CorruptRecordError
from kraftjbod.storage.segments.batch_walk import ReadAt, WouldWait, walk_to
from kraftjbod.storage.segments.offset_index import (
    OFFSET_ENTRY_BYTES,
    TIME_ENTRY_BYTES,
    TimeEntry,
)
from kraftjbod.storage.vfs import Vfs, VfsFile

_HALF: Final = OFFSET_ENTRY_BYTES // 2
#: Entries of the last read of a search: one block of the disk.
_ENTRIES_PER_BLOCK: Final = 4096 // OFFSET_ENTRY_BYTES


def read_largest_entry(
    vfs: Vfs,
    index_path: str,
    time_index_path: str,
    *,
    base_offset: int,
    read_at: ReadAt,
    size_bytes: int,
) -> TimeEntry | None:
    """Return the last entry of a time index file: the largest timestamp of the segment and its
    offset.

    Returns None if a file is missing or malformed, or if the entry does not match a batch. Cost:
    O(log n) reads of one entry, one read of a block, and one index interval of headers.

    :param read_at: reads the segment, which has ``size_bytes``.
    """
    largest = _last_time_entry(vfs, time_index_path, base_offset)
    file = None if largest is None else vfs.open_if_exists(index_path)
    if largest is None or file is None:
        return None
    try:
        index_bytes = file.size()
        relative = largest.offset - base_offset
        position = _position_before(file, index_bytes // OFFSET_ENTRY_BYTES, relative)
    finally:
        file.close()
    if index_bytes % OFFSET_ENTRY_BYTES or position >= size_bytes:
        return None
    try:
        newest = walk_to(read_at, position, size_bytes, largest.offset)
    except (CorruptRecordError, WouldWait):
        return None
    is_its = newest is not None and newest.header.max_timestamp == largest.timestamp
    return largest if is_its else None


def read_last_position(vfs: Vfs, index_path: str) -> int:
    """Return the batch position in the last entry of an offset index file; 0 without file or
    entries.
    """
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
    """Return the batch position of the last entry with an offset of at most ``relative_offset``; 0
    without one.
    """
    low, high = 0, entries
    probe = max(0, entries - _ENTRIES_PER_BLOCK)  # The largest timestamp is usually near the end.
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
