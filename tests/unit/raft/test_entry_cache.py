"""``EntryCache``: the newest entries in memory."""

from __future__ import annotations

from kraftjbod.raft.entry_cache import EntryCache
from kraftjbod.raft.machine.messages import Entry


def test_entry_cache_trims_the_oldest_entries_and_replaces_a_truncated_end() -> None:
    cache = EntryCache(max_bytes=1000)
    for offset in range(3, 10):
        cache.add(Entry(offset, 1, b"x" * 100))
    assert cache.trim(before=5) == 5
    assert 4 not in cache
    assert 5 in cache, "an entry that may be needed stays, even above the limit"
    cache.add(Entry(7, 2, b"other"))
    assert [entry.term for entry in cache.read(5, 8, 10_000)] == [1, 1, 2]
    assert 8 not in cache
    assert [entry.offset for entry in cache.read(5, 8, 1)] == [5]
    assert cache.trim(before=7) is None, "it fits again"
    cache.add(Entry(4, 3, b"from further back"))
    assert 5 not in cache
    assert cache[4].term == 3
