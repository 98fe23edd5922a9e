"""PURE. ``EntryCache``: the newest written entries in memory, for replicas that follow the log."""

from __future__ import annotations

from kraftjbod.raft.machine.messages import Entry

#: Memory that an entry needs in addition to its payload.
ENTRY_OVERHEAD_BYTES = 200


class EntryCache:
    """Consecutive entries by offset, up to a limit of bytes. The oldest are evicted first."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: dict[int, Entry] = {}
        self._start = 0
        self._size_bytes = 0

    def __contains__(self, offset: int) -> bool:
        return offset in self._entries

    def __getitem__(self, offset: int) -> Entry:
        return self._entries[offset]

    def add(self, entry: Entry) -> None:
        """Add the entry after the last one.

        Cached entries with its offset or a later one are replaced.
        """
        last = self._start + len(self._entries) - 1
        while self._entries and last >= entry.offset:
            self._size_bytes -= size_bytes_of(self._entries.pop(last))
            last -= 1
        if not self._entries:
            self._start = entry.offset
        self._entries[entry.offset] = entry
        self._size_bytes += size_bytes_of(entry)

    def trim(self, before: int) -> int | None:
        """Evict the oldest entries until the size is within the limit, but none from offset
        ``before`` on.

        :returns: the first cached offset, or None if nothing was evicted.
        """
        start = self._start
        while self._size_bytes > self._max_bytes and self._start < before:
            self._size_bytes -= size_bytes_of(self._entries.pop(self._start))
            self._start += 1
        return self._start if self._start > start else None

    def clear(self) -> None:
        self._entries.clear()
        self._size_bytes = 0

    def read(self, from_offset: int, end: int, max_bytes: int) -> list[Entry]:
        """Return the entries from ``from_offset`` to before ``end``, up to ``max_bytes``; at least
        one.

        All these entries must be cached.
        """
        found: list[Entry] = []
        size_bytes = 0
        for offset in range(from_offset, end):
            entry = self._entries[offset]
            size_bytes += len(entry.payload)
            if found and size_bytes > max_bytes:
                break
            found.append(entry)
        return found


def size_bytes_of(entry: Entry) -> int:
    return len(entry.payload) + ENTRY_OVERHEAD_BYTES
