"""``SegmentCache``: eviction of indexes, and choice of idle files."""

from __future__ import annotations

from kraftjbod.storage.segments.segment_cache import CacheLimits, SegmentCache


class OneSegment:
    """A segment for the cache; with ``is_kept`` its index files on disk are outdated."""

    def __init__(self, cache: SegmentCache[OneSegment], *, is_kept: bool = False) -> None:
        self.was_read = False
        self.has_indexes = True
        self._cache = cache
        self._is_kept = is_kept
        cache.loaded(self, 10)
        cache.opened(self)

    def drop_indexes(self) -> bool:
        if self._is_kept:
            return False
        self.has_indexes = False
        self._cache.unloaded(self)
        return True


def test_segment_cache_evicts_the_oldest_indexes_that_were_not_read() -> None:
    cache = SegmentCache(CacheLimits(index_bytes=30))
    first, second, third = (OneSegment(cache) for _ in range(3))
    first.was_read = True
    fourth = OneSegment(cache)
    assert [one.has_indexes for one in (first, second, third, fourth)] == [True, False, True, True]
    assert cache.index_bytes == 30
    fifth, sixth = OneSegment(cache), OneSegment(cache)
    assert [one.has_indexes for one in (first, third, fifth, sixth)] == [False, False, True, True]


def test_segment_cache_keeps_indexes_that_are_not_on_disk() -> None:
    cache = SegmentCache(CacheLimits(index_bytes=10))
    kept = [OneSegment(cache, is_kept=True) for _ in range(3)]
    newest = OneSegment(cache)
    assert all(one.has_indexes for one in (*kept, newest))
    assert cache.index_bytes == 40


def test_segment_cache_keeps_the_indexes_just_loaded_at_any_size() -> None:
    cache = SegmentCache(CacheLimits(index_bytes=1))
    assert OneSegment(cache).has_indexes
    assert cache.index_bytes == 10


def test_segment_cache_chooses_the_oldest_files_that_were_not_read() -> None:
    cache = SegmentCache(CacheLimits(open_segments=2))
    first, second, third, fourth = (OneSegment(cache) for _ in range(4))
    assert cache.has_too_many_open
    first.was_read = True
    assert cache.choose_idle() == [second, third]
    cache.closed(second)
    cache.closed(third)
    assert not cache.has_too_many_open
    assert cache.choose_idle() == []
    cache.left(first)
    cache.left(fourth)
    assert (cache.open_segments, cache.index_bytes) == (0, 20)
